// The kernels in plain C++.
#include <cstdint>
#include <type_traits>

#include "kernel_table.h"
#include "simd_portable.h"
#include "table.inc"

const Kernels* portable_kernels() { return &kTable; }

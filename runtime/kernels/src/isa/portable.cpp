// The kernels in plain C++.
#include <cstdint>
#include <type_traits>

#include "isa/kernel_table.h"
#include "simd/portable.h"
#include "isa/table.inc"

const Kernels* portable_kernels() { return &kTable; }

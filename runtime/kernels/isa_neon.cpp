// The kernels for arm64, which always has NEON.
#include <cstdint>
#include <type_traits>

#include "kernel_table.h"

#if defined(__aarch64__)
#include "half.h"
#include "simd_neon.h"
#include "table.inc"
const Kernels* neon_kernels() { return &kTable; }
#else
const Kernels* neon_kernels() { return nullptr; }
#endif

// The kernels for arm64, which always has NEON.
#include <cstdint>
#include <type_traits>

#include "isa/kernel_table.h"

#if defined(__aarch64__)
#include "simd/half.h"
#include "simd/neon.h"
#include "isa/table.inc"
const Kernels* neon_kernels() { return &kTable; }
#else
const Kernels* neon_kernels() { return nullptr; }
#endif

// The kernels for AVX2 with FMA and F16C. Built with those enabled, so nothing in this file may run before
// dispatch.cpp has asked the machine.
#include <cstdint>
#include <type_traits>

#include "kernel_table.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "half.h"
#include "simd_avx2.h"
#include "table.inc"
const Kernels* avx2_kernels() { return &kTable; }
#else
const Kernels* avx2_kernels() { return nullptr; }
#endif

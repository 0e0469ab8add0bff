// The kernels for AVX2 with FMA and F16C. Built with those enabled, so nothing in this file may run before
// dispatch.cpp has asked the machine.
#include <cstdint>
#include <type_traits>

#include "isa/kernel_table.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd/half.h"
#include "simd/avx2.h"
#include "isa/table.inc"
const Kernels* avx2_kernels() { return &kTable; }
#else
const Kernels* avx2_kernels() { return nullptr; }
#endif

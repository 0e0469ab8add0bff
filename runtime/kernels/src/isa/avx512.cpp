// The kernels for AVX-512 (F, BW, DQ, VL). Built with those enabled, so nothing in this file may run before
// dispatch.cpp has asked the machine.
#include <cstdint>
#include <type_traits>

#include "isa/kernel_table.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "simd/half.h"
#include "simd/avx512.h"
#include "isa/table.inc"
const Kernels* avx512_kernels() { return &kTable; }
#else
const Kernels* avx512_kernels() { return nullptr; }
#endif

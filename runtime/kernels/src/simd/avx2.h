// Eight float lanes with AVX2, FMA and F16C. portable.h says in plain C++ what each function does.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "simd/x86.h"

namespace {

using F = __m256;
using I = __m256i;
constexpr int kLanes = 8;
constexpr int kTileVectors = 2;  // vectors of columns in a register tile
constexpr int kTileRows = 6;     // 6 x 2 accumulators, 2 weights and 1 input leave one of 16 registers
constexpr int kDirectRows = 4;   // up to here weights are dequantized in registers
constexpr const char* kName = "avx2";

inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F v) { _mm256_storeu_ps(p, v); }
inline F set1(float v) { return _mm256_set1_ps(v); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }  // b where either is NaN
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline F zero_below(F v, F x, F limit) { return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), v); }
inline F scale_by_power(F v, F n) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
inline F to_float(I v) { return _mm256_cvtepi32_ps(v); }
inline I either(I a, I b) { return _mm256_or_si256(a, b); }

inline F load_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline F load_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}
inline void store_f16(uint16_t* p, F v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

inline __m128i load8(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)); }

template <int J>
inline I nibbles(const uint8_t* p) {
  const I bytes = _mm256_cvtepu8_epi32(load8(p + (J & 1) * 8));
  return J < 2 ? _mm256_and_si256(bytes, _mm256_set1_epi32(15)) : _mm256_srli_epi32(bytes, 4);
}
template <int J>
inline I bits_at_4(const uint8_t* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  const I lane = _mm256_sllv_epi32(_mm256_set1_epi32(1 << (8 * J)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  const I set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(word), lane), lane);
  return _mm256_and_si256(set, _mm256_set1_epi32(16));
}
template <int J>
inline I pairs_at_4(const uint8_t* p) {
  const I bytes = _mm256_cvtepu8_epi32(load8(p));
  const I placed = J == 0   ? _mm256_slli_epi32(bytes, 4)
                   : J == 1 ? _mm256_slli_epi32(bytes, 2)
                   : J == 2 ? bytes
                            : _mm256_srli_epi32(bytes, 2);
  return _mm256_and_si256(placed, _mm256_set1_epi32(0x30));
}
template <int J>
inline I bytes_unsigned(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(load8(p + J * 8));
}
template <int J>
inline I bytes_signed(const uint8_t* p) {
  return _mm256_cvtepi8_epi32(load8(p + J * 8));
}

// The sum of 32 lanes in the one order that all instruction sets follow: columns c, c + 16, then c + 8, then halves.
inline float sum32(const F v[4]) { return sum8(add(add(v[0], v[2]), add(v[1], v[3]))); }
inline float max32(const F v[4]) { return max8(max(max(v[0], v[2]), max(v[1], v[3]))); }

}  // namespace

// Sixteen float lanes with AVX-512 F, BW, DQ and VL. portable.h says in plain C++ what each function does.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "simd/x86.h"

namespace {

using F = __m512;
using I = __m512i;
constexpr int kLanes = 16;
constexpr int kTileVectors = 2;
constexpr int kTileRows = 12;  // 12 x 2 accumulators and 2 weights in 32 registers; inputs are broadcast from memory
constexpr int kDirectRows = 6;
constexpr const char* kName = "avx512";

inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F v) { _mm512_storeu_ps(p, v); }
inline F set1(float v) { return _mm512_set1_ps(v); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }  // b where either is NaN
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F zero_below(F v, F x, F limit) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), v); }
inline F scale_by_power(F v, F n) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
}
inline F to_float(I v) { return _mm512_cvtepi32_ps(v); }
inline I either(I a, I b) { return _mm512_or_si512(a, b); }

inline F load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}
inline void store_f16(uint16_t* p, F v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

inline __m128i load16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

template <int J>
inline I nibbles(const uint8_t* p) {
  const I bytes = _mm512_cvtepu8_epi32(load16(p));
  return J == 0 ? _mm512_and_si512(bytes, _mm512_set1_epi32(15)) : _mm512_srli_epi32(bytes, 4);
}
template <int J>
inline I bits_at_4(const uint8_t* p) {
  uint16_t word;
  std::memcpy(&word, p + 2 * J, 2);
  return _mm512_maskz_mov_epi32(word, _mm512_set1_epi32(16));
}
template <int J>
inline I pairs_at_4(const uint8_t* p) {
  int64_t word;
  std::memcpy(&word, p, 8);
  const I bytes = _mm512_cvtepu8_epi32(_mm_set1_epi64x(word));
  const I shifts = _mm512_setr_epi32(4 * J, 4 * J, 4 * J, 4 * J, 4 * J, 4 * J, 4 * J, 4 * J, 4 * J + 2, 4 * J + 2,
                                     4 * J + 2, 4 * J + 2, 4 * J + 2, 4 * J + 2, 4 * J + 2, 4 * J + 2);
  return _mm512_slli_epi32(_mm512_and_si512(_mm512_srlv_epi32(bytes, shifts), _mm512_set1_epi32(3)), 4);
}
template <int J>
inline I bytes_unsigned(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(load16(p + J * 16));
}
template <int J>
inline I bytes_signed(const uint8_t* p) {
  return _mm512_cvtepi8_epi32(load16(p + J * 16));
}

// As in simd_avx2.h: columns c and c + 16 first, then c + 8, then halves.
inline float sum32(const F v[2]) {
  const F t = add(v[0], v[1]);
  return sum8(_mm256_add_ps(_mm512_castps512_ps256(t), _mm512_extractf32x8_ps(t, 1)));
}
inline float max32(const F v[2]) {
  const F t = max(v[0], v[1]);
  return max8(_mm256_max_ps(_mm512_castps512_ps256(t), _mm512_extractf32x8_ps(t, 1)));
}

}  // namespace

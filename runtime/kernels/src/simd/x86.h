// What AVX2 and AVX-512 share: reductions and transposes of eight lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

inline float sum8(__m256 t) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline float max8(__m256 t) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// Transposes rows[0..8][0..8] to out[c * stride + r].
template <class Load8>
inline void transpose8(Load8 row, float* out, int64_t stride) {
  const __m256 r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3), r4 = row(4), r5 = row(5), r6 = row(6), r7 = row(7);
  const __m256 a0 = _mm256_unpacklo_ps(r0, r1), a1 = _mm256_unpackhi_ps(r0, r1);
  const __m256 a2 = _mm256_unpacklo_ps(r2, r3), a3 = _mm256_unpackhi_ps(r2, r3);
  const __m256 a4 = _mm256_unpacklo_ps(r4, r5), a5 = _mm256_unpackhi_ps(r4, r5);
  const __m256 a6 = _mm256_unpacklo_ps(r6, r7), a7 = _mm256_unpackhi_ps(r6, r7);
  const __m256 b0 = _mm256_shuffle_ps(a0, a2, 0x44), b1 = _mm256_shuffle_ps(a0, a2, 0xEE);
  const __m256 b2 = _mm256_shuffle_ps(a1, a3, 0x44), b3 = _mm256_shuffle_ps(a1, a3, 0xEE);
  const __m256 b4 = _mm256_shuffle_ps(a4, a6, 0x44), b5 = _mm256_shuffle_ps(a4, a6, 0xEE);
  const __m256 b6 = _mm256_shuffle_ps(a5, a7, 0x44), b7 = _mm256_shuffle_ps(a5, a7, 0xEE);
  _mm256_storeu_ps(out + 0 * stride, _mm256_permute2f128_ps(b0, b4, 0x20));
  _mm256_storeu_ps(out + 1 * stride, _mm256_permute2f128_ps(b1, b5, 0x20));
  _mm256_storeu_ps(out + 2 * stride, _mm256_permute2f128_ps(b2, b6, 0x20));
  _mm256_storeu_ps(out + 3 * stride, _mm256_permute2f128_ps(b3, b7, 0x20));
  _mm256_storeu_ps(out + 4 * stride, _mm256_permute2f128_ps(b0, b4, 0x31));
  _mm256_storeu_ps(out + 5 * stride, _mm256_permute2f128_ps(b1, b5, 0x31));
  _mm256_storeu_ps(out + 6 * stride, _mm256_permute2f128_ps(b2, b6, 0x31));
  _mm256_storeu_ps(out + 7 * stride, _mm256_permute2f128_ps(b3, b7, 0x31));
}

inline __m256 load8_f32(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load8_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline __m256 load8_bf16(const uint16_t* p) {
  return _mm256_castsi256_ps(
      _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16));
}

// Not _mm_prefetch: GCC takes a function that does nothing else for one without effect, and drops the calls of it.
inline void prefetch(const void* p) { asm volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(p))); }
inline void prefetch_far(const void* p) { asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p))); }

}  // namespace

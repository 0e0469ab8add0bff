// Four float lanes with NEON (arm64). portable.h says in plain C++ what each function does.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

namespace {

using F = float32x4_t;
using I = int32x4_t;
constexpr int kLanes = 4;
constexpr int kTileVectors = 4;
constexpr int kTileRows = 6;  // 6 x 4 accumulators, 4 weights and an input in 32 registers
constexpr int kDirectRows = 6;
constexpr const char* kName = "neon";

inline F load(const float* p) { return vld1q_f32(p); }
inline void store(float* p, F v) { vst1q_f32(p, v); }
inline F set1(float v) { return vdupq_n_f32(v); }
inline F fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
inline F mul(F a, F b) { return vmulq_f32(a, b); }
inline F add(F a, F b) { return vaddq_f32(a, b); }
inline F sub(F a, F b) { return vsubq_f32(a, b); }
inline F div(F a, F b) { return vdivq_f32(a, b); }
inline F max(F a, F b) { return vmaxq_f32(a, b); }
inline F min(F a, F b) { return vminq_f32(a, b); }
inline F zero_below(F v, F x, F limit) {
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vcltq_f32(x, limit)));
}
inline F scale_by_power(F v, F n) {
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(v), vshlq_n_s32(vcvtnq_s32_f32(n), 23)));
}
inline F to_float(I v) { return vcvtq_f32_s32(v); }
inline I either(I a, I b) { return vorrq_s32(a, b); }

inline F load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline F load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline void store_f16(uint16_t* p, F v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }

inline uint8x8_t load4(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return vcreate_u8(word);
}
inline I widen(uint8x8_t bytes) { return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes)))); }

template <int J>
inline I nibbles(const uint8_t* p) {
  const I bytes = widen(load4(p + (J & 3) * 4));
  return J < 4 ? vandq_s32(bytes, vdupq_n_s32(15)) : vshrq_n_s32(bytes, 4);
}
template <int J>
inline I bits_at_4(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  static const uint32_t kLane[4] = {1, 2, 4, 8};
  const uint32x4_t set = vtstq_u32(vdupq_n_u32(word >> (4 * J)), vld1q_u32(kLane));
  return vreinterpretq_s32_u32(vandq_u32(set, vdupq_n_u32(16)));
}
template <int J>
inline I pairs_at_4(const uint8_t* p) {
  const I bytes = widen(load4(p + (J & 1) * 4));
  const I shifted = vshlq_s32(bytes, vdupq_n_s32(4 - 2 * (J / 2)));
  return vandq_s32(shifted, vdupq_n_s32(0x30));
}
template <int J>
inline I bytes_unsigned(const uint8_t* p) {
  return widen(load4(p + J * 4));
}
template <int J>
inline I bytes_signed(const uint8_t* p) {
  return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load4(p + J * 4)))));
}

struct Eight {
  float32x4_t low, high;
};

// As in simd_avx2.h: columns c and c + 16 first, then c + 8, then halves.
inline float sum32(const F v[8]) {
  const F low = vaddq_f32(vaddq_f32(v[0], v[4]), vaddq_f32(v[2], v[6]));
  const F high = vaddq_f32(vaddq_f32(v[1], v[5]), vaddq_f32(v[3], v[7]));
  const F four = vaddq_f32(low, high);
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float max32(const F v[8]) {
  F best = v[0];
  for (int j = 1; j < 8; ++j) best = vmaxq_f32(best, v[j]);
  return vmaxvq_f32(best);
}

inline Eight load8_f32(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
inline Eight load8_f16(const uint16_t* p) { return {load_f16(p), load_f16(p + 4)}; }
inline Eight load8_bf16(const uint16_t* p) { return {load_bf16(p), load_bf16(p + 4)}; }

inline void transpose4(F r0, F r1, F r2, F r3, float* out, int64_t stride) {
  const float32x4x2_t a = vtrnq_f32(r0, r1), b = vtrnq_f32(r2, r3);
  vst1q_f32(out + 0 * stride, vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0])));
  vst1q_f32(out + 1 * stride, vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1])));
  vst1q_f32(out + 2 * stride, vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0])));
  vst1q_f32(out + 3 * stride, vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1])));
}

// Transposes rows[0..8][0..8] to out[c * stride + r].
template <class Load8>
inline void transpose8(Load8 row, float* out, int64_t stride) {
  for (int r = 0; r < 8; r += 4) {
    const Eight r0 = row(r), r1 = row(r + 1), r2 = row(r + 2), r3 = row(r + 3);
    transpose4(r0.low, r1.low, r2.low, r3.low, out + r, stride);
    transpose4(r0.high, r1.high, r2.high, r3.high, out + r + 4 * stride, stride);
  }
}

// Not __builtin_prefetch: GCC takes a function that does nothing else for one without effect, and drops its calls.
inline void prefetch(const void* p) { asm volatile("prfm pldl1keep, [%0]" : : "r"(p)); }
inline void prefetch_far(const void* p) { asm volatile("prfm pldl2keep, [%0]" : : "r"(p)); }

}  // namespace

// Eight float lanes in plain C++: for machines without a header of their own, and the yardstick of the tests. The
// results are those of the other instruction sets bit for bit; std::fma is one rounding wherever it is computed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd/half.h"

namespace {

struct F {
  float at[8];
};
struct I {
  int32_t at[8];
};
constexpr int kLanes = 8;
constexpr int kTileVectors = 2;
constexpr int kTileRows = 4;
constexpr int kDirectRows = 2;
constexpr const char* kName = "portable";

template <class Value>
inline F lanes(Value value) {
  F out;
  for (int i = 0; i < 8; ++i) out.at[i] = value(i);
  return out;
}
template <class Value>
inline I int_lanes(Value value) {
  I out;
  for (int i = 0; i < 8; ++i) out.at[i] = value(i);
  return out;
}

inline F load(const float* p) {
  return lanes([&](int i) { return p[i]; });
}
inline void store(float* p, F v) { std::memcpy(p, v.at, sizeof v.at); }
inline F set1(float v) {
  return lanes([&](int) { return v; });
}
inline F fma(F a, F b, F c) {
  return lanes([&](int i) { return __builtin_fmaf(a.at[i], b.at[i], c.at[i]); });
}
inline F mul(F a, F b) {
  return lanes([&](int i) { return a.at[i] * b.at[i]; });
}
inline F add(F a, F b) {
  return lanes([&](int i) { return a.at[i] + b.at[i]; });
}
inline F sub(F a, F b) {
  return lanes([&](int i) { return a.at[i] - b.at[i]; });
}
inline F div(F a, F b) {
  return lanes([&](int i) { return a.at[i] / b.at[i]; });
}
inline F max(F a, F b) {
  return lanes([&](int i) { return a.at[i] > b.at[i] ? a.at[i] : b.at[i]; });
}
inline F min(F a, F b) {
  return lanes([&](int i) { return a.at[i] < b.at[i] ? a.at[i] : b.at[i]; });
}
inline F zero_below(F v, F x, F limit) {
  return lanes([&](int i) { return x.at[i] < limit.at[i] ? 0.0f : v.at[i]; });
}
inline F scale_by_power(F v, F n) {
  return lanes([&](int i) {
    uint32_t bits;
    std::memcpy(&bits, &v.at[i], 4);
    bits += (n.at[i] == n.at[i] ? static_cast<uint32_t>(static_cast<int32_t>(n.at[i])) : 0u) << 23;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
  });
}
inline F to_float(I v) {
  return lanes([&](int i) { return static_cast<float>(v.at[i]); });
}
inline I either(I a, I b) {
  return int_lanes([&](int i) { return a.at[i] | b.at[i]; });
}

inline F load_f16(const uint16_t* p) {
  return lanes([&](int i) { return half_to_float(p[i]); });
}
inline F load_bf16(const uint16_t* p) {
  return lanes([&](int i) { return bfloat_to_float(p[i]); });
}
inline void store_f16(uint16_t* p, F v) {
  for (int i = 0; i < 8; ++i) p[i] = float_to_half(v.at[i]);
}

template <int J>
inline I nibbles(const uint8_t* p) {
  return int_lanes([&](int i) { return J < 2 ? p[J * 8 + i] & 15 : p[(J - 2) * 8 + i] >> 4; });
}
template <int J>
inline I bits_at_4(const uint8_t* p) {
  return int_lanes([&](int i) { return (p[J] >> i & 1) << 4; });
}
template <int J>
inline I pairs_at_4(const uint8_t* p) {
  return int_lanes([&](int i) { return (p[i] >> (2 * J) & 3) << 4; });
}
template <int J>
inline I bytes_unsigned(const uint8_t* p) {
  return int_lanes([&](int i) { return static_cast<int>(p[J * 8 + i]); });
}
template <int J>
inline I bytes_signed(const uint8_t* p) {
  return int_lanes([&](int i) { return static_cast<int>(static_cast<int8_t>(p[J * 8 + i])); });
}

inline float sum32(const F v[4]) {
  const F t = add(add(v[0], v[2]), add(v[1], v[3]));
  const float* a = t.at;
  return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}
inline float max32(const F v[4]) {
  float best = v[0].at[0];
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 8; ++i) best = v[j].at[i] > best ? v[j].at[i] : best;
  return best;
}

template <class Load8>
inline void transpose8(Load8 row, float* out, int64_t stride) {
  for (int r = 0; r < 8; ++r) {
    const F values = row(r);
    for (int c = 0; c < 8; ++c) out[c * stride + r] = values.at[c];
  }
}
inline F load8_f32(const float* p) { return load(p); }
inline F load8_f16(const uint16_t* p) { return load_f16(p); }
inline F load8_bf16(const uint16_t* p) { return load_bf16(p); }

inline void prefetch(const void* p) { __builtin_prefetch(p); }
inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace

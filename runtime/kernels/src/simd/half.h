// Conversions of the two 16-bit float formats, one number at a time. Narrowing rounds to the nearest, ties to even.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

inline float bits_to_float(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
inline uint32_t float_to_bits(float value) {
  uint32_t out;
  std::memcpy(&out, &value, 4);
  return out;
}

inline float bfloat_to_float(uint16_t value) { return bits_to_float(static_cast<uint32_t>(value) << 16); }
inline uint16_t float_to_bfloat(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

inline float half_to_float(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000u) << 16;
  const uint32_t rest = value & 0x7FFFu;
  if (rest >= 0x7C00u) return bits_to_float(sign | 0x7F800000u | (rest & 0x3FFu) << 13);
  if (rest < 0x400u) return bits_to_float(sign | float_to_bits(static_cast<float>(rest) * 0x1p-24f));
  return bits_to_float(sign | ((rest << 13) + 0x38000000u));
}
inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t rest = bits & 0x7FFFFFFFu;
  if (rest > 0x7F800000u) return sign | 0x7E00u | (rest >> 13 & 0x3FFu);
  if (rest >= 0x477FF000u) return sign | 0x7C00u;  // rounds to beyond the largest half
  if (rest < 0x38800000u)                          // a subnormal half: adding 0.5 rounds at its last bit
    return sign | static_cast<uint16_t>(float_to_bits(bits_to_float(rest) + 0.5f) - 0x3F000000u);
  return sign | static_cast<uint16_t>((rest - 0x38000000u + 0xFFFu + (rest >> 13 & 1u)) >> 13);
}

}  // namespace

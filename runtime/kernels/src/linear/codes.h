// How each storage type is laid out in column blocks, and how its weights come out of it.
//
// A column block holds 32 output features for all k. Types without scales store [k][32 columns]. The others store
// super-groups of kSubs groups of kSubK values of k:
//   [super header: what one scale of the file covers] kSubs x ([group header: scales, offsets] kSubK x [codes])
// A weight is fma(scale, code, offset); scale and offset are exact in float32, and so is the product of scale and code,
// so every weight has the bits that gguf.quants.dequantize gives (up to the sign of zero).
//
// Codes of four bits: byte b of 16 has column b in its low half and column b + 16 in its high half. The fifth bit: a
// little-endian word with bit c for column c. Bits five and six: byte b of 8 has columns b, b + 8, b + 16 and b + 24,
// lowest first.
#pragma once

#include "linear/layout.h"

namespace {

template <class Layout>
struct Code;

template <int J>
inline F f16_at(const uint8_t* p) {
  return load_f16(reinterpret_cast<const uint16_t*>(p) + J * kLanes);
}

struct Scale {
  F scale, offset;
};

template <>
struct Code<LayoutQ4_0> {
  template <int J>
  static Scale scale(const uint8_t* header, const uint8_t*) {
    const F d = f16_at<J>(header);
    return {d, mul(d, set1(-8.0f))};
  }
  template <int J>
  static F code(const uint8_t* p) {
    return to_float(nibbles<J>(p));
  }
};

template <>
struct Code<LayoutQ4_1> {
  template <int J>
  static Scale scale(const uint8_t* header, const uint8_t*) {
    return {f16_at<J>(header), f16_at<J>(header + 64)};
  }
  template <int J>
  static F code(const uint8_t* p) {
    return to_float(nibbles<J>(p));
  }
};

template <>
struct Code<LayoutQ5_0> {
  template <int J>
  static Scale scale(const uint8_t* header, const uint8_t*) {
    const F d = f16_at<J>(header);
    return {d, mul(d, set1(-16.0f))};
  }
  template <int J>
  static F code(const uint8_t* p) {
    return to_float(either(nibbles<J>(p), bits_at_4<J>(p + 16)));
  }
};

template <>
struct Code<LayoutQ5_1> {
  template <int J>
  static Scale scale(const uint8_t* header, const uint8_t*) {
    return {f16_at<J>(header), f16_at<J>(header + 64)};
  }
  template <int J>
  static F code(const uint8_t* p) {
    return to_float(either(nibbles<J>(p), bits_at_4<J>(p + 16)));
  }
};

template <>
struct Code<LayoutQ8_0> {
  template <int J>
  static Scale scale(const uint8_t* header, const uint8_t*) {
    return {f16_at<J>(header), set1(0.0f)};
  }
  template <int J>
  static F code(const uint8_t* p) {
    return to_float(bytes_signed<J>(p));
  }
};

// d and dmin of 256 values of k in the super header; of each 32, a scale and a minimum of six bits.
template <int J>
inline Scale k_scale(const uint8_t* header, const uint8_t* super) {
  const F minimum = mul(f16_at<J>(super + 64), to_float(bytes_unsigned<J>(header + 32)));
  return {mul(f16_at<J>(super), to_float(bytes_unsigned<J>(header))), sub(set1(0.0f), minimum)};
}

template <>
struct Code<LayoutQ4_K> {
  template <int J>
  static Scale scale(const uint8_t* header, const uint8_t* super) {
    return k_scale<J>(header, super);
  }
  template <int J>
  static F code(const uint8_t* p) {
    return to_float(nibbles<J>(p));
  }
};

template <>
struct Code<LayoutQ5_K> {
  template <int J>
  static Scale scale(const uint8_t* header, const uint8_t* super) {
    return k_scale<J>(header, super);
  }
  template <int J>
  static F code(const uint8_t* p) {
    return to_float(either(nibbles<J>(p), bits_at_4<J>(p + 16)));
  }
};

template <>
struct Code<LayoutQ6_K> {
  template <int J>
  static Scale scale(const uint8_t* header, const uint8_t* super) {
    const F d = mul(f16_at<J>(super), to_float(bytes_signed<J>(header)));
    return {d, mul(d, set1(-32.0f))};
  }
  template <int J>
  static F code(const uint8_t* p) {
    return to_float(either(nibbles<J>(p), pairs_at_4<J>(p + 16)));
  }
};

template <>
struct Code<LayoutF32> {
  template <int J>
  static F code(const uint8_t* p) {
    return load(reinterpret_cast<const float*>(p) + J * kLanes);
  }
};

template <>
struct Code<LayoutF16> {
  template <int J>
  static F code(const uint8_t* p) {
    return f16_at<J>(p);
  }
};

template <>
struct Code<LayoutBF16> {
  template <int J>
  static F code(const uint8_t* p) {
    return load_bf16(reinterpret_cast<const uint16_t*>(p) + J * kLanes);
  }
};

}  // namespace

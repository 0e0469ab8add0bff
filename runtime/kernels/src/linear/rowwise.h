// What is computed row by row or element by element: norms, rotation, activation, and what becomes of a product.
#pragma once

#include "linear/products.h"

namespace {

// e^x to about 1 ulp, with the same bits on every instruction set; 0 below -87.3, NaN for NaN, and 1 exactly for 0.
// Cody-Waite reduction and a minimax polynomial of degree 6 (coefficients: Cephes, expf).
inline F exp_vector(F x) {
  const F low = set1(-87.33654f), magic = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const F clamped = max(low, min(set1(88.0f), x));            // in this order NaN stays NaN
  const F n = sub(fma(clamped, set1(1.44269504f), magic), magic);
  const F r = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), clamped));
  F p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  const F e = add(fma(p, mul(r, r), r), set1(1.0f));
  return zero_below(scale_by_power(e, n), x, low);
}

inline float first_lane(F v) {
  float lanes_of[kLanes];
  store(lanes_of, v);
  return lanes_of[0];
}
inline float exp_scalar(float x) { return first_lane(exp_vector(set1(x))); }

// y = x / sqrt(mean(x^2) + eps) * weight. The squares are summed in 32 lanes, then by sum32.
void rms_norm(const float* x, const float* weight, int64_t width, float eps, float* y) {
  F sums[kVectors];
  for (int j = 0; j < kVectors; ++j) sums[j] = set1(0.0f);
  int64_t at = 0;
  for (; at + kBlockColumns <= width; at += kBlockColumns)
    for (int j = 0; j < kVectors; ++j) {
      const F v = load(x + at + j * kLanes);
      sums[j] = fma(v, v, sums[j]);
    }
  if (at < width) {
    float rest[kBlockColumns] = {};
    for (int64_t i = at; i < width; ++i) rest[i - at] = x[i];
    for (int j = 0; j < kVectors; ++j) {
      const F v = load(rest + j * kLanes);
      sums[j] = fma(v, v, sums[j]);
    }
  }
  const float scale = 1.0f / __builtin_sqrtf(sum32(sums) / static_cast<float>(width) + eps);
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) store(y + i, mul(mul(load(x + i), set1(scale)), load(weight + i)));
  for (; i < width; ++i) y[i] = x[i] * scale * weight[i];
}

// Rotates the pairs (i, i + half) of one head, in place.
void rotate(float* x, const float* cosines, const float* sines, int64_t half) {
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const F a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
    store(x + i, sub(mul(a, c), mul(b, s)));
    store(x + half + i, add(mul(b, c), mul(a, s)));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cosines[i] - b * sines[i];
    x[half + i] = b * cosines[i] + a * sines[i];
  }
}

void store_numbers(int32_t type, const float* from, int64_t count, void* to, int64_t start) {
  if (type == SW_F32) {
    std::memcpy(static_cast<float*>(to) + start, from, count * sizeof(float));
  } else if (type == SW_F16) {
    uint16_t* out = static_cast<uint16_t*>(to) + start;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store_f16(out + i, load(from + i));
    for (; i < count; ++i) out[i] = float_to_half(from[i]);
  } else {
    uint16_t* out = static_cast<uint16_t*>(to) + start;
    for (int64_t i = 0; i < count; ++i) out[i] = float_to_bfloat(from[i]);
  }
}

// --- what becomes of a column block's product c[rows][32]; `columns` of them are real -----------------------------

void put_block(const float* c, int64_t rows, int64_t columns, const float* bias, float* y, int64_t ldy) {
  for (int64_t row = 0; row < rows; ++row, c += kBlockColumns, y += ldy) {
    if (columns == kBlockColumns) {
      for (int j = 0; j < kBlockColumns; j += kLanes) {
        const F v = load(c + j);
        store(y + j, bias ? add(v, load(bias + j)) : v);
      }
    } else {
      for (int64_t j = 0; j < columns; ++j) y[j] = bias ? c[j] + bias[j] : c[j];
    }
  }
}

void add_block(const float* c, int64_t rows, int64_t columns, float* y, int64_t ldy) {
  for (int64_t row = 0; row < rows; ++row, c += kBlockColumns, y += ldy) {
    if (columns == kBlockColumns) {
      for (int j = 0; j < kBlockColumns; j += kLanes) store(y + j, add(load(y + j), load(c + j)));
    } else {
      for (int64_t j = 0; j < columns; ++j) y[j] += c[j];
    }
  }
}

// y = gate * sigmoid(gate) * up.
void swiglu_block(const float* gate, const float* up, int64_t rows, int64_t columns, float* y, int64_t ldy) {
  for (int64_t row = 0; row < rows; ++row, gate += kBlockColumns, up += kBlockColumns, y += ldy) {
    float out[kBlockColumns];
    for (int j = 0; j < kBlockColumns; j += kLanes) {
      const F g = load(gate + j);
      const F silu = div(g, add(set1(1.0f), exp_vector(sub(set1(0.0f), g))));
      store(out + j, mul(silu, load(up + j)));
    }
    std::memcpy(y, out, columns * sizeof(float));
  }
}

}  // namespace

// The passes over a whole vocabulary that choosing a token takes. choose.cpp puts them together.
#pragma once

#include "isa/kernel_table.h"
#include "linear/products.h"

namespace {

// The largest of x[0..count), and whether all of them are finite.
bool largest_of(const float* x, int64_t count, float* largest) {
  F best = set1(-__builtin_inff()), zeros = set1(0.0f);  // zero times a number that is not finite is NaN, and stays so
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    const F a = load(x + i), b = load(x + i + kLanes), c = load(x + i + 2 * kLanes), d = load(x + i + 3 * kLanes);
    best = max(max(max(a, b), max(c, d)), best);
    zeros = fma(a, set1(0.0f), zeros);
    zeros = fma(b, set1(0.0f), zeros);
    zeros = fma(c, set1(0.0f), zeros);
    zeros = fma(d, set1(0.0f), zeros);
  }
  float lanes[kLanes], zero_of[kLanes];
  store(lanes, best);
  store(zero_of, zeros);
  float most = lanes[0], zero = 0.0f;
  for (int j = 0; j < kLanes; ++j) {
    most = lanes[j] > most ? lanes[j] : most;
    zero += zero_of[j];
  }
  for (; i < count; ++i) {
    most = x[i] > most ? x[i] : most;
    zero += x[i] * 0.0f;
  }
  *largest = most;
  return zero == 0.0f;
}

// The first place of `value`, which is one of x[0..count).
int64_t first_place(const float* x, int64_t count, float value) {
  int64_t block = 0;
  for (; block + 256 <= count; block += 256) {
    int32_t found = 0;
    for (int64_t i = 0; i < 256; ++i) found |= x[block + i] == value;
    if (found) break;
  }
  while (x[block] != value) ++block;
  return block;
}

// x becomes -inf where a bit of the mask is not set; bits past the last one do not matter.
void forbid(const uint32_t* mask, int64_t count, float* x) {
  const float never = -__builtin_inff();
  int64_t at = 0;
  for (; at + 32 <= count; at += 32) {
    const uint32_t word = *mask++;
    if (word == ~0u) continue;
    for (uint32_t i = 0; i < 32; ++i) x[at + i] = word >> i & 1 ? x[at + i] : never;
  }
  for (int64_t i = 0; at + i < count; ++i) x[at + i] = *mask >> i & 1 ? x[at + i] : never;
}

// e^x for x <= 0 with a relative error under 1e-14, 0 below -708, 1 exactly for 0; the same bits on every instruction
// set. Cody-Waite reduction, then the Taylor series, whose twelfth term is the first left out.
inline double exp_double(double x) {
  const double low = -708.0, magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const double clamped = x > low ? x : low;
  const double shifted = __builtin_fma(clamped, 1.4426950408889634, magic);
  const double n = shifted - magic;
  const double r = __builtin_fma(n, -2.3190468138462996e-17, __builtin_fma(n, -0.6931471805599453, clamped));
  double p = 1.0 / 39916800;
  p = __builtin_fma(p, r, 1.0 / 3628800);
  p = __builtin_fma(p, r, 1.0 / 362880);
  p = __builtin_fma(p, r, 1.0 / 40320);
  p = __builtin_fma(p, r, 1.0 / 5040);
  p = __builtin_fma(p, r, 1.0 / 720);
  p = __builtin_fma(p, r, 1.0 / 120);
  p = __builtin_fma(p, r, 1.0 / 24);
  p = __builtin_fma(p, r, 1.0 / 6);
  p = __builtin_fma(p, r, 0.5);
  p = __builtin_fma(p, r, 1.0);
  p = __builtin_fma(p, r, 1.0);
  uint64_t power, bits;  // the integer is in the low bits of `shifted`
  std::memcpy(&power, &shifted, 8);
  std::memcpy(&bits, &p, 8);
  bits += power << 52;
  double scaled;
  std::memcpy(&scaled, &bits, 8);
  return x < low ? 0.0 : scaled;
}

// The sum of up to kDrawBlock weights, those below `least` left out: in eight lanes, then by halves.
inline double block_sum(const double* weights, int64_t count, double least) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int j = 0; j < 8; ++j) lanes[j] += weights[i + j] < least ? 0.0 : weights[i + j];
  for (int j = 0; i + j < count; ++j) lanes[j] += weights[i + j] < least ? 0.0 : weights[i + j];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}
inline double block_peak(const double* weights, int64_t count) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int j = 0; j < 8; ++j) lanes[j] = weights[i + j] > lanes[j] ? weights[i + j] : lanes[j];
  for (int j = 0; i + j < count; ++j) lanes[j] = weights[i + j] > lanes[j] ? weights[i + j] : lanes[j];
  for (int j = 1; j < 8; ++j) lanes[0] = lanes[j] > lanes[0] ? lanes[j] : lanes[0];
  return lanes[0];
}

// weights[i] = exp((x[i] - largest) * inverse_temperature), with the sum and the largest of each block of them.
void weigh(const float* x, int64_t count, float largest, double inverse_temperature, double* weights, double* sums,
           double* peaks) {
  const double top = largest;
  for (int64_t at = 0; at < count; at += kDrawBlock) {
    const int64_t some = count - at < kDrawBlock ? count - at : kDrawBlock;
    for (int64_t i = 0; i < some; ++i)
      weights[at + i] = exp_double((static_cast<double>(x[at + i]) - top) * inverse_temperature);
    sums[at / kDrawBlock] = block_sum(weights + at, some, 0.0);
    peaks[at / kDrawBlock] = block_peak(weights + at, some);
  }
}

// The sum of each block of weights, those below `least` left out.
void sum_kept(const double* weights, int64_t count, double least, double* sums) {
  for (int64_t at = 0; at < count; at += kDrawBlock)
    sums[at / kDrawBlock] = block_sum(weights + at, count - at < kDrawBlock ? count - at : kDrawBlock, least);
}

}  // namespace

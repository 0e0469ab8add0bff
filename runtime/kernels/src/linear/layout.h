// The sizes of the storage types, in a file's rows and in packed column blocks (codes.h says what is where).
#pragma once

#include <cstdint>

#include "sapwood_kernels.h"

namespace {

constexpr int kBlockColumns = 32;

// kRowK, kRowBytes: values and bytes of one block of a stored row. kScaled: whether there are groups; then kSuperBytes
// and kHeaderBytes are the headers' sizes, kSubs and kSubK how many groups and values of k. kStep: bytes per value of
// k.
template <SwType kType_, int kRowK_, int kRowBytes_, bool kScaled_, int kSuperBytes_, int kSubs_, int kHeaderBytes_,
          int kSubK_, int kStep_>
struct Layout {
  static constexpr SwType kType = kType_;
  static constexpr int kRowK = kRowK_, kRowBytes = kRowBytes_;
  static constexpr bool kScaled = kScaled_;
  static constexpr int kSuperBytes = kSuperBytes_, kSubs = kSubs_, kHeaderBytes = kHeaderBytes_;
  static constexpr int kSubK = kSubK_, kStep = kStep_;
  static constexpr int kGroupK = kSubs * kSubK;  // k comes in multiples of this
  static constexpr int kSubBytes = kHeaderBytes + kSubK * kStep;
  static constexpr int kGroupBytes = kSuperBytes + kSubs * kSubBytes;
};

using LayoutF32 = Layout<SW_F32, 1, 4, false, 0, 1, 0, 1, 128>;
using LayoutF16 = Layout<SW_F16, 1, 2, false, 0, 1, 0, 1, 64>;
using LayoutBF16 = Layout<SW_BF16, 1, 2, false, 0, 1, 0, 1, 64>;
using LayoutQ4_0 = Layout<SW_Q4_0, 32, 18, true, 0, 1, 64, 32, 16>;
using LayoutQ4_1 = Layout<SW_Q4_1, 32, 20, true, 0, 1, 128, 32, 16>;
using LayoutQ5_0 = Layout<SW_Q5_0, 32, 22, true, 0, 1, 64, 32, 20>;
using LayoutQ5_1 = Layout<SW_Q5_1, 32, 24, true, 0, 1, 128, 32, 20>;
using LayoutQ8_0 = Layout<SW_Q8_0, 32, 34, true, 0, 1, 64, 32, 32>;
using LayoutQ4_K = Layout<SW_Q4_K, 256, 144, true, 128, 8, 64, 32, 16>;
using LayoutQ5_K = Layout<SW_Q5_K, 256, 176, true, 128, 8, 64, 32, 20>;
using LayoutQ6_K = Layout<SW_Q6_K, 256, 210, true, 64, 16, 32, 16, 24>;

// Calls use(LayoutX()) for a type known at run time. False for an unknown one.
template <class Use>
inline bool with_layout(int32_t type, Use use) {
  switch (type) {
    case SW_F32: use(LayoutF32()); return true;
    case SW_F16: use(LayoutF16()); return true;
    case SW_BF16: use(LayoutBF16()); return true;
    case SW_Q4_0: use(LayoutQ4_0()); return true;
    case SW_Q4_1: use(LayoutQ4_1()); return true;
    case SW_Q5_0: use(LayoutQ5_0()); return true;
    case SW_Q5_1: use(LayoutQ5_1()); return true;
    case SW_Q8_0: use(LayoutQ8_0()); return true;
    case SW_Q4_K: use(LayoutQ4_K()); return true;
    case SW_Q5_K: use(LayoutQ5_K()); return true;
    case SW_Q6_K: use(LayoutQ6_K()); return true;
    default: return false;
  }
}

inline int64_t column_blocks(int64_t n) { return (n + kBlockColumns - 1) / kBlockColumns; }

template <class Layout>
inline int64_t block_bytes(Layout, int64_t k) {
  return k / Layout::kGroupK * Layout::kGroupBytes;
}
}  // namespace

// Memory that calls reuse. It grows to what the largest step needed, and holds nothing from one call to the next.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include "attention/plan.h"
#include "isa/kernel_table.h"
#include "forward/team.h"

// Uninitialized floats, aligned to a cache line.
class Floats {
 public:
  Floats() = default;
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  ~Floats() { std::free(data_); }
  float* reserve(int64_t count) {
    if (count > count_) {
      std::free(data_);
      count_ = 0;
      const int64_t rounded = (count + count / 8 + 15) / 16 * 16;
      data_ = static_cast<float*>(std::aligned_alloc(64, rounded * sizeof(float)));
      if (data_ == nullptr) throw std::bad_alloc();
      count_ = rounded;
    }
    return data_;
  }

 private:
  float* data_ = nullptr;
  int64_t count_ = 0;
};

constexpr int64_t kProductRows = 384;  // rows of a column block's product that are held at one time

// What one thread works with.
struct alignas(64) ThreadScratch {
  float panel[kPanelFloats];
  float product[2][kProductRows * 32];
  float keys[kKeyBlock * kMaxHeadDim];
  float values[kKeyBlock * kMaxHeadDim];
  float scores[kRowsTogether * kKeyBlock];
  float queries[kScratchFloats];
  float states[2][kAttentionRows * (kMaxHeadDim + 16)];
  int64_t visible[kScratchFloats / 16];  // as many rows as there are queries of the smallest heads
  AttentionTile tiles[kAttentionRows];
};

struct SwWorkspace {
  explicit SwWorkspace(int count) : threads(count), scratch(count) {}
  int threads;
  Team team;
  std::vector<ThreadScratch> scratch;
  AttentionPlan plan;
  Floats x, normed, qkv, attended, inner, rotation, states, partials, sampling;
};

// What the call returns, or SW_NO_MEMORY where it could not get any.
template <class Call>
int32_t guarded(Call call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return SW_NO_MEMORY;
  }
}

// The functions that exist once for each instruction set, as a table of pointers, and the plain data that they take.
#pragma once

#include <cstdint>

#include "sapwood_kernels.h"

constexpr int kKeyBlock = 64;      // keys in a block; blocks begin at positions that are multiples of this
constexpr int kSegmentBlocks = 8;  // blocks in a segment
constexpr int kMaxHeadDim = 256;
constexpr int kAttentionRows = 96;                                // rows (a query times a head) in a tile, at most
constexpr int64_t kScratchFloats = kAttentionRows * kMaxHeadDim;  // of queries, for the tiles of an item
constexpr int kRowsTogether = 12;  // rows of a tile that go through a block of keys together, at most
constexpr int kDrawBlock = 128;    // tokens whose weights are summed up before they join the cumulative sum
constexpr int64_t kPanelFloats = (256 + 256) * 32;

// A softmax over some keys: the maximum of their scores, the sum of exp(score - maximum), and the values so weighted.
struct RowState {
  float* maximum;
  float* sum;
  float* values;  // [dim]
};

// States in a row each: values [dim], maximum, sum, padded to `stride` floats.
struct RowStates {
  float* base;
  int64_t stride;
  RowState row(int64_t r) const {
    return {base + r * stride + stride - 2, base + r * stride + stride - 1, base + r * stride};
  }
};

struct AttentionScratch {
  float* keys;    // [kKeyBlock * dim]
  float* values;  // [kKeyBlock * dim]
  float* scores;  // [kRowsTogether * kKeyBlock]
};

// Queries of one key-value head with keys in common.
struct AttentionTile {
  int32_t type;
  int64_t dim, rows;
  const float* queries;    // [rows, dim], scaled
  const int64_t* visible;  // [rows], ascending: how many first keys each row sees
  const int32_t* slots;    // of the keys, from position 0 on
  const void* keys;        // the pools, moved on to the head
  const void* values;
  int64_t slot_stride;    // numbers from a slot to the next
  RowStates part, total;  // of the segment under way, and of those before it
  AttentionScratch scratch;
};

// Keys and values that will be wanted soon, to be fetched between the products: `bytes` from the beginnings of so many
// slots on, which lie `stride` bytes apart.
struct UpcomingKeys {
  const int32_t* slots;
  int64_t count;
  const char* keys;
  const char* values;
  int64_t stride, bytes;
};

struct Kernels {
  const char* name;
  int tile_rows;    // rows of a register tile
  int direct_rows;  // up to so many rows no panel is made
  void (*linear_block)(const SwMatrix& w, int64_t block, const float* x, int64_t ldx, int64_t rows, float* c,
                       float* panel);
  void (*matrix_row)(const SwMatrix& w, int64_t row, float* out, float* panel);
  void (*rms_norm)(const float* x, const float* weight, int64_t width, float eps, float* y);
  void (*rotate)(float* x, const float* cosines, const float* sines, int64_t half);
  void (*store_numbers)(int32_t type, const float* from, int64_t count, void* to, int64_t start);
  void (*put_block)(const float* c, int64_t rows, int64_t columns, const float* bias, float* y, int64_t ldy);
  void (*add_block)(const float* c, int64_t rows, int64_t columns, float* y, int64_t ldy);
  void (*swiglu_block)(const float* gate, const float* up, int64_t rows, int64_t columns, float* y, int64_t ldy);
  void (*attend_block)(const AttentionTile& tile, int64_t block, const UpcomingKeys& next);
  void (*clear_row)(RowState state, int64_t dim);
  void (*merge_rows)(const RowStates& total, const RowStates& part, int64_t rows, int64_t dim);
  void (*finish_row)(RowState state, int64_t dim, float* out);
  void (*scale_query)(const float* from, float scale, int64_t dim, float* to);
  bool (*largest_of)(const float* x, int64_t count, float* largest);
  int64_t (*first_place)(const float* x, int64_t count, float value);
  void (*forbid)(const uint32_t* mask, int64_t count, float* x);
  void (*weigh)(const float* x, int64_t count, float largest, double inverse_temperature, double* weights, double* sums,
                double* peaks);
  void (*sum_kept)(const double* weights, int64_t count, double least, double* sums);
};

const Kernels* avx512_kernels();  // null where this library was built without it
const Kernels* avx2_kernels();
const Kernels* neon_kernels();
const Kernels* portable_kernels();

// The best of these that this machine runs, or the one that SAPWOOD_KERNEL_ISA names; null if that is not to be had.
const Kernels* kernels();

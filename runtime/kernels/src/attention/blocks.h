// Attention over blocks of keys aligned to absolute positions.
//
// Per query, whatever it is computed with: scores are chains of fused multiply-adds over the head's dimensions; each
// block of kKeyBlock keys updates an online softmax (running maximum, sum and weighted values), in order; after every
// kSegmentBlocks blocks the running state is merged into the query's total, in order. Which queries are computed
// together, and by whom, changes none of this.
#pragma once

#include "isa/kernel_table.h"
#include "linear/rowwise.h"

namespace {

template <class T>
struct Pool;
template <>
struct Pool<float> {
  static auto load8(const float* p) { return load8_f32(p); }
};
struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};
template <>
struct Pool<Half> {
  static auto load8(const Half* p) { return load8_f16(&p->bits); }
  static F load_vector(const Half* p) { return load_f16(&p->bits); }
};
template <>
struct Pool<BFloat> {
  static auto load8(const BFloat* p) { return load8_bf16(&p->bits); }
  static F load_vector(const BFloat* p) { return load_bf16(&p->bits); }
};

// Fetches what will be wanted next, keys and then values, a few lines at a time: memory takes no more at once. Few rows
// have them fetched while their own keys are transposed, many in the course of their products.
class Fetcher {
 public:
  explicit Fetcher(const UpcomingKeys& next)
      : next_(next), pool_(next.keys), slots_left_(2 * next.count), lines_(2 * next.count * ((next.bytes + 63) / 64)) {}
  // In a step of so many.
  void operator()(int64_t steps) {
    for (int64_t lines = (lines_ + steps - 1) / steps; lines > 0 && slots_left_ > 0; --lines) {
      prefetch_far(pool_ + next_.slots[slot_] * next_.stride + byte_);
      if ((byte_ += 64) < next_.bytes) continue;
      byte_ = 0, --slots_left_;
      if (++slot_ == next_.count) slot_ = 0, pool_ = next_.values;
    }
  }

 private:
  const UpcomingKeys& next_;
  const char* pool_;
  int64_t slots_left_, slot_ = 0, byte_ = 0;
  const int64_t lines_;
};

// One block's keys, transposed: keys[tile][dimension][kTileColumns]. Columns past `count` are zero. `beside` is called
// between the steps, with how many there are.
template <class T, class Beside>
void load_keys(const T* pool, const int32_t* slots, int64_t count, int64_t slot_stride, int64_t dim, float* keys,
               Beside beside) {
  alignas(64) static const T kZeros[256] = {};
  for (int64_t j = 0; j < count; j += 8) {
    const T* rows[8];
    for (int64_t i = 0; i < 8; ++i) rows[i] = j + i < count ? pool + slots[j + i] * slot_stride : kZeros;
    float* out = keys + j / kTileColumns * dim * kTileColumns + j % kTileColumns;
    for (int64_t d = 0; d < dim; d += 8) {
      beside((count + 7) / 8 * (dim / 8));
      transpose8([&](int i) { return Pool<T>::load8(rows[i] + d); }, out + d * kTileColumns, kTileColumns);
    }
  }
  for (int64_t j = (count + 7) / 8 * 8; j % kTileColumns; j += 8) {
    float* out = keys + j / kTileColumns * dim * kTileColumns + j % kTileColumns;
    for (int64_t d = 0; d < dim; ++d) std::memset(out + d * kTileColumns, 0, 8 * sizeof(float));
  }
}

// One block's values as float rows: in place where the pool has float32, else converted into `values`.
template <class T>
void load_values(const T* pool, const int32_t* slots, int64_t count, int64_t slot_stride, int64_t dim, float* values,
                 const float** rows) {
  for (int64_t j = 0; j < count; ++j) {
    const T* row = pool + slots[j] * slot_stride;
    if constexpr (std::is_same<T, float>::value) {
      rows[j] = row;
    } else {
      float* out = values + j * dim;
      for (int64_t d = 0; d < dim; d += kLanes) store(out + d, Pool<T>::load_vector(row + d));
      rows[j] = out;
    }
  }
}

inline void scale_row(float* row, float factor, int64_t dim) {
  for (int64_t d = 0; d < dim; d += kLanes) store(row + d, mul(load(row + d), set1(factor)));
}

// Turns the scores of rows [first, first + rows) into weights in place, and updates the rows' states: maximum, sum, and
// the scale of the values. `width` (a multiple of 32) columns from key `start` on; each row sees its first ones. The
// rows' reductions are independent of each other, so that they overlap.
inline void soften(const AttentionTile& t, int64_t first, int64_t rows, int64_t start, int64_t width) {
  constexpr int kPadded = (kRowsTogether + kLanes - 1) / kLanes * kLanes;
  alignas(64) float before[kPadded] = {}, after[kPadded] = {}, factors[kPadded];
  float* scores = t.scratch.scores;
  for (int64_t r = 0; r < rows; ++r, scores += kKeyBlock) {
    for (int64_t j = t.visible[first + r] - start; j < width; ++j) scores[j] = -__builtin_inff();
    F best[kVectors];
    for (int v = 0; v < kVectors; ++v) best[v] = load(scores + v * kLanes);
    for (int64_t j = kBlockColumns; j < width; j += kBlockColumns)
      for (int v = 0; v < kVectors; ++v) best[v] = max(best[v], load(scores + j + v * kLanes));
    const float most = max32(best);
    before[r] = *t.part.row(first + r).maximum;
    after[r] = most > before[r] ? most : before[r];
  }
  for (int64_t r = 0; r < kPadded; r += kLanes) store(factors + r, exp_vector(sub(load(before + r), load(after + r))));
  scores = t.scratch.scores;
  for (int64_t r = 0; r < rows; ++r, scores += kKeyBlock) {
    F sums[kVectors];
    for (int v = 0; v < kVectors; ++v) sums[v] = set1(0.0f);
    for (int64_t j = 0; j < width; j += kBlockColumns)
      for (int v = 0; v < kVectors; ++v) {
        const F weight = exp_vector(sub(load(scores + j + v * kLanes), set1(after[r])));
        store(scores + j + v * kLanes, weight);
        sums[v] = add(sums[v], weight);
      }
    const RowState state = t.part.row(first + r);
    const float factor = after[r] == before[r] ? 1.0f : factors[r];
    *state.sum = *state.sum * factor + sum32(sums);
    *state.maximum = after[r];
    if (factor != 1.0f) scale_row(state.values, factor, t.dim);
  }
}

// total += part, both states of a softmax over disjoint keys.
inline void merge_row(RowState total, RowState part, int64_t dim) {
  if (*part.sum == 0.0f && !(*part.maximum > -__builtin_inff())) return;  // it has seen no key
  if (*total.sum == 0.0f && !(*total.maximum > -__builtin_inff())) {
    *total.maximum = *part.maximum;
    *total.sum = *part.sum;
    std::memcpy(total.values, part.values, dim * sizeof(float));
    return;
  }
  const float maximum = *part.maximum > *total.maximum ? *part.maximum : *total.maximum;
  const float a = exp_scalar(*total.maximum - maximum), b = exp_scalar(*part.maximum - maximum);
  *total.maximum = maximum;
  *total.sum = *total.sum * a + *part.sum * b;
  for (int64_t d = 0; d < dim; d += kLanes)
    store(total.values + d, fma(load(part.values + d), set1(b), mul(load(total.values + d), set1(a))));
}

void clear_row(RowState state, int64_t dim) {
  *state.maximum = -__builtin_inff();
  *state.sum = 0.0f;
  std::memset(state.values, 0, dim * sizeof(float));
}

void merge_rows(const RowStates& total, const RowStates& part, int64_t rows, int64_t dim) {
  for (int64_t r = 0; r < rows; ++r) {
    merge_row(total.row(r), part.row(r), dim);
    clear_row(part.row(r), dim);
  }
}

// One block of keys goes into the states of the rows that see any of it: a few rows at a time, so that all that they
// work with stays in the first level of cache.
template <class T>
void attend_block_of(const AttentionTile& t, int64_t block, const UpcomingKeys& next) {
  const int64_t dim = t.dim, start = block * kKeyBlock;
  int64_t row = 0;  // rows are in order of position: the first ones may not see this block
  while (row < t.rows && t.visible[row] <= start) ++row;
  if (row == t.rows) return;
  const int64_t last_seen = t.visible[t.rows - 1] - start;
  const int64_t count = last_seen < kKeyBlock ? last_seen : kKeyBlock;
  const int64_t width = (count + kBlockColumns - 1) / kBlockColumns * kBlockColumns;
  const int64_t key_vectors = (count + kTileColumns - 1) / kTileColumns * kTileVectors;
  const float* value_rows[kKeyBlock];
  Fetcher fetch(next);
  const bool few = t.rows - row <= kRowsTogether;
  load_keys(static_cast<const T*>(t.keys), t.slots + start, count, t.slot_stride, dim, t.scratch.keys,
            [&](int64_t steps) {
              if (few) fetch(steps);
            });
  load_values(static_cast<const T*>(t.values), t.slots + start, count, t.slot_stride, dim, t.scratch.values,
              value_rows);
  const int64_t parts = (t.rows - row + kRowsTogether - 1) / kRowsTogether;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t rows = (t.rows - row + parts - part - 1) / (parts - part);
    const int64_t value_vectors = dim / kLanes, vectors = rows <= kWideRows ? kWideVectors : kTileVectors;
    const int64_t steps = parts * ((key_vectors + vectors - 1) / vectors + (value_vectors + vectors - 1) / vectors);
    for (int64_t v = 0; v < key_vectors; v += vectors) {
      fetch(steps);
      products(rows, t.queries + row * dim, dim, PanelRows{t.scratch.keys, dim * kTileColumns}.moved(v),
               key_vectors - v < vectors ? key_vectors - v : vectors, dim, t.scratch.scores + v * kLanes, kKeyBlock,
               true);
    }
    soften(t, row, rows, start, width);
    for (int64_t v = 0; v < value_vectors; v += vectors) {
      fetch(steps);
      products(rows, t.scratch.scores, kKeyBlock, ScatteredRows{value_rows, 0}.moved(v),
               value_vectors - v < vectors ? value_vectors - v : vectors, count, t.part.row(row).values + v * kLanes,
               t.part.stride, false);
    }
    row += rows;
  }
}

void attend_block(const AttentionTile& tile, int64_t block, const UpcomingKeys& next) {
  if (tile.type == SW_F32)
    attend_block_of<float>(tile, block, next);
  else if (tile.type == SW_F16)
    attend_block_of<Half>(tile, block, next);
  else
    attend_block_of<BFloat>(tile, block, next);
}

// out = values / sum. Adding zero makes a negative zero positive, so that keys that were masked leave no trace.
void finish_row(RowState state, int64_t dim, float* out) {
  const F inverse = set1(1.0f / *state.sum);
  for (int64_t d = 0; d < dim; d += kLanes) store(out + d, add(mul(load(state.values + d), inverse), set1(0.0f)));
}

void scale_query(const float* from, float scale, int64_t dim, float* to) {
  for (int64_t d = 0; d < dim; d += kLanes) store(to + d, mul(load(from + d), set1(scale)));
}

}  // namespace

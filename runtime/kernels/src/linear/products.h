// Matrix products over column blocks. Every output is one chain of fused multiply-adds in the order of k, whatever the
// number of rows or the tile, so its bits depend on its row and column only.
#pragma once

#include "linear/codes.h"

namespace {

constexpr int kVectors = kBlockColumns / kLanes;     // vectors in a column block
constexpr int kTileColumns = kTileVectors * kLanes;  // columns of a register tile
constexpr int kWideRows = 3;                         // up to so many rows,
constexpr int kWideVectors = 2 * kTileVectors;       // tiles are this wide
// Values of k in a dequantized panel, about. Few rows soon want the next panel, so that it should stay in the first
// level of cache; many rows pay for each return to the products' sums.
constexpr int kPanelK = 256;
constexpr int kSmallPanelK = 64;
constexpr int kFewRows = 64;

// Calls use.template operator()<0>() ... <COUNT - 1>().
template <int COUNT, class Use>
__attribute__((always_inline)) inline void for_each(Use&& use) {
  if constexpr (COUNT > 0) {
    for_each<COUNT - 1>(use);
    use(std::integral_constant<int, COUNT - 1>());
  }
}

// Weights that are read once come from memory, whose latency this hides better than the machine's own guessing does.
constexpr int64_t kFetchAhead = 2560;  // bytes
template <int BYTES>
inline void fetch_ahead(const uint8_t* block) {
  for (int64_t line = 0; line < BYTES; line += 64) prefetch(block + kFetchAhead + line);
}

// --- few rows: weights are dequantized in registers --------------------------------------------------------------

// MR rows by the COUNT vectors FIRST, FIRST + STEP, … of a column block -> c[row * 32 + column].
template <class L, int MR, int COUNT, int FIRST, int STEP>
__attribute__((noinline)) void direct_tile(const float* x, int64_t ldx, const uint8_t* block, int64_t k, float* c) {
  F acc[MR][COUNT];
  for_each<MR>([&](auto m) { for_each<COUNT>([&](auto i) { acc[m][i] = set1(0.0f); }); });
  auto step = [&](const F* w, int64_t at) __attribute__((always_inline)) {
    for_each<MR>([&](auto m) {
      const F input = set1(x[m * ldx + at]);
      for_each<COUNT>([&](auto i) { acc[m][i] = fma(input, w[i], acc[m][i]); });
    });
  };
  if constexpr (L::kScaled) {
    for (int64_t at = 0; at < k; at += L::kGroupK) {
      const uint8_t* super = block;
      block += L::kSuperBytes;
      for (int sub = 0; sub < L::kSubs; ++sub) {
        Scale scales[COUNT];
        for_each<COUNT>([&](auto i) { scales[i] = Code<L>::template scale<FIRST + i * STEP>(block, super); });
        const uint8_t* codes = block + L::kHeaderBytes;
        const int64_t base = at + sub * L::kSubK;
        fetch_ahead<L::kSubBytes>(block);
        for (int64_t i = 0; i < L::kSubK; ++i) {
          F w[COUNT];
          for_each<COUNT>([&](auto j) {
            w[j] = fma(scales[j].scale, Code<L>::template code<FIRST + j * STEP>(codes), scales[j].offset);
          });
          step(w, base + i);
          codes += L::kStep;
        }
        block += L::kSubBytes;
      }
    }
  } else {
    for (int64_t at = 0; at < k; ++at) {
      F w[COUNT];
      if constexpr (L::kStep >= 64) fetch_ahead<L::kStep>(block);
      for_each<COUNT>([&](auto j) { w[j] = Code<L>::template code<FIRST + j * STEP>(block); });
      step(w, at);
      block += L::kStep;
    }
  }
  for_each<MR>([&](auto m) {
    for_each<COUNT>([&](auto i) { store(c + m * kBlockColumns + (FIRST + i * STEP) * kLanes, acc[m][i]); });
  });
}

// A column block in as many passes as its accumulators need. Vectors J and J + kVectors / 2 share their code bytes.
template <class L, int MR>
inline void direct_block(const float* x, int64_t ldx, const uint8_t* block, int64_t k, float* c) {
  constexpr int kRegisters = kTileVectors * kTileRows;  // accumulators that fit
  if constexpr (MR * kVectors <= kRegisters || kVectors <= kTileVectors) {
    direct_tile<L, MR, kVectors, 0, 1>(x, ldx, block, k, c);
  } else if constexpr (kVectors == 4) {
    direct_tile<L, MR, 2, 0, 2>(x, ldx, block, k, c);
    direct_tile<L, MR, 2, 1, 2>(x, ldx, block, k, c);
  } else {
    direct_tile<L, MR, 4, 0, 2>(x, ldx, block, k, c);
    direct_tile<L, MR, 4, 1, 2>(x, ldx, block, k, c);
  }
}

template <class L, int MR = 1>
inline void direct_rows(int rows, const float* x, int64_t ldx, const uint8_t* block, int64_t k, float* c) {
  if (rows == MR) {
    direct_block<L, MR>(x, ldx, block, k, c);
  } else if constexpr (MR < kDirectRows) {
    direct_rows<L, MR + 1>(rows, x, ldx, block, k, c);
  }
}

// --- many rows: a panel of weights, dequantized once --------------------------------------------------------------

// The weights of k in [from, to) of a column block -> panel[tile][k - from][kTileColumns]. `from` starts a group.
template <class L>
void dequantize_panel(const uint8_t* block, int64_t from, int64_t to, float* panel) {
  const int64_t count = to - from;
  auto put = [&](int64_t at, const F* w) __attribute__((always_inline)) {
    for_each<kVectors>([&](auto j) {
      store(panel + (j / kTileVectors * count + at) * kTileColumns + j % kTileVectors * kLanes, w[j]);
    });
  };
  if constexpr (L::kScaled) {
    block += from / L::kGroupK * L::kGroupBytes;
    const int64_t ahead = count / L::kGroupK * L::kGroupBytes;  // the next panel arrives while this one is multiplied
    for (int64_t at = 0; at < count; at += L::kGroupK) {
      for (int64_t line = 0; line < L::kGroupBytes; line += 64) prefetch(block + ahead + line);
      const uint8_t* super = block;
      block += L::kSuperBytes;
      for (int sub = 0; sub < L::kSubs; ++sub) {
        Scale scales[kVectors];
        for_each<kVectors>([&](auto j) { scales[j] = Code<L>::template scale<j>(block, super); });
        const uint8_t* codes = block + L::kHeaderBytes;
        for (int64_t i = 0; i < L::kSubK; ++i) {
          F w[kVectors];
          for_each<kVectors>(
              [&](auto j) { w[j] = fma(scales[j].scale, Code<L>::template code<j>(codes), scales[j].offset); });
          put(at + sub * L::kSubK + i, w);
          codes += L::kStep;
        }
        block += L::kSubBytes;
      }
    }
  } else {
    block += from * L::kStep;
    for (int64_t at = 0; at < count; ++at) {
      F w[kVectors];
      for_each<kVectors>([&](auto j) { w[j] = Code<L>::template code<j>(block); });
      put(at, w);
      block += L::kStep;
    }
  }
}

// Where a register tile finds vector `i` of its weights of one k: in a panel of tiles (attention's keys too), or in
// rows of their own (attention's values).
struct PanelRows {
  const float* base;
  int64_t tile_stride;
  const float* at(int64_t k, int i) const {
    return base + i / kTileVectors * tile_stride + k * kTileColumns + i % kTileVectors * kLanes;
  }
  PanelRows moved(int64_t vectors) const { return {base + vectors / kTileVectors * tile_stride, tile_stride}; }
};
struct ScatteredRows {
  const float* const* rows;
  int64_t column;
  const float* at(int64_t k, int i) const { return rows[k] + column + i * kLanes; }
  ScatteredRows moved(int64_t vectors) const { return {rows, column + vectors * kLanes}; }
};

// c[MR, VECTORS * kLanes] += x[MR, count] w[count, ...]; `fresh` starts from zero instead of c.
template <int MR, int VECTORS, class Rows>
__attribute__((noinline)) void tile(const float* x, int64_t ldx, Rows w, int64_t count, float* c, int64_t ldc,
                                    bool fresh) {
  F acc[MR][VECTORS];
  if (fresh) {
    for_each<MR>([&](auto m) { for_each<VECTORS>([&](auto i) { acc[m][i] = set1(0.0f); }); });
  } else {
    for_each<MR>([&](auto m) { for_each<VECTORS>([&](auto i) { acc[m][i] = load(c + m * ldc + i * kLanes); }); });
  }
#pragma GCC unroll 8
  for (int64_t k = 0; k < count; ++k) {
    if constexpr (MR < VECTORS) {
      F inputs[MR];
      for_each<MR>([&](auto m) { inputs[m] = set1(x[m * ldx + k]); });
      for_each<VECTORS>([&](auto i) {
        const F weights = load(w.at(k, i));
        for_each<MR>([&](auto m) { acc[m][i] = fma(inputs[m], weights, acc[m][i]); });
      });
    } else {
      F weights[VECTORS];
      for_each<VECTORS>([&](auto i) { weights[i] = load(w.at(k, i)); });
      for_each<MR>([&](auto m) {
        const F input = set1(x[m * ldx + k]);
        for_each<VECTORS>([&](auto i) { acc[m][i] = fma(input, weights[i], acc[m][i]); });
      });
    }
  }
  for_each<MR>([&](auto m) { for_each<VECTORS>([&](auto i) { store(c + m * ldc + i * kLanes, acc[m][i]); }); });
}

template <int MAX_ROWS, int VECTORS, class Rows, int MR = 1>
inline void tile_of(int64_t rows, const float* x, int64_t ldx, Rows w, int64_t count, float* c, int64_t ldc,
                    bool fresh) {
  if (rows == MR) {
    tile<MR, VECTORS>(x, ldx, w, count, c, ldc, fresh);
  } else if constexpr (MR < MAX_ROWS) {
    tile_of<MAX_ROWS, VECTORS, Rows, MR + 1>(rows, x, ldx, w, count, c, ldc, fresh);
  }
}

// All rows by one tile's columns, the rows dealt out evenly so that no tile is much smaller than the others.
template <int VECTORS, class Rows>
inline void tile_column(int64_t rows, const float* x, int64_t ldx, Rows w, int64_t count, float* c, int64_t ldc,
                        bool fresh) {
  int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (int64_t row = 0; row < rows; --tiles) {
    const int64_t some = (rows - row + tiles - 1) / tiles;
    tile_of<kTileRows, VECTORS>(some, x + row * ldx, ldx, w, count, c + row * ldc, ldc, fresh);
    row += some;
  }
}

// All rows by `vectors` vectors of columns. Few rows take wide tiles, or there would be too few sums at a time to keep
// the multipliers busy.
template <class Rows>
inline void products(int64_t rows, const float* x, int64_t ldx, Rows w, int64_t vectors, int64_t count, float* c,
                     int64_t ldc, bool fresh) {
  int64_t v = 0;
  if (rows <= kWideRows)
    for (; v + kWideVectors <= vectors; v += kWideVectors)
      tile_of<kWideRows, kWideVectors>(rows, x, ldx, w.moved(v), count, c + v * kLanes, ldc, fresh);
  for (; v + kTileVectors <= vectors; v += kTileVectors)
    tile_column<kTileVectors>(rows, x, ldx, w.moved(v), count, c + v * kLanes, ldc, fresh);
  for (; v < vectors; ++v) tile_column<1>(rows, x, ldx, w.moved(v), count, c + v * kLanes, ldc, fresh);
}

// --- one column block ---------------------------------------------------------------------------------------------

// x[rows, k] by column block `number` -> c[rows][32]. panel: room for (kPanelK + 256) * 32 floats.
template <class L>
void block_product(const SwMatrix& w, int64_t number, const float* x, int64_t ldx, int64_t rows, float* c,
                   float* panel) {
  const uint8_t* block = w.data + number * block_bytes(L(), w.k);
  if (rows <= kDirectRows) {
    direct_rows<L>(static_cast<int>(rows), x, ldx, block, w.k, c);
    return;
  }
  const int64_t target = rows <= kFewRows ? kSmallPanelK : kPanelK;
  const int64_t parts = (w.k + target - 1) / target;
  const int64_t unit = L::kScaled ? L::kGroupK : 1;
  const int64_t part = ((w.k + parts - 1) / parts + unit - 1) / unit * unit;
  for (int64_t from = 0; from < w.k; from += part) {
    const int64_t to = from + part < w.k ? from + part : w.k;
    dequantize_panel<L>(block, from, to, panel);
    products(rows, x + from, ldx, PanelRows{panel, (to - from) * kTileColumns}, kVectors, to - from, c, kBlockColumns,
             from == 0);
  }
}

void linear_block(const SwMatrix& w, int64_t number, const float* x, int64_t ldx, int64_t rows, float* c,
                  float* panel) {
  with_layout(w.type, [&](auto layout) { block_product<decltype(layout)>(w, number, x, ldx, rows, c, panel); });
}

// One row of the matrix (an output feature), dequantized. panel as above.
void matrix_row(const SwMatrix& w, int64_t row, float* out, float* panel) {
  with_layout(w.type, [&](auto layout) {
    using L = decltype(layout);
    const uint8_t* block = w.data + row / kBlockColumns * block_bytes(L(), w.k);
    const int64_t column = row % kBlockColumns;
    const int64_t part = kPanelK / L::kGroupK > 0 ? kPanelK / L::kGroupK * L::kGroupK : L::kGroupK;
    for (int64_t from = 0; from < w.k; from += part) {
      const int64_t count = (from + part < w.k ? part : w.k - from);
      dequantize_panel<L>(block, from, from + count, panel);
      const float* values = panel + column / kTileColumns * count * kTileColumns + column % kTileColumns;
      for (int64_t k = 0; k < count; ++k) out[from + k] = values[k * kTileColumns];
    }
  });
}

}  // namespace

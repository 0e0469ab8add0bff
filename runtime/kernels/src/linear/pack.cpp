// Puts stored rows (GGUF blocks or plain numbers) into column blocks. The layout is described in codes.h; the stored
// blocks in ggml's ggml-common.h and ggml-quants.c.
#include <cstring>

#include "linear/layout.h"
#include "forward/workspace.h"

namespace {

// How one stored block of a row (kRowK values) goes to column `column` of a packed group of as many k.
// `codes(k)` of a group: kStep bytes of all 32 columns.
inline void put_nibble(uint8_t* codes, int column, int value) {
  codes[column & 15] |= static_cast<uint8_t>(column < 16 ? value : value << 4);
}
inline void put_bit(uint8_t* plane, int column, int value) {
  plane[column >> 3] |= static_cast<uint8_t>(value << (column & 7));
}
inline void put_pair(uint8_t* plane, int column, int value) {
  plane[column & 7] |= static_cast<uint8_t>(value << (column >> 3 << 1));
}
inline void put_half(uint8_t* header, int column, const uint8_t* from) { std::memcpy(header + 2 * column, from, 2); }

inline int low_high(const uint8_t* bytes, int k) { return k < 16 ? bytes[k] & 15 : bytes[k - 16] >> 4; }

template <class L>
struct Packer;

template <>
struct Packer<LayoutQ4_0> {
  static void put(const uint8_t* from, int column, uint8_t* group) {
    put_half(group, column, from);
    for (int k = 0; k < 32; ++k) put_nibble(group + 64 + k * 16, column, low_high(from + 2, k));
  }
};
template <>
struct Packer<LayoutQ4_1> {
  static void put(const uint8_t* from, int column, uint8_t* group) {
    put_half(group, column, from);
    put_half(group + 64, column, from + 2);
    for (int k = 0; k < 32; ++k) put_nibble(group + 128 + k * 16, column, low_high(from + 4, k));
  }
};
inline void put_five(const uint8_t* high, const uint8_t* low, int column, uint8_t* codes) {
  for (int k = 0; k < 32; ++k, codes += 20) {
    put_nibble(codes, column, low_high(low, k));
    put_bit(codes + 16, column, high[k >> 3] >> (k & 7) & 1);
  }
}
template <>
struct Packer<LayoutQ5_0> {
  static void put(const uint8_t* from, int column, uint8_t* group) {
    put_half(group, column, from);
    put_five(from + 2, from + 6, column, group + 64);
  }
};
template <>
struct Packer<LayoutQ5_1> {
  static void put(const uint8_t* from, int column, uint8_t* group) {
    put_half(group, column, from);
    put_half(group + 64, column, from + 2);
    put_five(from + 4, from + 8, column, group + 128);
  }
};
template <>
struct Packer<LayoutQ8_0> {
  static void put(const uint8_t* from, int column, uint8_t* group) {
    put_half(group, column, from);
    for (int k = 0; k < 32; ++k) group[64 + k * 32 + column] = from[2 + k];
  }
};

// The scale and minimum of group `sub`, six bits each of twelve bytes.
inline int k_scale(const uint8_t* packed, int sub) {
  return sub < 4 ? packed[sub] & 63 : (packed[sub + 4] & 15) | (packed[sub - 4] >> 6 << 4);
}
inline int k_minimum(const uint8_t* packed, int sub) {
  return sub < 4 ? packed[sub + 4] & 63 : packed[sub + 4] >> 4 | (packed[sub] >> 6 << 4);
}
template <class L>
inline uint8_t* put_k_headers(const uint8_t* from, int column, int sub, uint8_t* super) {
  uint8_t* header = super + L::kSuperBytes + sub * L::kSubBytes;
  header[column] = static_cast<uint8_t>(k_scale(from + 4, sub));
  header[32 + column] = static_cast<uint8_t>(k_minimum(from + 4, sub));
  return header + L::kHeaderBytes;
}
template <>
struct Packer<LayoutQ4_K> {
  static void put(const uint8_t* from, int column, uint8_t* super) {
    put_half(super, column, from);
    put_half(super + 64, column, from + 2);
    for (int sub = 0; sub < 8; ++sub) {
      uint8_t* codes = put_k_headers<LayoutQ4_K>(from, column, sub, super);
      const uint8_t* low = from + 16 + sub / 2 * 32;
      for (int k = 0; k < 32; ++k) put_nibble(codes + k * 16, column, sub % 2 ? low[k] >> 4 : low[k] & 15);
    }
  }
};
template <>
struct Packer<LayoutQ5_K> {
  static void put(const uint8_t* from, int column, uint8_t* super) {
    put_half(super, column, from);
    put_half(super + 64, column, from + 2);
    for (int sub = 0; sub < 8; ++sub) {
      uint8_t* codes = put_k_headers<LayoutQ5_K>(from, column, sub, super);
      const uint8_t* high = from + 16;
      const uint8_t* low = from + 48 + sub / 2 * 32;
      for (int k = 0; k < 32; ++k) {
        put_nibble(codes + k * 20, column, sub % 2 ? low[k] >> 4 : low[k] & 15);
        put_bit(codes + k * 20 + 16, column, high[k] >> sub & 1);
      }
    }
  }
};
template <>
struct Packer<LayoutQ6_K> {
  // Stored: low halves [2][64 bytes], bits five and six [2][32 bytes], 16 scales, d. In each half of 128 values, value
  // 32 * q + i has its low bits in byte i + 32 * (q % 2), half q / 2, and its high bits in pair q of byte i.
  static void put(const uint8_t* from, int column, uint8_t* super) {
    put_half(super, column, from + 208);
    for (int k = 0; k < 256; ++k) {
      const int half = k / 128, quarter = k % 128 / 32, i = k % 32;
      const uint8_t low = from[half * 64 + quarter % 2 * 32 + i];
      uint8_t* group = super + 64 + k / 16 * LayoutQ6_K::kSubBytes;
      uint8_t* codes = group + 32 + k % 16 * 24;
      group[column] = from[192 + k / 16];
      put_nibble(codes, column, quarter < 2 ? low & 15 : low >> 4);
      put_pair(codes + 16, column, from[128 + half * 32 + i] >> (2 * quarter) & 3);
    }
  }
};

template <class L>
void pack_block(const uint8_t* const* rows, int columns, int64_t k, uint8_t* out) {
  std::memset(out, 0, k / L::kGroupK * L::kGroupBytes);
  for (int column = 0; column < columns; ++column) {
    const uint8_t* from = rows[column];
    if constexpr (L::kScaled) {
      for (int64_t g = 0; g < k / L::kGroupK; ++g)
        Packer<L>::put(from + g * L::kRowBytes, column, out + g * L::kGroupBytes);
    } else {
      for (int64_t i = 0; i < k; ++i)
        std::memcpy(out + i * L::kStep + column * L::kRowBytes, from + i * L::kRowBytes, L::kRowBytes);
    }
  }
}

}  // namespace

SW_API int64_t sw_row_bytes(int32_t type, int64_t k) {
  int64_t bytes = -1;
  with_layout(type, [&](auto layout) {
    using L = decltype(layout);
    if (k > 0 && k % L::kRowK == 0) bytes = k / L::kRowK * L::kRowBytes;
  });
  return bytes;
}

SW_API int64_t sw_packed_bytes(int32_t type, int64_t n, int64_t k) {
  int64_t bytes = -1;
  with_layout(type, [&](auto layout) {
    using L = decltype(layout);
    if (k > 0 && n > 0 && k % L::kGroupK == 0) bytes = column_blocks(n) * block_bytes(layout, k);
  });
  return bytes;
}

SW_API void sw_pack(SwWorkspace* workspace, int32_t type, int64_t n, int64_t k, const uint8_t* const* rows,
                    uint8_t* out) {
  workspace->team.run(workspace->threads, [&](Worker& worker) {
    worker.phase(column_blocks(n), [&](int64_t block) {
      with_layout(type, [&](auto layout) {
        using L = decltype(layout);
        const int64_t first = block * kBlockColumns;
        const int columns = static_cast<int>(n - first < kBlockColumns ? n - first : kBlockColumns);
        pack_block<L>(rows + first, columns, k, out + block * block_bytes(layout, k));
      });
    });
  });
}

// Weights as they lie in memory, and the rows they are multiplied with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider {

constexpr int kPanel = 32;       // output columns that are stored and computed together: two times sixteen lanes
constexpr int kGroup = 32;       // inputs that share one activation scale
constexpr int kBlock = 256;      // inputs unpacked at a time: their 8 KiB stay in the first-level cache
constexpr int kMostTile = 12;    // rows whose integer sums fit the registers together
constexpr int kQuad = 4;         // inputs of one dot-product instruction

// How a kind of weight stores its numbers.  A panel holds, one K-block after the other:
//
//   half-scaled kinds   8 x [ 32 scales fp16 | 32 minima fp16 (if any) | low plane | high plane ]
//   six-bit kinds       [ 32 d fp16 | 32 dmin fp16 | 8 x 32 six-bit scales and minima ] 8 x [ low | high ]
//   signed kinds        [ 32 d fp16 ] 8 x [ 2 x 32 int8 scales | low | high ]
//   float kinds         inputs x 32 numbers
//
// No plane is wider than in the file: a panel of a block takes exactly 32 times the file's bytes.
enum class Scales : std::uint8_t { half, six_bit, signed_byte };

template <Scales scales_, bool has_minimum_, int low_bits_, int high_bits_, int zero_>
struct QuantizedKind {
  static constexpr Scales scales = scales_;
  static constexpr bool has_minimum = has_minimum_;
  static constexpr int low_bits = low_bits_;    // 4 or 8
  static constexpr int high_bits = high_bits_;  // 0, 1 or 2
  static constexpr int zero = zero_;            // the stored number that means 0; kinds with a minimum have none
  static constexpr int scale_group = scales == Scales::signed_byte ? 16 : 32;
  static constexpr bool has_header = scales != Scales::half;
  static constexpr std::size_t low_bytes = std::size_t{kGroup} * kPanel * low_bits / 8;
  static constexpr std::size_t high_bytes = std::size_t{kGroup} * kPanel * high_bits / 8;
  static constexpr std::size_t header_bytes =
      scales == Scales::six_bit ? 2 * 2 * kPanel + 12 * kPanel : scales == Scales::signed_byte ? 2 * kPanel : 0;
  static constexpr std::size_t group_scale_bytes =
      scales == Scales::half ? 2 * kPanel * (has_minimum ? 2 : 1) : scales == Scales::signed_byte ? 2 * kPanel : 0;
  static constexpr std::size_t group_bytes = group_scale_bytes + low_bytes + high_bytes;
  static constexpr std::size_t block_bytes = header_bytes + group_bytes * (kBlock / kGroup);
};

using Q4_0 = QuantizedKind<Scales::half, false, 4, 0, 8>;
using Q4_1 = QuantizedKind<Scales::half, true, 4, 0, 0>;
using Q5_0 = QuantizedKind<Scales::half, false, 4, 1, 16>;
using Q5_1 = QuantizedKind<Scales::half, true, 4, 1, 0>;
using Q8_0 = QuantizedKind<Scales::half, false, 8, 0, 128>;
using Q4_K = QuantizedKind<Scales::six_bit, true, 4, 0, 0>;
using Q5_K = QuantizedKind<Scales::six_bit, true, 4, 1, 0>;
using Q6_K = QuantizedKind<Scales::signed_byte, false, 4, 2, 32>;

enum class Kind : std::uint8_t { q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, f32, f16, bf16 };
constexpr int kKinds = 11;

// What the rest of the program asks of a kind; `file_block_*` describe the block of a GGUF file.
struct KindFacts {
  const char* name;
  bool quantized;
  int file_block_inputs;
  int file_block_bytes;
};
const KindFacts& facts(Kind kind);

// Bytes of one packed panel.
std::size_t panel_bytes(Kind kind, int inputs);

// One weight matrix, prepacked; the memory belongs to someone else.
struct Packed {
  Kind kind = Kind::f32;
  int inputs = 0;
  int outputs = 0;  // as in the model; the last panel is filled up with zeros
  std::size_t panel_stride = 0;
  const std::uint8_t* data = nullptr;

  [[gnu::always_inline]] int panels() const { return (outputs + kPanel - 1) / kPanel; }
};

// (Inline functions of headers that several instruction sets share must be inlined: a copy compiled for one of them
// could otherwise be linked into the others.)

// Rows of a pass cut into tiles of at most kMostTile, as equal as can be.
struct Tiles {
  int rows = 0;
  int count = 0;

  [[gnu::always_inline]] explicit Tiles(int rows_) : rows(rows_), count((rows_ + kMostTile - 1) / kMostTile) {}
  [[gnu::always_inline]] int size(int tile) const { return rows / count + (tile < rows % count ? 1 : 0); }
  [[gnu::always_inline]] int first(int tile) const {
    const int extra = rows % count;
    return rows / count * tile + (tile < extra ? tile : extra);
  }
  // The tile of a row.
  [[gnu::always_inline]] int of(int row) const {
    const int small = rows / count, extra = rows % count, large = (small + 1) * extra;
    return row < large ? row / (small + 1) : extra + (row - large) / small;
  }
};

// The rows of a pass, as the linear kernels read them.  Within a tile of m rows, number i of the rows is next to
// number i of the next row:
//
//   quads   [inputs / 4][m]   int32 of four int8      values  [inputs][m]      fp32, for float kinds
//   scales  [inputs / 32][m]  fp32                    sums    [inputs / 16][m] int32, of the int8
//   scaled_sums [inputs / 32][m] fp32: scale times sum
//
// A scale comes from 32 numbers of one row alone, so a row's numbers do not depend on its neighbours.
struct Activations {
  int inputs = 0;
  bool quantized = true;
  std::int32_t* quads = nullptr;
  float* scales = nullptr;
  std::int32_t* sums = nullptr;
  float* scaled_sums = nullptr;
  float* values = nullptr;
};

}  // namespace outrider

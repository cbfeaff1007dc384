// Weights as they lie in memory, and the rows they are multiplied with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace outrider {

constexpr int kPanel = 32;       // output columns that are stored and computed together: two times sixteen lanes
constexpr int kGroup = 32;       // inputs that share one activation scale
constexpr int kBlock = 256;      // inputs unpacked at a time: their 8 KiB stay in the first-level cache
constexpr int kMostTile = 12;    // rows whose integer sums fit the registers together
constexpr int kUsualTile = 8;    // rows of a tile where there are several: the fastest
constexpr int kTilesAtOnce = 12; // rows that one piece of work takes stay in the caches with their sums
constexpr int kQuad = 4;         // inputs of one dot-product instruction

// How a kind of weight stores its numbers.  A panel holds, one K-block after the other:
//
//   half-scaled kinds   8 x [ 32 scales fp16 | 32 minima fp16 (if any) | low plane | high plane ]
//   six-bit kinds       [ 32 d fp16 | 32 dmin fp16 | 8 x 32 six-bit scales and minima ] 8 x [ low | high ]
//   signed kinds        [ 32 d fp16 ] 8 x [ 2 x 32 int8 scales | six-bit planes ]
//   float kinds         inputs x 32 numbers
//
// Four-bit planes hold two vectors of 64 numbers in one of 64 bytes, six-bit planes four vectors in three: six bits of three
// of them, and two of the fourth's in what is left of each.  Six-bit scales take 8 x 32 bytes with the lower two bits of the
// minima above them, then 4 x 32 with the upper four bits of the minima of groups g and g + 4.
//
// No plane is wider than in the file: a panel of a block takes exactly 32 times the file's bytes.
enum class Scales : std::uint8_t { half, six_bit, signed_byte };

// The zero points there are: where an integer sum begins depends on the rows and on the zero point alone.
struct ZeroPoint {
  int zero;
  int scale_group;
};
constexpr ZeroPoint kZeros[] = {{8, 32}, {16, 32}, {128, 32}, {32, 16}};
constexpr int kZeroPoints = 4;

constexpr int zero_point(int zero, int scale_group) {
  for (int i = 0; i < kZeroPoints; ++i) {
    if (kZeros[i].zero == zero && kZeros[i].scale_group == scale_group) return i;
  }
  return -1;
}

template <Scales scales_, bool has_minimum_, int low_bits_, int high_bits_, int zero_>
struct QuantizedKind {
  static constexpr Scales scales = scales_;
  static constexpr bool has_minimum = has_minimum_;
  static constexpr int low_bits = low_bits_;    // 4 or 8
  static constexpr int high_bits = high_bits_;  // 0, 1 or 2
  static constexpr int zero = zero_;            // the stored number that means 0; kinds with a minimum have none
  static constexpr int scale_group = scales == Scales::signed_byte ? 16 : 32;
  // Which of the zero points below, or -1 for a kind with a minimum.
  static constexpr int zero_number() { return has_minimum ? -1 : zero_point(zero, scale_group); }
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
  int zero_number;
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

// Rows of a pass cut into tiles, as equal as can be: one if they all fit it, else such as are multiplied fastest.
struct Tiles {
  int rows = 0, count = 0, small = 0, larger = 0;  // the first `larger` tiles have small + 1 rows

  [[gnu::always_inline]] explicit Tiles(int rows_)
      : rows(rows_),
        count(rows_ <= kMostTile ? 1 : (rows_ + kUsualTile - 1) / kUsualTile),
        small(rows_ / count),
        larger(rows_ % count) {}
  [[gnu::always_inline]] int size(int tile) const { return small + (tile < larger ? 1 : 0); }
  [[gnu::always_inline]] int first(int tile) const { return small * tile + (tile < larger ? tile : larger); }
};

// Some tiles that lie side by side, and their rows.
struct TileRange {
  int first, last;  // tiles
  int row, rows;

  [[gnu::always_inline]] TileRange(const Tiles& tiles, int number)
      : first(number * kTilesAtOnce),
        last(first + kTilesAtOnce < tiles.count ? first + kTilesAtOnce : tiles.count),
        row(tiles.first(first)),
        rows(tiles.first(last) - row) {}
  [[gnu::always_inline]] static int count(const Tiles& tiles) { return (tiles.count + kTilesAtOnce - 1) / kTilesAtOnce; }
};

// Where a row lies among tiles.
struct Place {
  int first, size, at;  // first row and rows of its tile, and its number there

  [[gnu::always_inline]] Place(int first_, int size_, int at_) : first(first_), size(size_), at(at_) {}
  [[gnu::always_inline]] Place(const Tiles& tiles, int row) {
    const int edge = (tiles.small + 1) * tiles.larger;
    const int tile = row < edge ? row / (tiles.small + 1) : tiles.larger + (row - edge) / tiles.small;
    first = tiles.first(tile), size = tiles.size(tile), at = row - first;
  }
};

// The rows of a pass, as the linear kernels read them.  Within a tile of m rows, number i of the rows is next to
// number i of the next row:
//
//   quads   [inputs / 4][m]   int32 of four int8      values  [inputs][m]      fp32, for float kinds
//   scales  [inputs / 32][m]  fp32                    scaled_sums [inputs / 32][m] fp32: scale times sum of the int8
//   starts  [inputs / 32 or 16][m] int32, for each zero point: minus the zero point times the sum of the int8
//
// A scale comes from 32 numbers of one row alone, so a row's numbers do not depend on its neighbours.
struct Activations {
  int inputs = 0;
  bool quantized = true;
  std::int32_t* quads = nullptr;
  float* scales = nullptr;
  float* scaled_sums = nullptr;
  std::int32_t* starts[kZeroPoints] = {};
  float* values = nullptr;
};

}  // namespace outrider

// Weights times rows, for one instruction set.
//
// A block of 256 inputs x 32 outputs is unpacked once, to bytes with an fp32 scale (and minimum) per group, and then
// multiplied with every tile of rows.  The order of all roundings is fixed by the row and the column alone:
//
//   for each group of 32 inputs, rising:   t = float(integer dot product) * weight scale, of the one scale group, or
//                                          t = fma(float(second dot product), second scale, t), of two
//                                          sum = fma(t, row scale, sum)
//                                          sum = fma(-row scale * row sum, weight minimum, sum)   if it has a minimum
//
// so a row has the same bits in any company, and on any instruction set.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "packed.h"

namespace outrider {

struct alignas(64) Unpacked {
  std::uint8_t bytes[kBlock * kPanel];                // [quad][half of the panel][16 outputs][4 inputs]
  float scales[kBlock / 16 * kPanel];                 // [scale group][32]
  float minima[kBlock / kGroup * kPanel];             // [group][32]
};

struct alignas(64) UnpackedFloat {
  float values[kBlock / 4 * kPanel];                  // [input][32]
};
constexpr int kFloatBlock = kBlock / 4;

template <class L>
struct Linear {
  using Float = typename L::Float;
  using Int = typename L::Int;
  using Quad = typename L::Quad;

  // ---- unpacking -------------------------------------------------------------------------------------------------

  static constexpr int kScales = kBlock / 16 * kPanel;  // of a block, where sixteen inputs share one
  static constexpr int kMinima = kBlock / kGroup * kPanel;

  // The scales of a block's groups, and its minima: what is subtracted.
  template <class K>
  static void unpack_scales(const std::uint8_t* block, int groups, float* scales, float* minima) {
    constexpr int parts = kGroup / K::scale_group;
    if constexpr (K::scales == Scales::six_bit) {
      alignas(64) std::uint8_t codes[2][kBlock / kGroup * kPanel];
      unpack_six_bit(block + 4 * kPanel, codes[0], codes[1]);
      scale_bytes(block, codes[0], groups, scales);
      scale_bytes(block + 2 * kPanel, codes[1], groups, minima);
      return;
    }
    const std::uint8_t* group = block + K::header_bytes;
    for (int g = 0; g < groups; ++g, group += K::group_bytes, scales += parts * kPanel) {
      for (int i = 0; i < parts * kPanel; i += 16) {
        if constexpr (K::scales == Scales::half) {
          L::store(scales + i, L::from_half(reinterpret_cast<const std::uint16_t*>(group) + i));
        } else {
          const Float d = L::from_half(reinterpret_cast<const std::uint16_t*>(block) + i % kPanel);
          L::store(scales + i, L::mul(d, L::to_float(L::from_signed_bytes(reinterpret_cast<const std::int8_t*>(group) + i))));
        }
        if constexpr (K::has_minimum) {
          const auto* halves = reinterpret_cast<const std::uint16_t*>(group) + kPanel;
          L::store(minima + g * kPanel + i, L::sub(L::zero(), L::from_half(halves + i)));
        }
      }
    }
  }

  // Six-bit scales and minima of eight groups, to bytes.
  static void unpack_six_bit(const std::uint8_t* packed, std::uint8_t* scales, std::uint8_t* minima) {
    const Int six = L::set_int(0x3f3f3f3f), upper = L::set_int(0x3c3c3c3c), lower = L::set_int(0x03030303);
    for (int i = 0; i < 2; ++i) {
      const Int first = L::load_int(packed + 64 * i), second = L::load_int(packed + 128 + 64 * i);
      const Int nibbles = L::load_int(packed + 256 + 64 * i);
      L::store_int(scales + 64 * i, L::bits_and(first, six));
      L::store_int(scales + 128 + 64 * i, L::bits_and(second, six));
      L::store_int(minima + 64 * i, L::merge(L::template shift_right<6>(first), lower,
                                             L::bits_and(L::template shift_left<2>(nibbles), upper)));
      L::store_int(minima + 128 + 64 * i, L::merge(L::template shift_right<6>(second), lower,
                                                   L::bits_and(L::template shift_right<2>(nibbles), upper)));
    }
  }

  static void scale_bytes(const std::uint8_t* header, const std::uint8_t* codes, int groups, float* to) {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(header);
    const Float low = L::from_half(halves), high = L::from_half(halves + 16);
    for (int at = 0; at < groups * kPanel; at += kPanel) {
      L::store(to + at, L::mul(low, L::to_float(L::from_bytes(codes + at))));
      L::store(to + at + 16, L::mul(high, L::to_float(L::from_bytes(codes + at + 16))));
    }
  }

  // The codes of two quads of inputs: [quad][half of the panel], each 16 outputs x 4 inputs.
  template <class K>
  static void unpack_pair(const std::uint8_t* planes, int pair, Int (&out)[4]) {
    if constexpr (K::low_bits == 8) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) out[i] = L::load_int(planes + 64 * (4 * pair + i));
      return;
    }
    if constexpr (K::high_bits == 2) {  // three vectors hold six bits of a number each, and two of the fourth's
      const Int six = L::set_int(0x3f3f3f3f);
      const Int a = L::load_int(planes + 192 * pair), b = L::load_int(planes + 192 * pair + 64),
                c = L::load_int(planes + 192 * pair + 128);
      out[0] = L::bits_and(a, six), out[1] = L::bits_and(b, six), out[2] = L::bits_and(c, six);
      const Int lowest = L::bits_and(L::template shift_right<6>(a), L::set_int(0x03030303));
      const Int lower = L::merge(L::template shift_right<4>(b), L::set_int(0x0c0c0c0c), lowest);
      out[3] = L::merge(L::template shift_right<2>(c), L::set_int(0x30303030), lower);
      return;
    }
    const std::uint8_t* high = planes + K::low_bytes;
    const Int nibble = L::set_int(0x0f0f0f0f);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const Int both = L::load_int(planes + 64 * (2 * pair + half));
      out[half] = L::bits_and(both, nibble);
      out[2 + half] = L::bits_and(L::template shift_right<4>(both), nibble);
    }
    if constexpr (K::high_bits == 1) {
      std::uint64_t bits[4];
      std::memcpy(bits, high + 32 * pair, sizeof bits);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) out[i] = L::add_fifth_bit(out[i], bits[i]);
    }
  }

  static constexpr int kPairs = kGroup * kPanel / 256;

  template <class K>
  static void unpack(const std::uint8_t* block, int groups, Unpacked& to) {
    unpack_scales<K>(block, groups, to.scales, to.minima);
    const std::uint8_t* group = block + K::header_bytes;
    for (int g = 0; g < groups; ++g, group += K::group_bytes) {
#pragma GCC unroll 4
      for (int pair = 0; pair < kPairs; ++pair) {
        Int out[4];
        unpack_pair<K>(group + K::group_scale_bytes, pair, out);
        for (int i = 0; i < 4; ++i) L::store_int(to.bytes + g * kGroup * kPanel + 64 * (4 * pair + i), out[i]);
      }
    }
  }

  // ---- multiplying -----------------------------------------------------------------------------------------------

  // Where a block is, so that what comes after it is fetched while it is multiplied: far ahead into the second cache; into
  // the first a little ahead, or all of the next block where blocks are unpacked at once.  The fetches are spread evenly, for
  // the core can wait for no more than a dozen lines at once.
  struct Ahead {
    const std::uint8_t* here;
    int step;  // bytes
    int near;  // bytes ahead, into the first cache

    static constexpr int far = 12288;

    void fetch() {
      for (int i = 0; i < step; i += 64) {
        __builtin_prefetch(here + far + i, 0, 2);
        __builtin_prefetch(here + near + i, 0, 3);
      }
      here += step;
    }
  };

  // The two steps of the order of roundings that the top of this file promises.
  [[gnu::always_inline]] static Float scaled(int part, Int dot, Float scale, const float* aside) {
    const Float exact = L::to_float(dot);
    return part ? L::fma(exact, scale, L::load(aside)) : L::mul(exact, scale);
  }

  template <bool has_minimum>
  [[gnu::always_inline]] static Float add(Float sum, Float scaled, float row_scale, float scaled_sum, Float minimum) {
    sum = L::fma(scaled, L::set(row_scale), sum);
    if constexpr (has_minimum) sum = L::negative_fma(L::set(scaled_sum), minimum, sum);
    return sum;
  }

  // The running sums of a tile: in registers where they fit them beside the dot products.
  template <int rows, int parts, bool has_minimum, bool in_registers>
  struct Sums {
    float* memory;
    Float held[in_registers ? rows : 1][2];
    alignas(64) float aside[parts > 1 ? rows * kPanel : kPanel];  // all but the last part of a group

    [[gnu::always_inline]] explicit Sums(float* sums) : memory(sums) {
      if constexpr (in_registers) {
#pragma GCC unroll 12
        for (int m = 0; m < rows; ++m) {
          held[m][0] = L::load(memory + m * kPanel);
          held[m][1] = L::load(memory + m * kPanel + 16);
        }
      }
    }

    [[gnu::always_inline]] void take(int part, Int dot, int m, int half, Float scale, float row_scale, float scaled_sum,
                                     Float minimum) {
      const int at = m * kPanel + 16 * half;
      const Float part_sum = scaled(part, dot, scale, aside + at);
      if (part + 1 < parts) {
        L::store(aside + at, part_sum);
      } else if constexpr (in_registers) {
        held[m][half] = add<has_minimum>(held[m][half], part_sum, row_scale, scaled_sum, minimum);
      } else {
        L::store(memory + at, add<has_minimum>(L::load(memory + at), part_sum, row_scale, scaled_sum, minimum));
      }
    }

    [[gnu::always_inline]] void store() {
      if constexpr (in_registers) {
#pragma GCC unroll 12
        for (int m = 0; m < rows; ++m) {
          L::store(memory + m * kPanel, held[m][0]);
          L::store(memory + m * kPanel + 16, held[m][1]);
        }
      }
    }
  };

  // Kinds differ here only in how many inputs share a scale, and in whether there is a minimum.
  template <int rows, int scale_group, bool has_minimum>
  static void multiply(const Unpacked& weights, int groups, const std::int32_t* quads, const float* row_scales,
                       const std::int32_t* starts, const float* scaled_sums, float* sums, Ahead ahead) {
    constexpr int parts = kGroup / scale_group, quads_per_part = scale_group / kQuad;
    constexpr bool in_registers = rows <= 5;
    // Few rows wait for each other's results, so they are summed in several chains; integers add up the same.
    constexpr int chains = rows == 1 ? 4 : rows <= 3 ? 2 : 1;
    Sums<rows, parts, has_minimum, in_registers> running(sums);
    const std::uint8_t* bytes = weights.bytes;
    const float* scales = weights.scales;
    const float* minima = weights.minima;
    for (int g = 0; g < groups; ++g) {
#pragma GCC unroll 2
      for (int part = 0; part < parts; ++part) {
        L::keep_order();
        Int dots[chains][rows][2];
#pragma GCC unroll 4
        for (int c = 0; c < chains; ++c) {
#pragma GCC unroll 12
          for (int m = 0; m < rows; ++m) {
            if (has_minimum || c) {
              dots[c][m][0] = L::fresh_zero(), dots[c][m][1] = L::fresh_zero();
            } else {
              dots[c][m][0] = dots[c][m][1] = L::set_quad(L::broadcast(starts + m));
            }
          }
        }
        starts += rows;
#pragma GCC unroll 1
        for (int q = 0; q < quads_per_part; q += chains) {
          ahead.fetch();
#pragma GCC unroll 4
          for (int c = 0; c < chains; ++c) {
            const Int low = L::load_int(bytes), high = L::load_int(bytes + 64);
            bytes += 128;
#pragma GCC unroll 12
            for (int m = 0; m < rows; ++m) {
              const Quad a = L::broadcast(quads + m);
              dots[c][m][0] = L::dot(dots[c][m][0], low, a);
              dots[c][m][1] = L::dot(dots[c][m][1], high, a);
            }
            quads += rows;
          }
        }
#pragma GCC unroll 12
        for (int m = 0; m < rows; ++m) {
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            Int dot = dots[0][m][half];
#pragma GCC unroll 4
            for (int c = 1; c < chains; ++c) dot = L::add_int(dot, dots[c][m][half]);
            const Float minimum = has_minimum ? L::load(minima + 16 * half) : L::zero();
            running.take(part, dot, m, half, L::load(scales + 16 * half), row_scales[m], scaled_sums[m], minimum);
          }
        }
        scales += kPanel;
      }
      minima += kPanel;
      row_scales += rows;
      scaled_sums += rows;
    }
    running.store();
  }

  // The same straight from the packed block, for so few rows that a trip through the cache would cost more than it saves.
  template <int rows, class K>
  static void multiply_packed(const std::uint8_t* block, int groups, const std::int32_t* quads, const float* row_scales,
                              const std::int32_t* starts, const float* scaled_sums, float* sums, Ahead ahead) {
    constexpr int parts = kGroup / K::scale_group, pairs = kPairs / parts;
    constexpr int chains = rows <= 2 ? 2 : 1;
    constexpr bool in_registers = rows <= 4;
    Sums<rows, parts, K::has_minimum, in_registers> running(sums);
    alignas(64) float all_scales[kBlock / K::scale_group * kPanel], all_minima[K::has_minimum ? kMinima : 16];
    unpack_scales<K>(block, groups, all_scales, all_minima);
    const float *scales = all_scales, *minima = all_minima;
    const std::uint8_t* group = block + K::header_bytes;
    for (int g = 0; g < groups; ++g) {
#pragma GCC unroll 2
      for (int part = 0; part < parts; ++part) {
        L::keep_order();
        Int dots[chains][rows][2];
#pragma GCC unroll 12
        for (int m = 0; m < rows; ++m) {
#pragma GCC unroll 2
          for (int half = 0; half < 2; ++half) {
            dots[0][m][half] = K::has_minimum ? L::fresh_zero() : L::set_quad(L::broadcast(starts + m));
            if constexpr (chains == 2) dots[1][m][half] = L::fresh_zero();
          }
        }
        starts += rows;
#pragma GCC unroll 1
        for (int pair = 0; pair < pairs; ++pair) {
          ahead.fetch();
          Int codes[4];
          unpack_pair<K>(group + K::group_scale_bytes, part * pairs + pair, codes);
#pragma GCC unroll 2
          for (int q = 0; q < 2; ++q) {
#pragma GCC unroll 12
            for (int m = 0; m < rows; ++m) {
              const Quad a = L::broadcast(quads + m);
              dots[q % chains][m][0] = L::dot(dots[q % chains][m][0], codes[2 * q], a);
              dots[q % chains][m][1] = L::dot(dots[q % chains][m][1], codes[2 * q + 1], a);
            }
            quads += rows;
          }
        }
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const Float scale = L::load(scales + 16 * half);
          const Float minimum = K::has_minimum ? L::load(minima + 16 * half) : L::zero();
#pragma GCC unroll 12
          for (int m = 0; m < rows; ++m) {
            Int dot = dots[0][m][half];
            if constexpr (chains == 2) dot = L::add_int(dot, dots[1][m][half]);
            running.take(part, dot, m, half, scale, row_scales[m], scaled_sums[m], minimum);
          }
        }
        scales += kPanel;
      }
      if constexpr (K::has_minimum) minima += kPanel;
      group += K::group_bytes;
      row_scales += rows;
      scaled_sums += rows;
    }
    running.store();
  }

  using Multiply = void (*)(const Unpacked&, int, const std::int32_t*, const float*, const std::int32_t*,
                            const float*, float*, Ahead);

  template <int scale_group, bool has_minimum, int... row>
  static Multiply pick(int rows, std::integer_sequence<int, row...>) {
    static constexpr Multiply table[] = {nullptr, multiply<row + 1, scale_group, has_minimum>...};
    return table[rows];
  }

  template <class K>
  static Multiply multiply_of(int rows) {
    return pick<K::scale_group, K::has_minimum>(rows, std::make_integer_sequence<int, kMostTile>());
  }

  template <class K, int... row>
  static auto pick_packed(int rows, std::integer_sequence<int, row...>) {
    static constexpr decltype(&multiply_packed<1, K>) table[] = {nullptr, multiply_packed<row + 1, K>...};
    return table[rows];
  }

  // One panel's outputs for the rows of some tiles: sums [rows][32].
  template <class K>
  static void panel(const Packed& weights, int number, const Activations& rows, const Tiles& tiles, const TileRange& range,
                    float* sums) {
    static thread_local Unpacked unpacked;
    const std::uint8_t* block = weights.data + weights.panel_stride * number;
    std::memset(sums, 0, sizeof(float) * kPanel * range.rows);
    const int all = weights.inputs / kGroup;
    for (int first = 0; first < all; first += kBlock / kGroup) {
      const int groups = std::min(kBlock / kGroup, all - first);
      const bool few = tiles.rows <= L::few_rows;
      if (!few) unpack<K>(block, groups, unpacked);
      for (int tile = range.first; tile < range.last; ++tile) {
        const int m = tiles.size(tile);
        const std::size_t row = tiles.first(tile), k = std::size_t(first) * kGroup, at = std::size_t(first) * m;
        const std::int32_t* starts = nullptr;
        if constexpr (!K::has_minimum) {
          starts = rows.starts[K::zero_number()] + row * (weights.inputs / K::scale_group) + k / K::scale_group * m;
        }
        const std::int32_t* quads = rows.quads + row * (weights.inputs / kQuad) + k / kQuad * m;
        const float* scales = rows.scales + row * all + at;
        const float* scaled_sums = rows.scaled_sums + row * all + at;
        const int pieces = few ? kPairs : kGroup / kQuad;
        const Ahead ahead{block, tile > range.first ? 0 : int(K::group_bytes) / pieces, few ? 2048 : int(K::block_bytes)};
        float* to = sums + (row - range.row) * kPanel;
        if (few) {
          pick_packed<K>(m, std::make_integer_sequence<int, L::few_rows>())(block, groups, quads, scales, starts,
                                                                         scaled_sums, to, ahead);
        } else {
          multiply_of<K>(m)(unpacked, groups, quads, scales, starts, scaled_sums, to, ahead);
        }
      }
      block += K::block_bytes;
    }
  }

  // ---- float weights ---------------------------------------------------------------------------------------------

  template <int rows>
  static void multiply_float(const UnpackedFloat& weights, int inputs, const float* values, float* sums) {
    Float held[rows][2];
    for (int m = 0; m < rows; ++m) {
      for (int half = 0; half < 2; ++half) held[m][half] = L::load(sums + m * kPanel + 16 * half);
    }
    for (int k = 0; k < inputs; ++k) {
      const Float low = L::load(weights.values + k * kPanel), high = L::load(weights.values + k * kPanel + 16);
#pragma GCC unroll 12
      for (int m = 0; m < rows; ++m) {
        const Float a = L::set(values[m]);
        held[m][0] = L::fma(low, a, held[m][0]);
        held[m][1] = L::fma(high, a, held[m][1]);
      }
      values += rows;
    }
    for (int m = 0; m < rows; ++m) {
      for (int half = 0; half < 2; ++half) L::store(sums + m * kPanel + 16 * half, held[m][half]);
    }
  }

  using MultiplyFloat = void (*)(const UnpackedFloat&, int, const float*, float*);

  template <int... row>
  static MultiplyFloat pick_float(int rows, std::integer_sequence<int, row...>) {
    static constexpr MultiplyFloat table[] = {nullptr, multiply_float<row + 1>...};
    return table[rows];
  }

  template <Kind kind>
  static void unpack_float(const std::uint8_t* from, int inputs, UnpackedFloat& to) {
    const int vectors = inputs * kPanel / 16;
    const auto* shorts = reinterpret_cast<const std::uint16_t*>(from);
    for (int i = 0; i < vectors; ++i) {
      Float value;
      if constexpr (kind == Kind::f32) {
        value = L::load(reinterpret_cast<const float*>(from) + 16 * i);
      } else if constexpr (kind == Kind::f16) {
        value = L::from_half(shorts + 16 * i);
      } else {
        value = L::from_brain(shorts + 16 * i);
      }
      L::store(to.values + 16 * i, value);
    }
  }

  template <Kind kind>
  static void float_panel(const Packed& weights, int number, const Activations& rows, const Tiles& tiles,
                          const TileRange& range, float* sums) {
    static thread_local UnpackedFloat unpacked;
    constexpr std::size_t width = kind == Kind::f32 ? 4 : 2;
    const std::uint8_t* block = weights.data + weights.panel_stride * number;
    std::memset(sums, 0, sizeof(float) * kPanel * range.rows);
    for (int first = 0; first < weights.inputs; first += kFloatBlock) {
      const int inputs = std::min(kFloatBlock, weights.inputs - first);
      unpack_float<kind>(block, inputs, unpacked);
      for (int tile = range.first; tile < range.last; ++tile) {
        const int m = tiles.size(tile);
        const std::size_t row = tiles.first(tile);
        pick_float(m, std::make_integer_sequence<int, kMostTile>())(unpacked, inputs, rows.values + row * weights.inputs + std::size_t(first) * m,
                             sums + (row - range.row) * kPanel);
      }
      block += width * kPanel * kFloatBlock;
    }
  }

  using Panel = void (*)(const Packed&, int, const Activations&, const Tiles&, const TileRange&, float*);

  static void run(const Packed& weights, int number, const Activations& rows, const Tiles& tiles, const TileRange& range,
                  float* sums) {
    static constexpr Panel table[kKinds] = {
        panel<Q4_0>, panel<Q4_1>, panel<Q5_0>, panel<Q5_1>, panel<Q8_0>, panel<Q4_K>, panel<Q5_K>, panel<Q6_K>,
        float_panel<Kind::f32>, float_panel<Kind::f16>, float_panel<Kind::bf16>};
    table[static_cast<int>(weights.kind)](weights, number, rows, tiles, range, sums);
  }
};

}  // namespace outrider

// Weights times rows, for one instruction set.
//
// A block of 256 inputs x 32 outputs is unpacked once, to bytes with an fp32 scale (and minimum) per group, and then
// multiplied with every tile of rows.  The order of all roundings is fixed by the row and the column alone:
//
//   for each scale group, inputs rising:   t = float(integer dot product) * row scale
//                                          sum = fma(t, weight scale, sum)
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

  struct ScaleAndMinimum {
    Float scale, minimum;
  };

  // Of sixteen outputs, for one scale group; the minimum is what is subtracted.
  template <class K>
  static ScaleAndMinimum scale_of(const std::uint8_t* header, const std::uint8_t* group, int g, int part, int half) {
    const int at = 16 * half;
    if constexpr (K::scales == Scales::half) {
      const auto* halves = reinterpret_cast<const std::uint16_t*>(group);
      if constexpr (K::has_minimum) return {L::from_half(halves + at), L::sub(L::zero(), L::from_half(halves + kPanel + at))};
      return {L::from_half(halves + at), L::zero()};
    } else if constexpr (K::scales == Scales::six_bit) {
      const auto* halves = reinterpret_cast<const std::uint16_t*>(header);
      const std::uint8_t* codes = header + 4 * kPanel;
      const Int both = L::from_bytes(codes + g * kPanel + at);
      const Int upper = L::from_bytes(codes + (8 + g / 2) * kPanel + at);
      const Int nibble = L::bits_and(g % 2 ? L::template shift_right<4>(upper) : upper, L::set_int(15));
      const Int minimum = L::bits_or(L::template shift_right<6>(both), L::template shift_left<2>(nibble));
      const Int scale = L::bits_and(both, L::set_int(63));
      return {L::mul(L::from_half(halves + at), L::to_float(scale)),
              L::mul(L::from_half(halves + kPanel + at), L::to_float(minimum))};
    } else {
      const Float d = L::from_half(reinterpret_cast<const std::uint16_t*>(header) + at);
      const Int code = L::from_signed_bytes(reinterpret_cast<const std::int8_t*>(group) + part * kPanel + at);
      return {L::mul(d, L::to_float(code)), L::zero()};
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
    } else if constexpr (K::high_bits == 2) {
      const Int two = L::load_int(high + 64 * pair), mask = L::set_int(0x30303030);
      out[0] = L::bits_or(out[0], L::bits_and(L::template shift_left<4>(two), mask));
      out[1] = L::bits_or(out[1], L::bits_and(L::template shift_left<2>(two), mask));
      out[2] = L::bits_or(out[2], L::bits_and(two, mask));
      out[3] = L::bits_or(out[3], L::bits_and(L::template shift_right<2>(two), mask));
    }
  }

  static constexpr int kPairs = kGroup * kPanel / 256;

  template <class K>
  static void unpack(const std::uint8_t* block, int groups, Unpacked& to) {
    constexpr int parts = kGroup / K::scale_group;
    const std::uint8_t* group = block + K::header_bytes;
    for (int g = 0; g < groups; ++g, group += K::group_bytes) {
      for (int part = 0; part < parts; ++part) {
        for (int half = 0; half < 2; ++half) {
          const ScaleAndMinimum found = scale_of<K>(block, group, g, part, half);
          L::store(to.scales + (g * parts + part) * kPanel + 16 * half, found.scale);
          if constexpr (K::has_minimum) L::store(to.minima + g * kPanel + 16 * half, found.minimum);
        }
      }
#pragma GCC unroll 4
      for (int pair = 0; pair < kPairs; ++pair) {
        Int out[4];
        unpack_pair<K>(group + K::group_scale_bytes, pair, out);
        for (int i = 0; i < 4; ++i) L::store_int(to.bytes + g * kGroup * kPanel + 64 * (4 * pair + i), out[i]);
      }
    }
  }

  // ---- multiplying -----------------------------------------------------------------------------------------------

  // Where a block is, so that what comes after it is fetched while it is multiplied: far ahead into the second cache, and
  // for one or two rows, which wait for memory all the time, a little ahead into the first.  The fetches are spread evenly,
  // for the core can wait for no more than a dozen lines at once.
  struct Ahead {
    const std::uint8_t* here;
    int step;  // bytes

    static constexpr int near = 2048, far = 12288;

    template <bool both>
    void fetch() {
      for (int i = 0; i < step; i += 64) {
        __builtin_prefetch(here + far + i, 0, 2);
        if constexpr (both) __builtin_prefetch(here + near + i, 0, 3);
      }
      here += step;
    }
  };

  // One scale group's share of a sum: the order of roundings that the top of this file promises.
  template <bool has_minimum>
  [[gnu::always_inline]] static Float take(Float sum, Int dot, float row_scale, Float scale, float scaled_sum, Float minimum) {
    sum = L::fma(L::mul(L::to_float(dot), L::set(row_scale)), scale, sum);
    if constexpr (has_minimum) sum = L::negative_fma(L::set(scaled_sum), minimum, sum);
    return sum;
  }

  // Kinds differ here only in how many inputs share a scale, and in whether there is a minimum.
  template <int rows, int scale_group, bool has_minimum>
  static void multiply(const Unpacked& weights, int groups, const std::int32_t* quads, const float* row_scales,
                       const std::int32_t* starts, const float* scaled_sums, float* sums, Ahead ahead) {
    constexpr int parts = kGroup / scale_group, quads_per_part = scale_group / kQuad;
    constexpr bool in_registers = rows <= 5;
    // Few rows wait for each other's results, so they are summed in several chains; integers add up the same.
    constexpr int chains = rows == 1 ? 4 : rows <= 3 ? 2 : 1;
    Float held[in_registers ? rows : 1][2];
    if constexpr (in_registers) {
#pragma GCC unroll 12
      for (int m = 0; m < rows; ++m) {
        held[m][0] = L::load(sums + m * kPanel);
        held[m][1] = L::load(sums + m * kPanel + 16);
      }
    }
    const std::uint8_t* bytes = weights.bytes;
    const float* scales = weights.scales;
    const float* minima = weights.minima;
    for (int g = 0; g < groups; ++g) {
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
          ahead.template fetch<false>();
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
            Float sum = in_registers ? held[in_registers ? m : 0][half] : L::load(sums + m * kPanel + 16 * half);
            const Float minimum = has_minimum ? L::load(minima + 16 * half) : L::zero();
            sum = take<has_minimum>(sum, dot, row_scales[m], L::load(scales + 16 * half), scaled_sums[m], minimum);
            if constexpr (in_registers) {
              held[m][half] = sum;
            } else {
              L::store(sums + m * kPanel + 16 * half, sum);
            }
          }
        }
        scales += kPanel;
      }
      minima += kPanel;
      row_scales += rows;
      scaled_sums += rows;
    }
    if constexpr (in_registers) {
#pragma GCC unroll 12
      for (int m = 0; m < rows; ++m) {
        L::store(sums + m * kPanel, held[m][0]);
        L::store(sums + m * kPanel + 16, held[m][1]);
      }
    }
  }

  // The same straight from the packed block, for so few rows that a trip through the cache would cost more than it saves.
  template <int rows, class K>
  static void multiply_packed(const std::uint8_t* block, int groups, const std::int32_t* quads, const float* row_scales,
                              const std::int32_t* starts, const float* scaled_sums, float* sums, Ahead ahead) {
    constexpr int parts = kGroup / K::scale_group, pairs = kPairs / parts;
    constexpr int chains = rows <= 2 ? 2 : 1;
    constexpr bool in_registers = rows <= 4;
    Float held[in_registers ? rows : 1][2];
    if constexpr (in_registers) {
#pragma GCC unroll 4
      for (int m = 0; m < rows; ++m) {
        held[m][0] = L::load(sums + m * kPanel);
        held[m][1] = L::load(sums + m * kPanel + 16);
      }
    }
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
          ahead.template fetch<true>();
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
          const ScaleAndMinimum found = scale_of<K>(block, group, g, part, half);
#pragma GCC unroll 12
          for (int m = 0; m < rows; ++m) {
            Int dot = dots[0][m][half];
            if constexpr (chains == 2) dot = L::add_int(dot, dots[1][m][half]);
            Float sum = in_registers ? held[in_registers ? m : 0][half] : L::load(sums + m * kPanel + 16 * half);
            sum = take<K::has_minimum>(sum, dot, row_scales[m], found.scale, scaled_sums[m], found.minimum);
            if constexpr (in_registers) {
              held[m][half] = sum;
            } else {
              L::store(sums + m * kPanel + 16 * half, sum);
            }
          }
        }
      }
      group += K::group_bytes;
      row_scales += rows;
      scaled_sums += rows;
    }
    if constexpr (in_registers) {
#pragma GCC unroll 4
      for (int m = 0; m < rows; ++m) {
        L::store(sums + m * kPanel, held[m][0]);
        L::store(sums + m * kPanel + 16, held[m][1]);
      }
    }
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

  // One panel's outputs for all rows: sums [rows][32].
  template <class K>
  static void panel(const Packed& weights, int number, const Activations& rows, const Tiles& tiles, float* sums) {
    static thread_local Unpacked unpacked;
    const std::uint8_t* block = weights.data + weights.panel_stride * number;
    std::memset(sums, 0, sizeof(float) * kPanel * tiles.rows);
    const int all = weights.inputs / kGroup;
    for (int first = 0; first < all; first += kBlock / kGroup) {
      const int groups = std::min(kBlock / kGroup, all - first);
      const bool few = tiles.rows <= L::few_rows;
      if (!few) unpack<K>(block, groups, unpacked);
      for (int tile = 0; tile < tiles.count; ++tile) {
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
        const Ahead ahead{block, tile ? 0 : int(K::group_bytes) / pieces};
        if (few) {
          pick_packed<K>(m, std::make_integer_sequence<int, L::few_rows>())(block, groups, quads, scales, starts,
                                                                         scaled_sums, sums + row * kPanel, ahead);
        } else {
          multiply_of<K>(m)(unpacked, groups, quads, scales, starts, scaled_sums, sums + row * kPanel, ahead);
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
  static void float_panel(const Packed& weights, int number, const Activations& rows, const Tiles& tiles, float* sums) {
    static thread_local UnpackedFloat unpacked;
    constexpr std::size_t width = kind == Kind::f32 ? 4 : 2;
    const std::uint8_t* block = weights.data + weights.panel_stride * number;
    std::memset(sums, 0, sizeof(float) * kPanel * tiles.rows);
    for (int first = 0; first < weights.inputs; first += kFloatBlock) {
      const int inputs = std::min(kFloatBlock, weights.inputs - first);
      unpack_float<kind>(block, inputs, unpacked);
      for (int tile = 0; tile < tiles.count; ++tile) {
        const int m = tiles.size(tile);
        const std::size_t row = tiles.first(tile);
        pick_float(m, std::make_integer_sequence<int, kMostTile>())(unpacked, inputs, rows.values + row * weights.inputs + std::size_t(first) * m,
                             sums + row * kPanel);
      }
      block += width * kPanel * kFloatBlock;
    }
  }

  using Panel = void (*)(const Packed&, int, const Activations&, const Tiles&, float*);

  static void run(const Packed& weights, int number, const Activations& rows, const Tiles& tiles, float* sums) {
    static constexpr Panel table[kKinds] = {
        panel<Q4_0>, panel<Q4_1>, panel<Q5_0>, panel<Q5_1>, panel<Q8_0>, panel<Q4_K>, panel<Q5_K>, panel<Q6_K>,
        float_panel<Kind::f32>, float_panel<Kind::f16>, float_panel<Kind::bf16>};
    table[static_cast<int>(weights.kind)](weights, number, rows, tiles, sums);
  }
};

}  // namespace outrider

// Everything that happens to a row between two linear layers, for one instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "half.h"
#include "packed.h"

namespace outrider {

template <class L>
struct Rows {
  using Float = typename L::Float;
  using Int = typename L::Int;

  // ---- functions -------------------------------------------------------------------------------------------------

  // e^x, within 2 ulp; below the least normal number it is the least normal number's neighbour or 0.
  static Float exponential(Float x) {
    const Float low = L::set(-87.0f), high = L::set(88.0f);
    const Float inside = L::min(L::max(x, low), high);
    const Int power = L::round(L::mul(inside, L::set(1.44269504f)));
    const Float n = L::to_float(power);
    Float r = L::negative_fma(n, L::set(0.693359375f), inside);
    r = L::negative_fma(n, L::set(-2.12194440e-4f), r);
    Float p = L::set(1.9875691500e-4f);
    p = L::fma(p, r, L::set(1.3981999507e-3f));
    p = L::fma(p, r, L::set(8.3334519073e-3f));
    p = L::fma(p, r, L::set(4.1665795894e-2f));
    p = L::fma(p, r, L::set(1.6666665459e-1f));
    p = L::fma(p, r, L::set(5.0000001201e-1f));
    p = L::add(L::fma(L::mul(p, r), r, r), L::set(1.0f));
    return L::as_float(L::add_int(L::as_int(p), L::template shift_left<23>(power)));
  }

  static Float silu(Float x) {
    return L::div(x, L::add(L::set(1.0f), exponential(L::sub(L::zero(), x))));
  }

  // The tanh form: x / (1 + e^(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
  static Float gelu(Float x) {
    const Float cubed = L::mul(L::mul(x, x), x);
    const Float u = L::mul(L::fma(cubed, L::set(0.044715f), x), L::set(0.7978845608f));
    return L::div(x, L::add(L::set(1.0f), exponential(L::mul(u, L::set(-2.0f)))));
  }

  // cap tanh(x / cap), tanh u = 1 - 2 / (1 + e^2u).  NaN stays NaN, and infinity becomes it, so that neither is lost.
  static Float capped(Float x, float cap) {
    const Float power = exponential(L::mul(x, L::set(2.0f / cap)));
    const Float tangent = L::sub(L::set(1.0f), L::div(L::set(2.0f), L::add(power, L::set(1.0f))));
    return L::fma(x, L::zero(), L::mul(tangent, L::set(cap)));
  }

  // ---- rows for the linear kernels ---------------------------------------------------------------------------------

  // Sixteen groups of 32 numbers, or fewer, become int8 with one scale each.  NaN and infinity make the scale NaN, so that
  // they are not lost.
  //
  //   from(i)   the numbers of group i          at(i)    where they go: {number of the group in its row, place of the row}
  template <class From, class At>
  static void quantize_groups(int count, From from, At at, const Activations& to) {
    Int sizes[16], sums[2][16];
    for (int i = 0; i < 16; ++i) sizes[i] = sums[0][i] = sums[1][i] = L::set_int(0);
    for (int i = 0; i < count; ++i) {
      // As whole numbers magnitudes are in order too, and NaN is the largest.
      sizes[i] = L::max_int(L::as_int(L::absolute(L::load(from(i)))), L::as_int(L::absolute(L::load(from(i) + 16))));
    }
    const Float largest = L::as_float(L::largest_each_int(sizes));
    const Float scale = L::fma(largest, L::zero(), L::div(largest, L::set(127.0f)));
    alignas(64) float inverses[16], scales[16], scaled_sums[16];
    L::store(inverses, L::min(L::div(L::set(127.0f), largest), L::set(3.0e38f)));
    L::store(scales, scale);
    const Float limit = L::set(127.0f), least = L::set(-127.0f);
    for (int i = 0; i < count; ++i) {
      alignas(64) std::int8_t bytes[kGroup];
      const Float inverse = L::set(inverses[i]);
      for (int half = 0; half < 2; ++half) {
        const Float scaled = L::mul(L::load(from(i) + 16 * half), inverse);
        sums[half][i] = L::round(L::min(L::max(scaled, least), limit));
        L::store_signed_bytes(bytes + 16 * half, sums[half][i]);
      }
      const auto [group, place] = at(i);
      std::int32_t* quads = to.quads + std::size_t(place.first) * (to.inputs / kQuad) +
                            std::size_t(group) * (kGroup / kQuad) * place.size + place.at;
      for (int q = 0; q < kGroup / kQuad; ++q) std::memcpy(quads + q * place.size, bytes + kQuad * q, kQuad);
    }
    alignas(64) std::int32_t halves[2][16];
    const Int low = L::sum_each_int(sums[0]), high = L::sum_each_int(sums[1]);
    L::store_int(halves[0], low), L::store_int(halves[1], high);
    L::store(scaled_sums, L::mul(scale, L::to_float(L::add_int(low, high))));
    for (int i = 0; i < count; ++i) {
      const auto [group, place] = at(i);
      const std::size_t one = std::size_t(place.first) * (to.inputs / kGroup) + std::size_t(group) * place.size + place.at;
      const std::size_t two = std::size_t(place.first) * (to.inputs / 16) + std::size_t(2 * group) * place.size + place.at;
      to.scales[one] = scales[i];
      to.scaled_sums[one] = scaled_sums[i];
      for (int zero = 0; zero < kZeroPoints; ++zero) {
        std::int32_t* starts = to.starts[zero];
        if (!starts) continue;
        if (kZeros[zero].scale_group == kGroup) {
          starts[one] = -kZeros[zero].zero * (halves[0][i] + halves[1][i]);
        } else {
          starts[two] = -kZeros[zero].zero * halves[0][i];
          starts[two + place.size] = -kZeros[zero].zero * halves[1][i];
        }
      }
    }
  }

  struct GroupAt {
    int group;
    Place place;
  };

  static void spread(const float* from, int first_input, int count, const Place& place, const Activations& to) {
    const int m = place.size;
    float* values = to.values + std::size_t(place.first) * to.inputs + std::size_t(first_input) * m + place.at;
    for (int i = 0; i < count; ++i) values[std::size_t(i) * m] = from[i];
  }

  // `count` numbers of a row, from input `first` on, in whichever forms the next layer reads.
  static void prepare(const float* from, int first, int count, const Place& place, const Activations& to) {
    if (to.quads) {
      for (int i = 0; i < count; i += 16 * kGroup) {
        quantize_groups(std::min(16, (count - i) / kGroup), [&](int g) { return from + i + g * kGroup; },
                        [&](int g) { return GroupAt{(first + i) / kGroup + g, place}; }, to);
      }
    }
    if (to.values) spread(from, first, count, place, to);
  }

  // 1 / sqrt(mean(x^2) + epsilon)
  static float norm_factor(const float* x, int width, float epsilon) {
    Float squares = L::zero();
    int i = 0;
    for (; i + 16 <= width; i += 16) squares = L::fma(L::load(x + i), L::load(x + i), squares);
    float total = L::sum(squares);
    for (; i < width; ++i) total += x[i] * x[i];
    return 1.0f / std::sqrt(total / float(width) + epsilon);
  }

  static void apply_norm(const float* x, const float* weight, float factor, int count, float* out) {
    int i = 0;
    for (; i + 16 <= count; i += 16) {
      L::store(out + i, L::mul(L::mul(L::load(x + i), L::set(factor)), L::load(weight + i)));
    }
    for (; i < count; ++i) out[i] = x[i] * factor * weight[i];
  }

  // ---- what happens to a panel's sums ------------------------------------------------------------------------------

  static void finish_store(const float* sums, const float* bias, float* to, std::size_t stride, int panel, int columns,
                           int rows) {
    for (int m = 0; m < rows; ++m) {
      const float* from = sums + m * kPanel;
      float* out = to + m * stride + std::size_t(panel) * kPanel;
      for (int i = 0; i < columns; ++i) out[i] = bias ? from[i] + bias[panel * kPanel + i] : from[i];
    }
  }

  static void finish_add(const float* sums, const float* bias, float* to, std::size_t stride, int panel, int columns,
                         int rows) {
    for (int m = 0; m < rows; ++m) {
      const float* from = sums + m * kPanel;
      float* out = to + m * stride + std::size_t(panel) * kPanel;
      for (int i = 0; i < columns; ++i) out[i] += bias ? from[i] + bias[panel * kPanel + i] : from[i];
    }
  }

  static void finish_gate(float* gate, const float* up, bool is_gelu, int panel, int columns, const Tiles& tiles,
                          const TileRange& range, const Activations& to) {
    Place place(tiles, 0);
    for (int tile = range.first; tile < range.last; ++tile) {
      place.first = tiles.first(tile), place.size = tiles.size(tile);
      float* rows = gate + (place.first - range.row) * kPanel;
      const float* other = up + (place.first - range.row) * kPanel;
      for (int i = 0; i < place.size * kPanel; i += 16) {
        const Float g = L::load(rows + i);
        L::store(rows + i, L::mul(is_gelu ? gelu(g) : silu(g), L::load(other + i)));
      }
      if (to.quads) {
        quantize_groups(place.size, [&](int m) { return rows + m * kPanel; },
                        [&](int m) { return GroupAt{panel, Place{place.first, place.size, m}}; }, to);
      }
      if (!to.values) continue;
      for (place.at = 0; place.at < place.size; ++place.at) spread(rows + place.at * kPanel, panel * kPanel, columns, place, to);
    }
  }

  // ---- quantising weights ------------------------------------------------------------------------------------------

  // The fp16 scale of 32 weights in four bits, -8 … 7: the largest is mapped to -8, or a little past it or short of it,
  // whichever leaves the smallest sum of squared errors.
  static std::uint16_t four_bit_scale(const float* x) {
    const Float low = L::load(x), high = L::load(x + 16);
    const float size = L::largest(L::max(L::absolute(low), L::absolute(high)));
    if (!(size > 0.0f)) return 0;
    float most = size;
    for (int i = 0; i < kGroup; ++i) {
      if (std::fabs(x[i]) == size) most = x[i];
    }
    std::uint16_t best = 0;
    float least_error = INFINITY;
    for (int step = -3; step <= 6; ++step) {
      const std::uint16_t scale = float_to_half(most / -(8.0f + 0.15f * float(step)));
      const float value = half_to_float(scale);
      if (value == 0.0f) continue;
      const Float inverse = L::set(1.0f / value), unit = L::set(value), bottom = L::set(-8.0f), top = L::set(7.0f);
      const auto error = [&](Float numbers) {
        const Float code = L::to_float(L::round(L::min(L::max(L::mul(numbers, inverse), bottom), top)));
        const Float rest = L::negative_fma(code, unit, numbers);
        return L::mul(rest, rest);
      };
      const float total = L::sum(L::add(error(low), error(high)));
      if (total < least_error) least_error = total, best = scale;
    }
    return best;
  }

  // ---- attention ---------------------------------------------------------------------------------------------------

  // Query heads that share a key head, one row.  The keys are walked by absolute position, and every sum starts at a
  // multiple of 16 positions, so the result depends on nothing but the row's own path.
  //
  //   query   [heads][width] fp32, times the scale    keys, values  [slots][width] fp16 of the key head
  //   slots   cache slot of each position, `oldest` … `newest`, indexed by position
  //   out     [heads][width] fp32                     scores        [heads][capacity] scratch
  //   cap     bound of the scores; 0 is none
  template <int heads>
  static void attend(const float* query, const std::uint16_t* keys, const std::uint16_t* values, int width,
                     const std::int32_t* slots, int oldest, int newest, float cap, float* scores, int capacity,
                     float* out) {
    constexpr int kValuesAhead = 16, together = heads >= 7 ? 2 : heads >= 4 ? 4 : 8;  // keys whose sums fit the registers
    const int start = oldest & ~15, count = newest - start + 1, padded = (count + 15) & ~15;
    Float dots[heads][16];
    for (int h = 0; h < heads; ++h) {
      for (int j = 0; j < 16; ++j) dots[h][j] = L::zero();
    }
    for (int base = start; base <= newest; base += 16) {
      for (int some = 0; some < 16 && base + some <= newest; some += together) {
        const std::uint16_t* key[together];
        for (int j = 0; j < together; ++j) {
          const int p = base + some + j;
          key[j] = keys + std::size_t(slots[std::clamp(p, oldest, newest)]) * width;  // what is out of range is not used
          const std::uint16_t* later = keys + std::size_t(slots[std::min(p + 16, newest)]) * width;
          for (int i = 0; i < width; i += kPanel) __builtin_prefetch(later + i);
        }
        Float sums[heads][together];
        for (int h = 0; h < heads; ++h) {
          for (int j = 0; j < together; ++j) sums[h][j] = L::zero();
        }
        for (int i = 0; i < width; i += 16) {
          Float k[together];
#pragma GCC unroll 8
          for (int j = 0; j < together; ++j) k[j] = L::from_half(key[j] + i);
#pragma GCC unroll 8
          for (int h = 0; h < heads; ++h) {
            const Float q = L::load(query + h * width + i);
#pragma GCC unroll 8
            for (int j = 0; j < together; ++j) sums[h][j] = L::fma(k[j], q, sums[h][j]);
          }
        }
        for (int h = 0; h < heads; ++h) {
          for (int j = 0; j < together; ++j) dots[h][some + j] = sums[h][j];
        }
      }
      for (int h = 0; h < heads; ++h) L::store(scores + h * capacity + base - start, L::sum_each(dots[h]));
    }
    float totals[heads];
    for (int h = 0; h < heads; ++h) totals[h] = softmax(scores + h * capacity, oldest - start, count, padded, cap);
    for (int i = 0; i < width; i += kPanel) {
      Float sums[heads][2];
      for (int h = 0; h < heads; ++h) sums[h][0] = sums[h][1] = L::zero();
      for (int p = oldest; p <= newest; ++p) {
        const std::uint16_t* value = values + std::size_t(slots[p]) * width + i;
        __builtin_prefetch(values + std::size_t(slots[std::min(p + kValuesAhead, newest)]) * width + i);
        const Float low = L::from_half(value), high = L::from_half(value + 16);
#pragma GCC unroll 8
        for (int h = 0; h < heads; ++h) {
          const Float share = L::set(scores[h * capacity + p - start]);
          sums[h][0] = L::fma(share, low, sums[h][0]);
          sums[h][1] = L::fma(share, high, sums[h][1]);
        }
      }
      for (int h = 0; h < heads; ++h) {
        const Float inverse = L::set(1.0f / totals[h]);
        L::store(out + h * width + i, L::mul(sums[h][0], inverse));
        L::store(out + h * width + i + 16, L::mul(sums[h][1], inverse));
      }
    }
  }

  static void soft_cap(float* x, int count, float cap) {
    int i = 0;
    for (; i + 16 <= count; i += 16) L::store(x + i, capped(L::load(x + i), cap));
    if (i < count) {
      alignas(64) float rest[16] = {};
      std::memcpy(rest, x + i, sizeof(float) * (count - i));
      L::store(rest, capped(L::load(rest), cap));
      std::memcpy(x + i, rest, sizeof(float) * (count - i));
    }
  }

  // Scores become e^(score - largest); returns their sum.  The first `skip` and what lies past `count` become 0.
  static float softmax(float* scores, int skip, int count, int padded, float cap) {
    constexpr float kNever = -3.0e38f;
    for (int i = 0; i < skip; ++i) scores[i] = kNever;
    for (int i = count; i < padded; ++i) scores[i] = kNever;
    if (cap > 0.0f) soft_cap(scores, padded, cap);
    Float most = L::set(kNever);
    for (int i = 0; i < padded; i += 16) most = L::max(most, L::load(scores + i));
    const Float largest = L::set(L::largest(most));
    Float total = L::zero();
    for (int i = 0; i < padded; i += 16) {
      Float share = exponential(L::sub(L::load(scores + i), largest));
      if (i == 0 && skip) {
        alignas(64) float lanes[16];
        L::store(lanes, share);
        std::memset(lanes, 0, sizeof(float) * skip);
        share = L::load(lanes);
      }
      if (i + 16 > count) share = L::first(share, count - i, 0.0f);
      L::store(scores + i, share);
      total = L::add(total, share);
    }
    return L::sum(total);
  }

  using Attend = void (*)(const float*, const std::uint16_t*, const std::uint16_t*, int, const std::int32_t*, int, int,
                          float, float*, int, float*);

  static void attend_heads(int heads, const float* query, const std::uint16_t* keys, const std::uint16_t* values,
                           int width, const std::int32_t* slots, int oldest, int newest, float cap, float* scores,
                           int capacity, float* out) {
    static constexpr Attend table[] = {nullptr,   attend<1>, attend<2>, attend<3>, attend<4>,
                                       attend<5>, attend<6>, attend<7>, attend<8>};
    constexpr int most = 8;
    for (int h = 0; h < heads; h += most) {
      const int some = std::min(most, heads - h);
      table[some](query + h * width, keys, values, width, slots, oldest, newest, cap, scores, capacity, out + h * width);
    }
  }

  static std::int32_t read(const std::uint8_t* from, std::size_t bytes) {
    Int seen[4] = {L::set_int(0), L::set_int(0), L::set_int(0), L::set_int(0)};
    for (std::size_t i = 0; i + 256 <= bytes; i += 256) {
      for (int j = 0; j < 4; ++j) seen[j] = L::bits_or(seen[j], L::load_int(from + i + 64 * j));
    }
    return L::sum_int(L::bits_or(L::bits_or(seen[0], seen[1]), L::bits_or(seen[2], seen[3])));
  }

  static void to_half(const float* from, int width, int padded, std::uint16_t* to) {
    int i = 0;
    for (; i + 16 <= width; i += 16) L::to_half(to + i, L::load(from + i));
    if (i < padded) {
      alignas(64) float rest[16] = {};
      std::memcpy(rest, from + i, sizeof(float) * std::max(0, width - i));
      for (; i < padded; i += 16) {
        L::to_half(to + i, L::load(rest));
        std::memset(rest, 0, sizeof rest);
      }
    }
  }
};

}  // namespace outrider

// The best of a row's scores, with or without keyed noise, for one instruction set.
//
// A token's score is logit / T - log E, E = -log1p(-u) > u, with u a function of (seed, position, token id): see
// sampling/noise.py, which is the specification.  So a token beats a threshold only if u < e^(logit / T - threshold), and
// the exact noise, two logarithms in double precision, is computed for the few that may.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels.h"
#include "rows_impl.h"

namespace outrider {

template <class L>
struct Sample {
  using Float = typename L::Float;
  using Int = typename L::Int;

  static constexpr float kMostNoise = 23.0f;  // -log(-log1p(-2^-33)) is 22.88

  // 64 words of noise for the token ids from `first` on, a multiple of 64; Philox4x32-10, one block for four tokens.
  static void words(const NoiseKey& key, std::uint32_t first, Int (&out)[4]) {
    alignas(64) std::int32_t blocks[16];
    for (int k = 0; k < 4; ++k) {
      for (int i = 0; i < 4; ++i) blocks[4 * k + i] = std::int32_t(first / 4 + 4 * i + k);
    }
    Int c0 = L::load_int(blocks), c1 = L::set_int(std::int32_t(key.position)), c2 = L::set_int(std::int32_t(key.choice)),
        c3 = L::set_int(std::int32_t(key.purpose));
    std::uint32_t k0 = std::uint32_t(key.seed), k1 = std::uint32_t(key.seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      Int high0, low0, high1, low1;
      L::multiply_wide(c0, 0xD2511F53u, high0, low0);
      L::multiply_wide(c2, 0xCD9E8D57u, high1, low1);
      c0 = L::bits_xor(L::bits_xor(high1, c1), L::set_int(std::int32_t(k0)));
      c2 = L::bits_xor(L::bits_xor(high0, c3), L::set_int(std::int32_t(k1)));
      c1 = low1, c3 = low0;
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
    L::interleave(out);
  }

  static float noise(std::uint32_t word) {
    return float(-std::log(-std::log1p(-(double(word) + 0.5) * 0x1p-32)));
  }

  // The `width` best scores, best first, equal ones by rising id.  `key` null: no noise.  Returns false if a logit is
  // NaN or plus infinity, or if all are minus infinity.
  static bool best(const float* logits, int vocabulary, float temperature, const NoiseKey* key, int width, Scored* found) {
    int count = 0;
    float threshold = -std::numeric_limits<float>::infinity();
    const auto insert = [&](float score, std::int32_t id) {
      if (count == width && !(score > found[width - 1].score)) return;
      int at = count < width ? count++ : width - 1;
      for (; at > 0 && found[at - 1].score < score; --at) found[at] = found[at - 1];
      found[at] = {score, id};
      if (count == width) threshold = found[width - 1].score;
    };
    const Float divisor = L::set(temperature);
    const Float infinity = L::set(std::numeric_limits<float>::infinity());
    alignas(64) float scores[16];
    alignas(64) std::uint32_t lanes[16];
    for (int first = 0; first < vocabulary; first += 64) {
      Float scaled[4];
      Float most = L::set(-std::numeric_limits<float>::infinity());
      for (int i = 0; i < 4; ++i) {
        const int left = vocabulary - first - 16 * i;
        if (left >= 16) {
          scaled[i] = L::load(logits + first + 16 * i);
        } else {
          for (int j = 0; j < 16; ++j) scores[j] = j < left ? logits[first + 16 * i + j] : -std::numeric_limits<float>::infinity();
          scaled[i] = L::load(scores);
        }
        if (L::less(scaled[i], infinity) != 0xffff) return false;
        scaled[i] = L::div(scaled[i], divisor);
        most = L::max(most, scaled[i]);
      }
      const float reach = L::largest(most) + (key ? kMostNoise : 0.0f);
      if (count == width && !(reach > threshold)) continue;
      Int random[4];
      if (key) words(*key, std::uint32_t(first), random);
      for (int i = 0; i < 4; ++i) {
        // u <= e^(score - threshold), with room for the roundings of both sides
        std::uint32_t able = 0xffff;
        if (count == width) {
          const Float gap = L::sub(scaled[i], L::set(threshold));
          if (key) {
            const Float u = L::mul(L::to_float(L::template shift_right<1>(random[i])), L::set(0x1p-31f * 0.999f));
            const Float limit = L::fma(Rows<L>::exponential(gap), L::set(1.001f), L::set(0x1p-30f));
            able = L::less(u, limit);
          } else {
            able = L::less(L::zero(), gap);
          }
        }
        if (!able) continue;
        L::store(scores, scaled[i]);
        if (key) L::store_int(lanes, random[i]);
        for (; able; able &= able - 1) {
          const int j = __builtin_ctz(able), id = first + 16 * i + j;
          if (id >= vocabulary || scores[j] == -std::numeric_limits<float>::infinity()) continue;
          insert(key ? scores[j] + noise(lanes[j]) : scores[j], id);
        }
      }
    }
    for (int i = count; i < width; ++i) found[i] = {-std::numeric_limits<float>::infinity(), -1};
    return count > 0;
  }
};

}  // namespace outrider

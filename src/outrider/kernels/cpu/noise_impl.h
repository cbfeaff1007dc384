// Keyed noise, 64 token ids at a time, for one instruction set: see sampling/noise.py, which is the specification.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels.h"

namespace outrider {

template <class L>
struct Noise {
  using Int = typename L::Int;

  static constexpr float kMost = 23.0f;  // -log(-log1p(-2^-33)) is 22.88

  // The words of the token ids from `first` on, a multiple of 64, in their order.  Philox4x32-10 makes one block of four
  // words for four tokens; eight blocks share a vector, each number in the low half of 64 bits, as the products want it.
  static void words(const NoiseKey& key, std::uint32_t first, Int (&out)[4]) {
    alignas(64) static constexpr std::int32_t kBlocks[2][16] = {{0, 0, 4, 0, 1, 0, 5, 0, 2, 0, 6, 0, 3, 0, 7, 0},
                                                                {8, 0, 12, 0, 9, 0, 13, 0, 10, 0, 14, 0, 11, 0, 15, 0}};
    const Int one = L::set_int(std::int32_t(0xD2511F53u)), two = L::set_int(std::int32_t(0xCD9E8D57u));
    Int c0[2], c1[2], c2[2], c3[2];
    for (int half = 0; half < 2; ++half) {
      c0[half] = L::add_int(L::load_int(kBlocks[half]), L::set_int(std::int32_t(first / 4)));
      c1[half] = L::set_int(std::int32_t(key.position));
      c2[half] = L::set_int(std::int32_t(key.choice));
      c3[half] = L::set_int(std::int32_t(key.purpose));
    }
    std::uint32_t k0 = std::uint32_t(key.seed), k1 = std::uint32_t(key.seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const Int low_key = L::set_int(std::int32_t(k0)), high_key = L::set_int(std::int32_t(k1));
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const Int first_product = L::multiply_even(c0[half], one), second_product = L::multiply_even(c2[half], two);
        c0[half] = L::bits_xor(L::high_words(second_product), c1[half], low_key);
        c2[half] = L::bits_xor(L::high_words(first_product), c3[half], high_key);
        c1[half] = second_product, c3[half] = first_product;
      }
      k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    for (int half = 0; half < 2; ++half) {
      const Int low = L::join_even(c0[half], c1[half]), high = L::join_even(c2[half], c3[half]);
      out[2 * half] = L::first_pairs(low, high), out[2 * half + 1] = L::last_pairs(low, high);
    }
  }

  static float of(std::uint32_t word) {
    return float(-std::log(-std::log1p(-(double(word) + 0.5) * 0x1p-32)));
  }
};

}  // namespace outrider

// Keyed noise, 64 token ids at a time, for one instruction set: see sampling/noise.py, which is the specification.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels.h"

namespace outrider {

template <class L>
struct Noise {
  using Int = typename L::Int;

  static constexpr int kRounds = 10;
  static constexpr float kMost = 23.0f;  // -log(-log1p(-2^-33)) is 22.88

  // The words of one row.  Philox4x32-10 makes a block of four words for four tokens; eight blocks share a vector, each
  // number in the low half of 64 bits, as the products want it.
  struct Words {
    Int position, choice, purpose, keys[2][kRounds];

    explicit Words(const NoiseKey& key)
        : position(L::set_int(std::int32_t(key.position))), choice(L::set_int(std::int32_t(key.choice))),
          purpose(L::set_int(std::int32_t(key.purpose))) {
      std::uint32_t low = std::uint32_t(key.seed), high = std::uint32_t(key.seed >> 32);
      for (int round = 0; round < kRounds; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u) {
        keys[0][round] = L::set_int(std::int32_t(low)), keys[1][round] = L::set_int(std::int32_t(high));
      }
    }

    // Of the token ids from `first` on, a multiple of 64, in their order.
    void read(std::uint32_t first, Int (&out)[4]) const {
      alignas(64) static constexpr std::int32_t kBlocks[2][16] = {{0, 0, 4, 0, 1, 0, 5, 0, 2, 0, 6, 0, 3, 0, 7, 0},
                                                                  {8, 0, 12, 0, 9, 0, 13, 0, 10, 0, 14, 0, 11, 0, 15, 0}};
      const Int one = L::set_int(std::int32_t(0xD2511F53u)), two = L::set_int(std::int32_t(0xCD9E8D57u));
      const Int block = L::set_int(std::int32_t(first / 4));
      Int c0[2], c1[2] = {position, position}, c2[2] = {choice, choice}, c3[2] = {purpose, purpose};
      for (int half = 0; half < 2; ++half) c0[half] = L::add_int(L::load_int(kBlocks[half]), block);
#pragma GCC unroll 10
      for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
          const Int first_product = L::multiply_even(c0[half], one), second_product = L::multiply_even(c2[half], two);
          c0[half] = L::bits_xor(L::high_words(second_product), c1[half], keys[0][round]);
          c2[half] = L::bits_xor(L::high_words(first_product), c3[half], keys[1][round]);
          c1[half] = second_product, c3[half] = first_product;
        }
      }
      for (int half = 0; half < 2; ++half) {
        const Int low = L::join_even(c0[half], c1[half]), high = L::join_even(c2[half], c3[half]);
        out[2 * half] = L::first_pairs(low, high), out[2 * half + 1] = L::last_pairs(low, high);
      }
    }
  };

  static void write(const NoiseKey& key, int count, std::uint32_t* to) {
    const Words words(key);
    for (int first = 0; first < count; first += 64) {
      Int some[4];
      words.read(std::uint32_t(first), some);
      for (int i = 0; i < 4; ++i) L::store_int(to + first + 16 * i, some[i]);
    }
  }

  static float of(std::uint32_t word) {
    return float(-std::log(-std::log1p(-(double(word) + 0.5) * 0x1p-32)));
  }
};

}  // namespace outrider

// A row of logits over its temperature, read 64 at a time, for one instruction set.
#pragma once

#include <cstdint>
#include <limits>

#include "kernels.h"

namespace outrider {

template <class L>
struct ScaledRow {
  using Float = typename L::Float;

  static constexpr int kBlock = 64;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  static constexpr float kLowest = std::numeric_limits<float>::lowest();  // what is less is banned

  const float* logits;
  int vocabulary;
  float temperature;
  float* most;  // of each block
  int blocks, peak = 0;  // the first of the blocks that hold the best

  ScaledRow(const Row& row, const RowScratch& scratch)
      : logits(row.logits), vocabulary(row.vocabulary), temperature(row.temperature), most(scratch.numbers),
        blocks((row.vocabulary + kBlock - 1) / kBlock) {}

  float best() const { return most[peak]; }
  float at(int id) const { return logits[id] / temperature; }

  // Fills `most`; returns false if a logit is NaN or plus infinity, all are minus infinity, or one over the temperature
  // is infinite.
  bool scan() {
    const Float infinity = L::set(kInfinity);
    std::uint32_t sound = 0xffff;
    for (int block = 0; block < blocks; ++block) {
      Float x[4];
      raw(block, x);
      for (int i = 0; i < 4; ++i) sound &= L::less(x[i], infinity);
      most[block] = L::largest(L::max(L::max(x[0], x[1]), L::max(x[2], x[3])));
    }
    if (sound != 0xffff) return false;
    for (int block = 0; block < blocks; ++block) most[block] /= temperature;  // division keeps the order
    float largest = -kInfinity;
    for (int block = 0; block < blocks; ++block) {
      if (most[block] > largest) largest = most[block], peak = block;
    }
    return best() >= kLowest && best() < kInfinity;
  }

  void load(int block, Float (&x)[4]) const {
    raw(block, x);
    if (temperature == 1.0f) return;
    for (int i = 0; i < 4; ++i) x[i] = L::div(x[i], L::set(temperature));
  }

  // The same without a division, for sums: a quotient corrected twice is the rounded one, numbers below 2^-100 aside
  // (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990).  NaN if banned.
  void load_fast(int block, Float (&x)[4]) const {
    raw(block, x);
    if (temperature == 1.0f) return;
    const Float divisor = L::set(temperature), inverse = L::set(1.0f / temperature);
    for (int i = 0; i < 4; ++i) {
      Float quotient = L::mul(x[i], inverse);
      for (int step = 0; step < 2; ++step) quotient = L::fma(L::negative_fma(quotient, divisor, x[i]), inverse, quotient);
      x[i] = quotient;
    }
  }

  // Logits; past the vocabulary minus infinity.
  void raw(int block, Float (&x)[4]) const {
    const float* from = logits + std::size_t(block) * kBlock;
    alignas(64) float rest[kBlock];
    const int left = vocabulary - block * kBlock;
    if (left < kBlock) {
      for (int i = 0; i < kBlock; ++i) rest[i] = i < left ? from[i] : -kInfinity;
      from = rest;
    }
    for (int i = 0; i < 4; ++i) x[i] = L::load(from + 16 * i);
  }
};

}  // namespace outrider

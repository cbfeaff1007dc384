// Sixteen lanes in plain C++: the definition that the other instruction sets must equal bit for bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"

namespace outrider {

struct PortableLanes {
  static constexpr const char* name = "portable";
  static constexpr int few_rows = 1;  // so many are multiplied straight from the packed weights

  struct Float {
    float lane[16];
  };
  struct Int {
    std::int32_t lane[16];
  };

  template <class Result, class Make>
  static Result each(Make make) {
    Result result;
    for (int i = 0; i < 16; ++i) result.lane[i] = make(i);
    return result;
  }

  static Float zero() { return set(0.0f); }
  static Float set(float value) {
    return each<Float>([&](int) { return value; });
  }
  static Float load(const float* from) {
    return each<Float>([&](int i) { return from[i]; });
  }
  static void store(float* to, const Float& value) { std::memcpy(to, value.lane, sizeof value.lane); }
  static Float add(const Float& a, const Float& b) {
    return each<Float>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Float sub(const Float& a, const Float& b) {
    return each<Float>([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Float mul(const Float& a, const Float& b) {
    return each<Float>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Float div(const Float& a, const Float& b) {
    return each<Float>([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  // a * b + c, rounded once
  static Float fma(const Float& a, const Float& b, const Float& c) {
    return each<Float>([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  // c - a * b, rounded once
  static Float negative_fma(const Float& a, const Float& b, const Float& c) {
    return each<Float>([&](int i) { return std::fma(-a.lane[i], b.lane[i], c.lane[i]); });
  }
  static Float max(const Float& a, const Float& b) {  // as x86 has it: b where either is NaN
    return each<Float>([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Float min(const Float& a, const Float& b) {
    return each<Float>([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Float absolute(const Float& a) {
    return each<Float>([&](int i) { return std::fabs(a.lane[i]); });
  }
  static Float from_half(const std::uint16_t* from) {
    return each<Float>([&](int i) { return half_to_float(from[i]); });
  }
  static void to_half(std::uint16_t* to, const Float& value) {
    for (int i = 0; i < 16; ++i) to[i] = float_to_half(value.lane[i]);
  }
  static Float from_brain(const std::uint16_t* from) {
    return each<Float>([&](int i) { return brain_to_float(from[i]); });
  }

  static Int load_int(const void* from) {
    Int result;
    std::memcpy(result.lane, from, sizeof result.lane);
    return result;
  }
  static void store_int(void* to, const Int& value) { std::memcpy(to, value.lane, sizeof value.lane); }
  static Int set_int(std::int32_t value) {
    return each<Int>([&](int) { return value; });
  }
  static Int from_bytes(const std::uint8_t* from) {
    return each<Int>([&](int i) { return std::int32_t(from[i]); });
  }
  static Int from_signed_bytes(const std::int8_t* from) {
    return each<Int>([&](int i) { return std::int32_t(from[i]); });
  }
  static Int bits_and(const Int& a, const Int& b) {
    return each<Int>([&](int i) { return a.lane[i] & b.lane[i]; });
  }
  static Int bits_or(const Int& a, const Int& b) {
    return each<Int>([&](int i) { return a.lane[i] | b.lane[i]; });
  }
  // Bits of a where the mask has them, and those of b everywhere.
  static Int merge(const Int& a, const Int& mask, const Int& b) { return bits_or(bits_and(a, mask), b); }
  template <int count>
  static Int shift_right(const Int& a) {
    return each<Int>([&](int i) { return std::int32_t(std::uint32_t(a.lane[i]) >> count); });
  }
  template <int count>
  static Int shift_left(const Int& a) {
    return each<Int>([&](int i) { return std::int32_t(std::uint32_t(a.lane[i]) << count); });
  }
  static Int add_int(const Int& a, const Int& b) {
    return each<Int>([&](int i) { return std::int32_t(std::uint32_t(a.lane[i]) + std::uint32_t(b.lane[i])); });
  }
  // Adds 16 to every byte whose bit is set; bit i belongs to byte i of the 64.
  static Int add_fifth_bit(const Int& a, std::uint64_t bits) {
    Int result = a;
    auto* bytes = reinterpret_cast<std::uint8_t*>(result.lane);
    for (int i = 0; i < 64; ++i) bytes[i] = std::uint8_t(bytes[i] + (bits >> i & 1) * 16);
    return result;
  }
  static Int fresh_zero() { return set_int(0); }
  static void keep_order() {}
  // One int32 of four activation bytes, in whatever form makes the dot products below fast.
  using Quad = std::int32_t;
  static Quad broadcast(const std::int32_t* from) { return *from; }
  static Int set_quad(Quad value) { return set_int(value); }
  // Four products of an unsigned weight byte and a signed activation byte, added to each lane.
  static Int dot(const Int& sum, const Int& weights, Quad activations) {
    std::int8_t a[4];
    std::memcpy(a, &activations, 4);
    Int result = sum;
    const auto* w = reinterpret_cast<const std::uint8_t*>(weights.lane);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 4; ++j) result.lane[i] += std::int32_t(w[4 * i + j]) * a[j];
    }
    return result;
  }
  static Int bits_xor(const Int& a, const Int& b, const Int& c) {
    return each<Int>([&](int i) { return a.lane[i] ^ b.lane[i] ^ c.lane[i]; });
  }
  // Lanes 2i and 2i + 1 as the low and high word of one 64-bit number: the product of lanes 2i, both unsigned.
  static Int multiply_even(const Int& a, const Int& b) {
    Int result;
    for (int i = 0; i < 16; i += 2) {
      const std::uint64_t product = std::uint64_t(std::uint32_t(a.lane[i])) * std::uint32_t(b.lane[i]);
      result.lane[i] = std::int32_t(std::uint32_t(product));
      result.lane[i + 1] = std::int32_t(product >> 32);
    }
    return result;
  }
  // Lane 2i becomes lane 2i + 1, which becomes 0.
  static Int high_words(const Int& a) {
    return each<Int>([&](int i) { return i % 2 ? 0 : a.lane[i + 1]; });
  }
  // Lanes 2i of a, each followed by lane 2i of b.
  static Int join_even(const Int& a, const Int& b) {
    return each<Int>([&](int i) { return i % 2 ? b.lane[i - 1] : a.lane[i]; });
  }
  // Within each four lanes: the first two of a, then the first two of b.
  static Int first_pairs(const Int& a, const Int& b) {
    return each<Int>([&](int i) { return i % 4 < 2 ? a.lane[i] : b.lane[i - 2]; });
  }
  // Within each four lanes: the last two of a, then the last two of b.
  static Int last_pairs(const Int& a, const Int& b) {
    return each<Int>([&](int i) { return i % 4 < 2 ? a.lane[i + 2] : b.lane[i]; });
  }
  // Bit i: whether lane i of a is less; false where either is NaN.
  static std::uint32_t less(const Float& a, const Float& b) {
    std::uint32_t bits = 0;
    for (int i = 0; i < 16; ++i) bits |= std::uint32_t(a.lane[i] < b.lane[i]) << i;
    return bits;
  }
  // `sum`, plus `value` where a is at least b; sum is not -0.
  static Float add_where_at_least(const Float& sum, const Float& a, const Float& b, const Float& value) {
    return each<Float>([&](int i) { return sum.lane[i] + (a.lane[i] >= b.lane[i] ? value.lane[i] : 0.0f); });
  }
  static Float to_float(const Int& a) {
    return each<Float>([&](int i) { return float(a.lane[i]); });
  }
  static Int round(const Float& a) {  // to the nearest, ties to even
    return each<Int>([&](int i) { return std::int32_t(std::nearbyint(a.lane[i])); });
  }
  static Int as_int(const Float& a) { return load_int(a.lane); }
  static Float as_float(const Int& a) {
    Float result;
    std::memcpy(result.lane, a.lane, sizeof result.lane);
    return result;
  }
  static void store_signed_bytes(std::int8_t* to, const Int& a) {  // values fit
    for (int i = 0; i < 16; ++i) to[i] = std::int8_t(a.lane[i]);
  }
  // Lane i + lane i + 8, then 4, 2, 1: every instruction set adds in this order.
  static float sum(const Float& a) {
    float part[16];
    std::memcpy(part, a.lane, sizeof part);
    for (int width = 8; width; width /= 2) {
      for (int i = 0; i < width; ++i) part[i] += part[i + width];
    }
    return part[0];
  }
  static float largest(const Float& a) {
    float best = a.lane[0];
    for (int i = 1; i < 16; ++i) best = a.lane[i] > best ? a.lane[i] : best;
    return best;
  }
  static std::int32_t sum_int(const Int& a) {
    std::uint32_t total = 0;
    for (int i = 0; i < 16; ++i) total += std::uint32_t(a.lane[i]);
    return std::int32_t(total);
  }
  static Int max_int(const Int& a, const Int& b) {
    return each<Int>([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  // Of sixteen vectors each: lane i is what `sum`, or its like for whole numbers, makes of vector i.
  static Float sum_each(const Float* v) {
    return each<Float>([&](int i) { return sum(v[i]); });
  }
  static Int sum_each_int(const Int* v) {
    return each<Int>([&](int i) { return sum_int(v[i]); });
  }
  static Int largest_each_int(const Int* v) {
    return each<Int>([&](int i) { return *std::max_element(v[i].lane, v[i].lane + 16); });
  }
  // Lanes from `count` on become `other`.
  static Float first(const Float& a, int count, float other) {
    return each<Float>([&](int i) { return i < count ? a.lane[i] : other; });
  }
};

}  // namespace outrider

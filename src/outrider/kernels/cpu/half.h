// Sixteen-bit floating point numbers, converted in integer arithmetic: the same bits on every machine.
#pragma once

#include <cstdint>
#include <cstring>

namespace outrider {

static inline std::uint32_t float_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float bits_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static inline float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = std::uint32_t(half & 0x8000u) << 16;
  const std::uint32_t exponent = half >> 10 & 31u, fraction = half & 1023u;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0u));
  if (exponent) return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
  const float small = float(fraction) * 0x1p-24f;
  return bits_float(sign | float_bits(small));
}

// Rounds to the nearest, ties to even; too large becomes infinity.
static inline std::uint16_t float_to_half(float value) {
  const std::uint32_t bits = float_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return std::uint16_t(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return std::uint16_t(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // below the least normal half: let the addition round
    const float shifted = bits_float(magnitude) + 0.5f;
    return std::uint16_t(sign | (float_bits(shifted) - 0x3f000000u));
  }
  const std::uint32_t odd = magnitude >> 13 & 1u;
  return std::uint16_t(sign | (magnitude - 0x38000000u + 0xfffu + odd) >> 13);
}

static inline float brain_to_float(std::uint16_t brain) { return bits_float(std::uint32_t(brain) << 16); }

}  // namespace outrider

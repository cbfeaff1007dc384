// Sixteen lanes as two AVX2 registers.  See lanes_portable.h for what each must give.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "half.h"

namespace outrider {

#if defined(__AVXVNNI__)
#define OUTRIDER_AVX2_LANES Avx2VnniLanes
#define OUTRIDER_AVX2_NAME "avx2-vnni"
#else
#define OUTRIDER_AVX2_LANES Avx2Lanes
#define OUTRIDER_AVX2_NAME "avx2"
#endif

struct OUTRIDER_AVX2_LANES {
  static constexpr const char* name = OUTRIDER_AVX2_NAME;
  static constexpr int few_rows = 1;  // so many are multiplied straight from the packed weights

  struct Float {
    __m256 low, high;
  };
  struct Int {
    __m256i low, high;
  };

  static Float zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static Float set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Float load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static void store(float* to, Float value) {
    _mm256_storeu_ps(to, value.low);
    _mm256_storeu_ps(to + 8, value.high);
  }
  static Float add(Float a, Float b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static Float sub(Float a, Float b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static Float mul(Float a, Float b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static Float div(Float a, Float b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  static Float fma(Float a, Float b, Float c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Float negative_fma(Float a, Float b, Float c) {
    return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
  }
  static Float max(Float a, Float b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  static Float min(Float a, Float b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
  static Float absolute(Float a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
  }
  static Float from_half(const std::uint16_t* from) {
    const auto* eight = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(eight)), _mm256_cvtph_ps(_mm_loadu_si128(eight + 1))};
  }
  static void to_half(std::uint16_t* to, Float value) {
    auto* eight = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(eight, _mm256_cvtps_ph(value.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(eight + 1, _mm256_cvtps_ph(value.high, _MM_FROUND_TO_NEAREST_INT));
  }
  static Float from_brain(const std::uint16_t* from) {
    const auto* eight = reinterpret_cast<const __m128i*>(from);
    const __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128(eight));
    const __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128(eight + 1));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  }

  static Int load_int(const void* from) {
    const auto* half = static_cast<const __m256i*>(from);
    return {_mm256_loadu_si256(half), _mm256_loadu_si256(half + 1)};
  }
  static void store_int(void* to, Int value) {
    auto* half = static_cast<__m256i*>(to);
    _mm256_storeu_si256(half, value.low);
    _mm256_storeu_si256(half + 1, value.high);
  }
  static Int set_int(std::int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
  static Int from_bytes(const std::uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
  }
  static Int from_signed_bytes(const std::int8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
  }
  static Int bits_and(Int a, Int b) { return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)}; }
  static Int bits_or(Int a, Int b) { return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)}; }
  static Int merge(Int a, Int mask, Int b) { return bits_or(bits_and(a, mask), b); }
  template <int count>
  static Int shift_right(Int a) {
    return {_mm256_srli_epi32(a.low, count), _mm256_srli_epi32(a.high, count)};
  }
  template <int count>
  static Int shift_left(Int a) {
    return {_mm256_slli_epi32(a.low, count), _mm256_slli_epi32(a.high, count)};
  }
  static Int add_int(Int a, Int b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
  static Int add_fifth_bit(Int a, std::uint64_t bits) {
    return {fifth(a.low, std::uint32_t(bits)), fifth(a.high, std::uint32_t(bits >> 32))};
  }
  static Int fresh_zero() { return set_int(0); }
  static void keep_order() {}
  using Quad = __m256i;
  static Quad broadcast(const std::int32_t* from) { return _mm256_set1_epi32(*from); }
  static Int set_quad(Quad value) { return {value, value}; }
  static Int dot(Int sum, Int weights, Quad activations) {
    return {dot_half(sum.low, weights.low, activations), dot_half(sum.high, weights.high, activations)};
  }
  static Int bits_xor(Int a, Int b, Int c) {
    return {_mm256_xor_si256(_mm256_xor_si256(a.low, b.low), c.low),
            _mm256_xor_si256(_mm256_xor_si256(a.high, b.high), c.high)};
  }
  static Int multiply_even(Int a, Int b) { return {_mm256_mul_epu32(a.low, b.low), _mm256_mul_epu32(a.high, b.high)}; }
  static Int high_words(Int a) { return {_mm256_srli_epi64(a.low, 32), _mm256_srli_epi64(a.high, 32)}; }
  static Int join_even(Int a, Int b) {
    return {_mm256_blend_epi32(a.low, _mm256_slli_epi64(b.low, 32), 0xaa),
            _mm256_blend_epi32(a.high, _mm256_slli_epi64(b.high, 32), 0xaa)};
  }
  static Int first_pairs(Int a, Int b) {
    return {_mm256_unpacklo_epi64(a.low, b.low), _mm256_unpacklo_epi64(a.high, b.high)};
  }
  static Int last_pairs(Int a, Int b) {
    return {_mm256_unpackhi_epi64(a.low, b.low), _mm256_unpackhi_epi64(a.high, b.high)};
  }
  static std::uint32_t less(Float a, Float b) {
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ));
    const int high = _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ));
    return std::uint32_t(low | high << 8);
  }
  static Float add_where_at_least(Float sum, Float a, Float b, Float value) {
    return {_mm256_add_ps(sum.low, _mm256_and_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ), value.low)),
            _mm256_add_ps(sum.high, _mm256_and_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ), value.high))};
  }
  static Float to_float(Int a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
  static Int round(Float a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
  static Int as_int(Float a) { return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)}; }
  static Float as_float(Int a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }
  static void store_signed_bytes(std::int8_t* to, Int a) {
    std::int32_t lane[16];
    store_int(lane, a);
    for (int i = 0; i < 16; ++i) to[i] = std::int8_t(lane[i]);
  }
  static float sum(Float a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float largest(Float a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }
  static std::int32_t sum_int(Int a) {
    std::int32_t lane[16], total = 0;
    store_int(lane, a);
    for (const std::int32_t value : lane) total += value;
    return total;
  }
  static Int max_int(Int a, Int b) { return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)}; }
  static Float sum_each(const Float* v) {
    return fold_each(v, [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); });
  }
  static Int sum_each_int(const Int* v) {
    return fold_each(v, [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); });
  }
  static Int largest_each_int(const Int* v) {
    return fold_each(v, [](__m256i a, __m256i b) { return _mm256_max_epi32(a, b); });
  }
  static Float first(Float a, int count, float other) {
    float lane[16];
    store(lane, a);
    for (int i = count; i < 16; ++i) lane[i] = other;
    return load(lane);
  }

 private:
  static __m256d as_double(__m256 a) { return _mm256_castps_pd(a); }
  static __m256d as_double(__m256i a) { return _mm256_castsi256_pd(a); }
  static void set_from(__m256d a, __m256& to) { to = _mm256_castpd_ps(a); }
  static void set_from(__m256d a, __m256i& to) { to = _mm256_castpd_si256(a); }

  template <class Vector, class Fold>
  static Vector fold_each(const Vector* v, Fold with) {
    return {fold_eight(v, with), fold_eight(v + 8, with)};
  }
  // Each of eight vectors is folded in halves until one lane is left, as `sum` does it; lane i is vector i's.
  template <class Vector, class Fold>
  static auto fold_eight(const Vector* v, Fold with) {
    decltype(v->low) four[4], two[2], one[2], a, b;
    for (int m = 0; m < 4; ++m) {
      const __m256d x = as_double(with(v[m].low, v[m].high)), y = as_double(with(v[4 + m].low, v[4 + m].high));
      set_from(_mm256_permute2f128_pd(x, y, 0x20), a), set_from(_mm256_permute2f128_pd(x, y, 0x31), b);
      four[m] = with(a, b);
    }
    for (int i = 0; i < 2; ++i) {
      const __m256d x = as_double(four[2 * i]), y = as_double(four[2 * i + 1]);
      set_from(_mm256_unpacklo_pd(x, y), a), set_from(_mm256_unpackhi_pd(x, y), b);
      two[i] = with(a, b);
    }
    const __m256 x = _mm256_castpd_ps(as_double(two[0])), y = _mm256_castpd_ps(as_double(two[1]));
    set_from(_mm256_castps_pd(_mm256_shuffle_ps(x, y, 0x88)), one[0]);
    set_from(_mm256_castps_pd(_mm256_shuffle_ps(x, y, 0xdd)), one[1]);
    return with(one[0], one[1]);
  }
  static __m256i fifth(__m256i a, std::uint32_t bits) {
    const __m256i byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of = _mm256_set1_epi64x(std::int64_t(0x8040201008040201));
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(std::int32_t(bits)), byte_of);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of), bit_of);
    return _mm256_add_epi8(a, _mm256_and_si256(set, _mm256_set1_epi8(16)));
  }
  static __m256i dot_half(__m256i sum, __m256i weights, __m256i activations) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, weights, activations);
#else
    // Two products fit 16 bits only if the weight is below 129, so a larger one is taken as its two halves.
    const __m256i ones = _mm256_set1_epi16(1), half = _mm256_set1_epi8(0x7f);
    const __m256i low = _mm256_min_epu8(weights, half), rest = _mm256_sub_epi8(weights, low);
    const __m256i first = _mm256_madd_epi16(_mm256_maddubs_epi16(low, activations), ones);
    const __m256i second = _mm256_madd_epi16(_mm256_maddubs_epi16(rest, activations), ones);
    return _mm256_add_epi32(sum, _mm256_add_epi32(first, second));
#endif
  }
};

}  // namespace outrider

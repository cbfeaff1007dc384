// Sixteen lanes as one AVX-512 register, with VNNI for the dot products.  See lanes_portable.h for what each must give.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace outrider {

struct Avx512Lanes {
  static constexpr const char* name = "avx512-vnni";
  static constexpr int few_rows = 10;  // so many are multiplied straight from the packed weights

  using Float = __m512;
  using Int = __m512i;

  static Float zero() { return _mm512_setzero_ps(); }
  static Float set(float value) { return _mm512_set1_ps(value); }
  static Float load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Float value) { _mm512_storeu_ps(to, value); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float negative_fma(Float a, Float b, Float c) { return _mm512_fnmadd_ps(a, b, c); }
  static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float absolute(Float a) { return _mm512_abs_ps(a); }
  static Float from_half(const std::uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void to_half(std::uint16_t* to, Float value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
  static Float from_brain(const std::uint16_t* from) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }

  static Int load_int(const void* from) { return _mm512_loadu_si512(from); }
  static void store_int(void* to, Int value) { _mm512_storeu_si512(to, value); }
  static Int set_int(std::int32_t value) { return _mm512_set1_epi32(value); }
  static Int from_bytes(const std::uint8_t* from) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Int from_signed_bytes(const std::int8_t* from) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Int bits_and(Int a, Int b) { return _mm512_and_si512(a, b); }
  static Int bits_or(Int a, Int b) { return _mm512_or_si512(a, b); }
  static Int merge(Int a, Int mask, Int b) { return _mm512_ternarylogic_epi32(a, mask, b, 0xea); }
  template <int count>
  static Int shift_right(Int a) {
    return _mm512_srli_epi32(a, count);
  }
  template <int count>
  static Int shift_left(Int a) {
    return _mm512_slli_epi32(a, count);
  }
  static Int add_int(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Int add_fifth_bit(Int a, std::uint64_t bits) {
    return _mm512_mask_add_epi8(a, _cvtu64_mask64(bits), a, _mm512_set1_epi8(16));
  }
  // A zero that the compiler cannot share between accumulators, and a line over which it moves no load or store: left to
  // itself gcc keeps all running sums in registers it does not have.
  static Int fresh_zero() {
    Int value;
    asm volatile("vpxord %0,%0,%0" : "=v"(value));
    return value;
  }
  static void keep_order() { asm volatile("" ::: "memory"); }
  // Inline assembly keeps gcc 12 from hoisting every broadcast above the dot products, which spills the accumulators.
  using Quad = Int;
  static Quad broadcast(const std::int32_t* from) {
    Int value;
    asm volatile("vpbroadcastd %1,%0" : "=v"(value) : "m"(*from));
    return value;
  }
  static Int set_quad(Quad value) { return value; }
  static Int dot(Int sum, Int weights, Quad activations) {
    asm volatile("vpdpbusd %2,%1,%0" : "+v"(sum) : "v"(weights), "v"(activations));
    return sum;
  }
  static Int bits_xor(Int a, Int b, Int c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }
  static Int multiply_even(Int a, Int b) { return _mm512_mul_epu32(a, b); }
  static Int high_words(Int a) { return _mm512_srli_epi64(a, 32); }
  static Int join_even(Int a, Int b) { return _mm512_mask_shuffle_epi32(a, 0xaaaa, b, _MM_PERM_CCAA); }
  static Int first_pairs(Int a, Int b) { return _mm512_unpacklo_epi64(a, b); }
  static Int last_pairs(Int a, Int b) { return _mm512_unpackhi_epi64(a, b); }
  static std::uint32_t less(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Float add_where_at_least(Float sum, Float a, Float b, Float value) {
    return _mm512_mask_add_ps(sum, _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), sum, value);
  }
  static Float to_float(Int a) { return _mm512_cvtepi32_ps(a); }
  static Int round(Float a) {
    return _mm512_cvt_roundps_epi32(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Int as_int(Float a) { return _mm512_castps_si512(a); }
  static Float as_float(Int a) { return _mm512_castsi512_ps(a); }
  static void store_signed_bytes(std::int8_t* to, Int a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(a));
  }
  static float sum(Float a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static std::int32_t sum_int(Int a) { return _mm512_reduce_add_epi32(a); }
  static float largest(Float a) { return _mm512_reduce_max_ps(a); }
  static Int max_int(Int a, Int b) { return _mm512_max_epi32(a, b); }

  // Each of sixteen vectors is folded in halves until one lane is left, as `sum` does it; lane i is vector i's.
  template <class Fold>
  static Float fold(const Float* v, Fold with) {
    Float four[4];
#pragma GCC unroll 4
    for (int m = 0; m < 4; ++m) {
      Float eight[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        const Float a = v[8 * i + m], b = v[8 * i + 4 + m];
        eight[i] = with(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
      }
      four[m] = with(_mm512_shuffle_f32x4(eight[0], eight[1], 0x88), _mm512_shuffle_f32x4(eight[0], eight[1], 0xdd));
    }
    Float two[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512d a = _mm512_castps_pd(four[2 * i]), b = _mm512_castps_pd(four[2 * i + 1]);
      two[i] = with(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    return with(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));
  }
  static Float sum_each(const Float* v) {
    return fold(v, [](Float a, Float b) { return _mm512_add_ps(a, b); });
  }
  static Int sum_each_int(const Int* v) {
    return as_int(fold(reinterpret_cast<const Float*>(v), [](Float a, Float b) { return as_float(_mm512_add_epi32(as_int(a), as_int(b))); }));
  }
  static Int largest_each_int(const Int* v) {
    return as_int(fold(reinterpret_cast<const Float*>(v), [](Float a, Float b) { return as_float(_mm512_max_epi32(as_int(a), as_int(b))); }));
  }
  static Float first(Float a, int count, float other) {
    return _mm512_mask_mov_ps(_mm512_set1_ps(other), _cvtu32_mask16((1u << count) - 1u), a);
  }
};

}  // namespace outrider

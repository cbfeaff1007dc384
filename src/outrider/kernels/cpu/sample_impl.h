// The best of a row's scores, with or without keyed noise, for one instruction set.
//
// A token's score is logit / T - log E, E = -log1p(-u) > u, with u made of the token's word of noise.  So a token reaches
// a threshold only if u <= e^(logit / T - threshold), and the exact noise, two logarithms in double precision, is computed
// for the few that may.  Whatever is skipped could not have been among the best: the order of work changes no bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels.h"
#include "noise_impl.h"
#include "scaled_row_impl.h"
#include "truncation_impl.h"

namespace outrider {

template <class L>
struct Sample {
  using Float = typename L::Float;
  using Int = typename L::Int;
  using Scores = ScaledRow<L>;

  // The `width` best scores among the survivors of the truncation, best first, equal ones by rising id; id -1 where there
  // are no more.  `key` null: no noise.  Returns false if no token can be chosen from the row.
  static bool best(const Row& asked, const NoiseKey* key, int width, const RowScratch& scratch, Scored* found) {
    Scores row(asked, scratch);
    if (!row.scan()) return false;
    const Truncation& wish = asked.truncation;
    if (key && width == 1 && wish.top_k == 0 && wish.top_p < 1.0 && guess(row, wish, key, scratch, found)) return true;
    const Scored last = Truncate<L>::last_survivor(row, wish, scratch);
    const int count = Search(row, last, key, width, found).run();
    for (int i = count; i < width; ++i) found[i] = {-Scores::kInfinity, -1};
    return true;
  }

  // The ids that survive the truncation, rising; returns how many, or -1 if no token can be chosen from the row.
  static int survivors(const Row& asked, const RowScratch& scratch, std::int64_t* ids) {
    Scores row(asked, scratch);
    if (!row.scan()) return -1;
    const Scored last = Truncate<L>::last_survivor(row, asked.truncation, scratch);
    int count = 0;
    for (int block = 0; block < row.blocks; ++block) {
      if (row.most[block] < last.score) continue;
      Float x[4];
      row.load(block, x);
      for (int j = 0; j < 4; ++j) {
        for (std::uint32_t able = reaching(x[j], last.score); able; able &= able - 1) {
          const int id = block * Scores::kBlock + 16 * j + __builtin_ctz(able);
          if (Truncate<L>::survives(row.at(id), id, last)) ids[count++] = id;
        }
      }
    }
    return count;
  }

 private:
  // The best token of a nucleus without its edge: the best of all tokens is the best of those that survive if it is one of
  // them.  False where that cannot be told of the best few.
  static bool guess(const Scores& row, const Truncation& wish, const NoiseKey* key, const RowScratch& scratch, Scored* found) {
    using Standing = typename Truncate<L>::Standing;
    constexpr int few = Truncate<L>::kJudged;
    const Scored last = Truncate<L>::last_survivor(row, {0, 1.0, wish.log_min_p}, scratch);
    Scored best[few];
    if (Search(row, last, key, few, best).run() < few) return false;
    float scores[few];
    for (int i = 0; i < few; ++i) scores[i] = row.at(best[i].id);
    Standing standings[few];
    Truncate<L>::judge(row, wish.top_p, last.score, scores, standings);
    int first = 0;
    while (first < few && standings[first] == Standing::cut) ++first;
    if (first == few || standings[first] == Standing::unsure) return false;
    *found = best[first];
    return true;
  }

  static std::uint32_t reaching(Float x, float threshold) { return ~L::less(x, L::set(threshold)) & 0xffff; }

  struct Search {
    const Scores& row;
    const Scored last;
    const bool noisy;
    const typename Noise<L>::Words noise;
    const int width;
    Scored* found;
    int count = 0;
    float threshold = -Scores::kInfinity;  // what a token must reach to be among the best
    float slope, offset = 0.0f;            // of the bound on a token's word, see `lucky`

    Search(const Scores& of, const Scored& last, const NoiseKey* key, int width, Scored* found)
        : row(of), last(last), noisy(key), noise(key ? *key : NoiseKey{}), width(width), found(found), slope(float(kStep / double(of.temperature))) {}

    // Returns how many were found.  The block that holds the best comes first, so that the threshold is high from the start.
    int run() {
      visit(row.peak);
      for (int block = 0; block < row.blocks; ++block) {
        if (block != row.peak && may_hold(block)) visit(block);
      }
      return count;
    }

   private:
    bool may_hold(int block) const {
      return row.most[block] >= last.score && row.most[block] + (noisy ? Noise<L>::kMost : 0.0f) >= threshold;
    }

    void visit(int block) {
      std::uint64_t able;
      alignas(64) std::uint32_t words[Scores::kBlock];
      if (noisy) {
        Int random[4];
        noise.read(std::uint32_t(block) * Scores::kBlock, random);
        able = lucky(block, random);
        if (!able) return;
        for (int j = 0; j < 4; ++j) L::store_int(words + 16 * j, random[j]);
      } else {
        able = reaching_threshold(block);
      }
      for (; able; able &= able - 1) {
        const int lane = __builtin_ctzll(able), id = block * Scores::kBlock + lane;
        if (id >= row.vocabulary) return;
        const float score = row.at(id);
        if (Truncate<L>::survives(score, id, last)) insert(noisy ? score + Noise<L>::of(words[lane]) : score, id);
      }
    }

    static constexpr double kStep = 1.4426950408889634 * 0x1p23;  // of a float's bits as its logarithm grows by one

    std::uint64_t reaching_threshold(int block) const {
      Float x[4];
      row.load(block, x);
      std::uint64_t able = 0;
      for (int j = 0; j < 4; ++j) able |= std::uint64_t(reaching(x[j], threshold)) << (16 * j);
      return able;
    }

    // Which tokens' words are small enough.  Between powers of two a float's bits are a straight line above its
    // logarithm's, so bits that grow linearly with the score are a number above e^(score - threshold), by 9 % at most.
    std::uint64_t lucky(int block, const Int (&random)[4]) const {
      if (count < width) return ~std::uint64_t{0};
      Float x[4];
      row.raw(block, x);
      const Float least = L::zero(), most = L::set(float(254 << 23));
      std::uint64_t able = 0;
      for (int j = 0; j < 4; ++j) {
        const Float bits = L::min(L::max(L::fma(x[j], L::set(slope), L::set(offset)), least), most);
        const Float bound = L::as_float(L::round(bits));
        able |= std::uint64_t(L::less(L::to_float(L::template shift_right<1>(random[j])), bound)) << (16 * j);
      }
      return able;
    }

    void insert(float score, std::int32_t id) {
      if (count == width && !Truncate<L>::survives(score, id, found[width - 1])) return;
      int at = count < width ? count++ : width - 1;
      for (; at > 0 && Truncate<L>::survives(score, id, found[at - 1]); --at) found[at] = found[at - 1];
      found[at] = {score, id};
      if (count < width) return;
      threshold = found[width - 1].score;
      // Room for a thousandth, and for the roundings of the score, the threshold and the line.
      const double size = std::max(std::fabs(row.best()), std::fabs(threshold)) + 256.0;
      offset = float((127.0 + 31.0) * 0x1p23 - double(threshold) * kStep + 16384.0 + size * 8.0);
    }
  };
};

}  // namespace outrider

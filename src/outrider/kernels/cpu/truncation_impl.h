// Which tokens of a row may still be chosen, for one instruction set: see sampling/distribution.py, the specification.
//
// Every filter keeps a prefix of the tokens in the order (score falling, id rising), so a truncation is its last survivor.
// A prefix is asked for by weight: the shortest that weighs at least so much, where a token weighs one (top-k) or its
// e^(score - best) (top-p).  No sort of the row finds it: seven thresholds at a time are weighed until what lies between
// two of them is few, and only blocks that reach the lowest threshold are read.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels.h"
#include "rows_impl.h"
#include "scaled_row_impl.h"

namespace outrider {

template <class L>
struct Truncate {
  using Float = typename L::Float;
  using Scores = ScaledRow<L>;

  static constexpr int kThresholds = 7, kFew = 256, kBlocksTogether = 16;
  static constexpr float kDepth = 32.0f;  // what lies so far below the best weighs nothing, 10^5 times over
  static constexpr std::int32_t kAllIds = std::numeric_limits<std::int32_t>::max();

  // The last token that survives, in the order above; {score, kAllIds} keeps all that score as much.
  static Scored last_survivor(const Scores& row, const Truncation& wish, const RowScratch& scratch) {
    Scored last{Scores::kLowest, kAllIds};
    if (wish.log_min_p > -Scores::kInfinity) last.score = std::max(last.score, row.best() + wish.log_min_p);
    double surplus = 0.0;  // tokens that score as much as the last, but come after it
    if (0 < wish.top_k && wish.top_k < row.vocabulary) {
      last = by_count(row, wish.top_k, last.score, scratch, surplus);
    }
    if (wish.top_p < 1.0) last = earlier(last, by_mass(row, wish.top_p, last.score, scratch, surplus));
    return last;
  }

  // How many tokens one pass over a row can judge.
  static constexpr int kJudged = 3;
  enum class Standing { kept, cut, unsure };

  // Whether tokens of given scores survive top_p, without looking for the last that does; unsure where it or its equals
  // are asked about.  `floor`: what scores less is cut off already.
  static void judge(const Scores& row, double share, float floor, const float (&scores)[kJudged],
                    Standing (&standings)[kJudged]) {
    const float lowest = std::max(floor, row.best() - kDepth);
    float thresholds[kThresholds];
    std::fill(thresholds, thresholds + kThresholds, lowest);
    for (int i = 0; i < kJudged; ++i) {
      thresholds[2 * i] = std::max(lowest, scores[i]);
      thresholds[2 * i + 1] = std::max(lowest, above(scores[i]));
    }
    std::sort(thresholds, thresholds + kThresholds, [](float a, float b) { return a > b; });
    double sums[kThresholds];
    weigh({row, false, 0.0, floor, {}}, thresholds, sums);
    const double target = share * sums[kThresholds - 1];
    for (int i = 0; i < kJudged; ++i) {
      const auto reaching = [&](float score) { return sums[std::find(thresholds, thresholds + kThresholds, score) - thresholds]; };
      standings[i] = Standing::unsure;
      if (scores[i] < lowest) continue;
      if (reaching(scores[i]) <= target) standings[i] = Standing::kept;
      if (reaching(above(scores[i])) >= target) standings[i] = Standing::cut;
    }
  }

  static bool survives(float score, std::int32_t id, const Scored& last) {
    return score > last.score || (score == last.score && id <= last.id);
  }

  static Scored earlier(const Scored& a, const Scored& b) { return survives(a.score, a.id, b) ? a : b; }

 private:
  struct Search {
    const Scores& row;
    bool counts;  // a token weighs one
    double target;
    float floor;  // tokens below do not count
    const RowScratch& scratch;

    double weight(float score) const { return counts ? 1.0 : std::exp(double(score) - double(row.best())); }
  };

  static Scored by_count(const Scores& row, int count, float floor, const RowScratch& scratch, double& surplus) {
    // The block that is best but k has its best above at least k tokens.
    float* sorted = scratch.numbers + row.blocks;
    std::copy(row.most, row.most + row.blocks, sorted);
    float* middle = sorted + std::min(count, row.blocks) - 1;
    std::nth_element(sorted, middle, sorted + row.blocks, [](float a, float b) { return a > b; });
    float thresholds[kThresholds];
    divide(row.best(), std::max(*middle, floor), thresholds);
    return find({row, true, double(count), floor, scratch}, thresholds, surplus);
  }

  static Scored by_mass(const Scores& row, double share, float floor, const RowScratch& scratch, double surplus) {
    static constexpr float kBelow[kThresholds] = {1.0f, 2.0f, 3.0f, 5.0f, 8.0f, 13.0f, kDepth};
    float thresholds[kThresholds];
    for (int i = 0; i < kThresholds; ++i) thresholds[i] = std::max(floor, row.best() - kBelow[i]);
    Search search{row, false, 0.0, floor, scratch};
    double sums[kThresholds];
    weigh(search, thresholds, sums);
    search.target = share * (sums[kThresholds - 1] - surplus * search.weight(floor));
    return find(search, thresholds, surplus, sums);
  }

  // `surplus`: tokens of the same score behind the last one.
  static Scored find(const Search& search, float (&thresholds)[kThresholds], double& surplus) {
    double sums[kThresholds];
    weigh(search, thresholds, sums);
    return find(search, thresholds, surplus, sums);
  }

  static Scored find(const Search& search, float (&thresholds)[kThresholds], double& surplus, double (&sums)[kThresholds]) {
    double base = 0.0;
    float upper = Scores::kInfinity;
    for (;; weigh(search, thresholds, sums)) {
      int i = 0;
      while (i < kThresholds && sums[i] < search.target) ++i;
      if (i > 0) upper = thresholds[i - 1], base = sums[i - 1];
      if (i == kThresholds) {
        if (upper <= search.floor) return {search.floor, kAllIds};
        deepen(search, upper, thresholds);
        continue;
      }
      const float low = thresholds[i];
      const float high = std::min(upper, above(search.row.best()));
      const bool few = (sums[i] - base) <= kFew * search.weight(low);
      if (few || above(low) >= high) return among(search, low, upper, base, surplus);
      divide(high, low, thresholds);
    }
  }

  static float above(float score) { return std::nextafter(score, Scores::kInfinity); }

  // Thresholds at equal steps from `high`, excluded, down to `low`.
  static void divide(float high, float low, float (&thresholds)[kThresholds]) {
    for (int i = 0; i < kThresholds; ++i) {
      thresholds[i] = std::max(low, high - (high - low) * (float(i + 1) / kThresholds));
    }
    thresholds[kThresholds - 1] = low;
  }

  // Thresholds at ever larger steps below the last ones.
  static void deepen(const Search& search, float lowest, float (&thresholds)[kThresholds]) {
    const float best = search.row.best();
    float depth = std::max(best - lowest, 1e-6f * std::max(1.0f, std::fabs(best)));
    for (int i = 0; i < kThresholds; ++i) {
      depth *= 2.0f;
      thresholds[i] = std::max(search.floor, best - depth);
    }
  }

  // The weight of all tokens at or above each of falling thresholds.  The order of every sum is a fact of the row.
  static void weigh(const Search& search, const float (&thresholds)[kThresholds], double (&sums)[kThresholds]) {
    const Scores& row = search.row;
    const Float best = L::set(row.best());
    Float parts[kThresholds];
    for (int i = 0; i < kThresholds; ++i) sums[i] = 0.0, parts[i] = L::zero();
    int pending = 0;
    const auto flush = [&] {
      for (int i = 0; i < kThresholds; ++i) sums[i] += double(L::sum(parts[i])), parts[i] = L::zero();
      pending = 0;
    };
    for (int block = 0; block < row.blocks; ++block) {
      if (row.most[block] < thresholds[kThresholds - 1]) continue;
      Float x[4], weight[4];
      if (search.counts) {
        row.load(block, x);
        for (int j = 0; j < 4; ++j) weight[j] = L::set(1.0f);
      } else {
        row.load_fast(block, x);
        for (int j = 0; j < 4; ++j) weight[j] = Rows<L>::exponential(L::sub(x[j], best));
      }
      for (int i = kThresholds - 1; i >= 0 && row.most[block] >= thresholds[i]; --i) {
        const Float threshold = L::set(thresholds[i]);
        Float sum = parts[i];
        for (int j = 0; j < 4; ++j) sum = L::add_where_at_least(sum, x[j], threshold, weight[j]);
        parts[i] = sum;
      }
      if (++pending == kBlocksTogether) flush();
    }
    flush();
  }

  // The last of the prefix among the tokens that score from `low` to less than `upper`; the ones from there on weigh `base`.
  static Scored among(const Search& search, float low, float upper, double base, double& surplus) {
    const auto precedes = [](const Scored& a, const Scored& b) {
      return a.score > b.score || (a.score == b.score && a.id < b.id);
    };
    Scored* found = search.scratch.tokens;
    Scored* const end = found + gather(search.row, low, upper, found);
    if (!std::is_sorted(found, end, precedes)) std::sort(found, end, precedes);
    Scored* last = found;
    for (double sum = base + search.weight(last->score); sum < search.target && last + 1 < end;) {
      sum += search.weight((++last)->score);
    }
    surplus = 0.0;
    for (const Scored* next = last + 1; next < end && next->score == last->score; ++next) surplus += 1.0;
    return *last;
  }

  static int gather(const Scores& row, float low, float upper, Scored* found) {
    int count = 0;
    for (int block = 0; block < row.blocks; ++block) {
      if (row.most[block] < low) continue;
      Float x[4];
      alignas(64) float scores[16];
      row.load(block, x);
      for (int j = 0; j < 4; ++j) {
        std::uint32_t inside = L::less(x[j], L::set(upper)) & ~L::less(x[j], L::set(low));
        if (!inside) continue;
        L::store(scores, x[j]);
        for (; inside; inside &= inside - 1) {
          const int lane = __builtin_ctz(inside);
          found[count++] = {scores[lane], block * Scores::kBlock + 16 * j + lane};
        }
      }
    }
    return count;
  }
};

}  // namespace outrider

// The functions that have a version per instruction set, chosen once for the process by what the CPU has.
#pragma once

#include "packed.h"

namespace outrider {

// What names a row's noise: the key and the last three counter words (sampling/noise.py).
struct NoiseKey {
  std::uint64_t seed;
  std::uint32_t position, choice, purpose;
};

struct Scored {
  float score;
  std::int32_t id;
};

// Which tokens may be chosen, in the order min_p, top_k, top_p (sampling/distribution.py).
struct Truncation {
  int top_k;        // 0 keeps all
  double top_p;     // 1 keeps all
  float log_min_p;  // minus infinity keeps all
};

struct Row {
  const float* logits;
  int vocabulary;
  float temperature;
  Truncation truncation;
};

// What a row's kernels write on their way: as many tokens as the vocabulary has, and a number for every 32 of them.
struct RowScratch {
  float* numbers;
  Scored* tokens;
};

struct Kernels {
  const char* name;
  // Sums of one panel for the rows of some tiles: [rows][32].
  void (*linear)(const Packed&, int panel, const Activations&, const Tiles&, const TileRange&, float* sums);
  void (*prepare)(const float* from, int first, int count, const Place&, const Activations& to);
  float (*norm_factor)(const float* x, int width, float epsilon);
  void (*apply_norm)(const float* x, const float* weight, float factor, int count, float* out);
  void (*finish_store)(const float* sums, const float* bias, float* to, std::size_t stride, int panel, int columns,
                       int rows);
  void (*finish_add)(const float* sums, const float* bias, float* to, std::size_t stride, int panel, int columns,
                     int rows);
  void (*finish_gate)(float* gate, const float* up, bool is_gelu, int panel, int columns, const Tiles&,
                      const TileRange&, const Activations& to);
  void (*attend)(int heads, const float* query, const std::uint16_t* keys, const std::uint16_t* values, int width,
                 const std::int32_t* slots, int oldest, int newest, float cap, float* scores, int capacity, float* out);
  void (*soft_cap)(float* x, int count, float cap);
  void (*to_half)(const float* from, int width, int padded, std::uint16_t* to);
  // Reads memory as fast as it comes; returns a number that depends on all of it.
  std::int32_t (*read)(const std::uint8_t* from, std::size_t bytes);
  std::uint16_t (*four_bit_scale)(const float* x);
  bool (*best)(const Row&, const NoiseKey* key, int width, const RowScratch&, Scored* found);
  int (*survivors)(const Row&, const RowScratch&, std::int64_t* ids);
  // The words of the token ids 0 ... count - 1; count is a multiple of 64.
  void (*words)(const NoiseKey&, int count, std::uint32_t* to);
};

template <class L>
const Kernels& kernels_of();

// The best this CPU runs.
const Kernels& kernels();

// All that this CPU runs, best first, for tests.
int available_kernels(const Kernels* const** list);

// Makes one of them the process's, for tests; null goes back to the best.
void use_kernels(const Kernels* wanted);

}  // namespace outrider

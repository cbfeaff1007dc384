#include "product.h"

#include <algorithm>

namespace outrider {
namespace {

constexpr int kPanelsAtOnce = 2;  // per piece of work at least
constexpr int kInputsAtOnce = 16 * kGroup;

}  // namespace

float* scratch(std::size_t count, int which) {
  static thread_local Memory memory[3];
  return memory[which].take<float>(count);
}

Activations& RowStore::shape(int inputs, int rows, std::initializer_list<const Packed*> readers) {
  bool quantized = false, plain = false;
  const std::size_t numbers = std::size_t(inputs) * rows;
  view_ = {};
  view_.inputs = inputs;
  for (const Packed* reader : readers) {
    const KindFacts& fact = facts(reader->kind);
    (fact.quantized ? quantized : plain) = true;
    if (fact.zero_number >= 0) view_.starts[fact.zero_number] = starts_[fact.zero_number].take<std::int32_t>(numbers / 16);
  }
  if (quantized) {
    view_.quads = quads_.take<std::int32_t>(numbers / kQuad);
    view_.scales = scales_.take<float>(numbers / kGroup);
    view_.scaled_sums = scaled_sums_.take<float>(numbers / kGroup);
  }
  if (plain) view_.values = values_.take<float>(numbers);
  return view_;
}

// A piece of work is some inputs of all rows of a tile: those lie side by side, so that no two threads write to the same
// cache line.
void prepare_rows(const float* x, const float* norm, int width, float epsilon, const Tiles& tiles, const Activations& to) {
  const int pieces = (width + kInputsAtOnce - 1) / kInputsAtOnce;
  pool().run(tiles.count * pieces, 1, [&](int first, int last) {
    float* normal = scratch(kInputsAtOnce, 1);
    for (int item = first; item < last; ++item) {
      const int tile = item / pieces, input = item % pieces * kInputsAtOnce, count = std::min(kInputsAtOnce, width - input);
      for (int at = 0; at < tiles.size(tile); ++at) {
        const float* row = x + std::size_t(tiles.first(tile) + at) * width;
        const float* from = row + input;
        if (norm) {
          kernels().apply_norm(from, norm + input, kernels().norm_factor(row, width, epsilon), count, normal);
          from = normal;
        }
        kernels().prepare(from, input, count, Place(tiles.first(tile), tiles.size(tile), at), to);
      }
    }
  });
}

void multiply(const Activations& rows, const Tiles& tiles, std::initializer_list<Product> products) {
  int panels = 0;
  for (const Product& product : products) panels += product.weights.panels();
  pool().run(panels * TileRange::count(tiles), kPanelsAtOnce, [&](int first, int last) {
    const Kernels& run = kernels();
    float* sums = scratch(kMostSums, 0);
    for (int item = first; item < last; ++item) {
      const TileRange range(tiles, item / panels);
      int panel = item % panels;
      const Product* product = products.begin();
      while (panel >= product->weights.panels()) panel -= (product++)->weights.panels();
      run.linear(product->weights, panel, rows, tiles, range, sums);
      const int columns = std::min(kPanel, product->weights.outputs - panel * kPanel);
      (product->add ? run.finish_add : run.finish_store)(sums, product->bias, product->to + range.row * product->stride,
                                                         product->stride, panel, columns, range.rows);
    }
  });
}

}  // namespace outrider

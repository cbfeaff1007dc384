#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "kernels.h"
#include "pack.h"
#include "product.h"

namespace outrider {
namespace {

constexpr int kRowsAtOnce = 1;
constexpr int kGatePanelsAtOnce = 1;
constexpr int kLogitsAtOnce = 8192;

// RMSNorm of one row, or of a head.
void normalize(const float* x, const float* weight, int width, float epsilon, float* out) {
  kernels().apply_norm(x, weight, kernels().norm_factor(x, width, epsilon), width, out);
}

// Rows, normalised if there is a weight for it, to rows that may lie further apart.
void normalize_rows(const float* x, const float* weight, int width, float epsilon, int rows, float* out, int stride) {
  pool().run(rows, kRowsAtOnce, [&](int first, int last) {
    for (int r = first; r < last; ++r) {
      const float* from = x + std::size_t(r) * width;
      float* to = out + std::size_t(r) * stride;
      if (weight) {
        normalize(from, weight, width, epsilon, to);
      } else {
        std::memcpy(to, from, sizeof(float) * width);
      }
    }
  });
}

// Two rows side by side, each normalised on its own: [rows][2 * width].
void join(const float* left, const float* left_norm, const float* right, const float* right_norm,
          const DecoderShape& shape, int rows, float* out) {
  const int width = shape.width;
  normalize_rows(left, left_norm, width, shape.norm_epsilon, rows, out, 2 * width);
  normalize_rows(right, right_norm, width, shape.norm_epsilon, rows, out + width, 2 * width);
}

}  // namespace

struct Decoder::Buffers {
  Memory x_memory, query_memory, key_memory, value_memory, mixed_memory, added_memory, joined_memory;
  RowStore normal_store, mixed_store, inner_store;
  struct Angles {
    std::vector<float> cosines, sines;  // [rows][rotary width / 2]
  };
  std::vector<Angles> angles;           // of each kind of rotation
  std::vector<std::int32_t> slots;
  std::vector<View> views;
  int rows = 0;
  float *x, *query, *key, *value, *mixed, *added, *joined;
};

Decoder::Decoder(DecoderShape shape, std::vector<LayerWeights> layers, DecoderEnds ends)
    : shape_(shape), layers_(std::move(layers)), ends_(ends), joins_(ends.entry.outputs > 0) {
  const int half = shape_.rotary_width / 2;
  for (LayerWeights& layer : layers_) {  // layers that turn alike share their angles
    joins_ |= layer.joins;
    const auto same = [&](const Rotation& known) {
      return known.scale == layer.rotary_scale && std::equal(known.frequencies, known.frequencies + half, layer.inverse_frequencies);
    };
    const auto found = std::find_if(rotations_.begin(), rotations_.end(), same);
    layer.rotary = int(found - rotations_.begin());
    if (found == rotations_.end()) rotations_.push_back({layer.inverse_frequencies, layer.rotary_scale});
  }
}

void Decoder::forward(const Pass& pass) {
  const std::scoped_lock turn(pool().turn());
  const FloatingPointState state;
  static Buffers b;  // passes take turns, so every decoder of the process shares one workspace
  const std::size_t rows = pass.rows, heads = std::size_t(shape_.heads) * shape_.stored_width(),
                    key_heads = std::size_t(shape_.key_heads) * shape_.head_width;
  b.rows = pass.rows;
  b.x = b.x_memory.take<float>(rows * shape_.width);
  b.query = b.query_memory.take<float>(rows * heads);
  b.key = b.key_memory.take<float>(rows * key_heads);
  b.value = b.value_memory.take<float>(rows * key_heads);
  b.mixed = b.mixed_memory.take<float>(rows * heads);
  b.added = b.added_memory.take<float>(rows * shape_.width);
  if (joins_) b.joined = b.joined_memory.take<float>(2 * rows * shape_.width);

  view_rows(pass, b);
  turn_rows(pass, b);
  enter(pass, b);
  for (int i = 0; i < int(layers_.size()); ++i) {
    keys(pass, layers_[i], i, b);
    if (pass.keys_only) continue;
    attention(pass, layers_[i], i, b);
    mlp(layers_[i], b);
    for (const auto& [layer, to] : pass.hidden) {
      if (layer == i) std::memcpy(to, b.x, sizeof(float) * rows * shape_.width);
    }
  }
  if (!pass.keys_only) leave(pass, b);
}

// Makes the first layer's rows.
void Decoder::enter(const Pass& pass, Buffers& b) const {
  const int width = shape_.width;
  if (pass.tokens) {
    embed(pass.tokens, pass.rows, b.x);
  } else if (ends_.entry.outputs) {
    join(pass.beside, nullptr, pass.input, nullptr, shape_, b.rows, b.joined);
    const Tiles tiles(b.rows);
    const Activations& both = b.normal_store.shape(2 * width, b.rows, {&ends_.entry});
    prepare_rows(b.joined, nullptr, 2 * width, 0.0f, tiles, both);
    multiply(both, tiles, {{ends_.entry, ends_.entry_bias, b.x, std::size_t(width), false}});
  } else {
    std::memcpy(b.x, pass.input, sizeof(float) * b.rows * width);
  }
  if (ends_.entry_norm) normalize_rows(b.x, ends_.entry_norm, width, shape_.norm_epsilon, b.rows, b.x, width);
}

// Hands out final rows and logits.
void Decoder::leave(const Pass& pass, Buffers& b) const {
  const int width = shape_.width;
  for (const auto& [layer, to] : pass.hidden) {
    if (layer == layers()) normalize_rows(b.x, ends_.final_norm, width, shape_.norm_epsilon, pass.rows, to, width);
  }
  if (!pass.wanted_rows || !ends_.head.outputs) return;
  for (int i = 0; i < pass.wanted_rows; ++i) {
    std::memcpy(b.added + std::size_t(i) * width, b.x + std::size_t(pass.wanted[i]) * width, sizeof(float) * width);
  }
  project(b.added, ends_.final_norm, pass.wanted_rows, pass.logits);
}

void Decoder::embed_tokens(const std::int64_t* tokens, int rows, float* to) const {
  const std::scoped_lock turn(pool().turn());
  const FloatingPointState state;
  embed(tokens, rows, to);
}

void Decoder::unembed(const float* rows, int count, float* to) const {
  const std::scoped_lock turn(pool().turn());
  const FloatingPointState state;
  project(rows, nullptr, count, to);
}

void Decoder::head_rows(const std::int64_t* ids, int count, float* to) const {
  const std::scoped_lock turn(pool().turn());
  pool().run(count, kRowsAtOnce, [&](int first, int last) {
    for (int i = first; i < last; ++i) unpack_output(ends_.head, int(ids[i]), to + std::size_t(i) * shape_.width);
  });
}

void Decoder::view_rows(const Pass& pass, Buffers& b) const {
  // A sequence's slots once, for the rows whose path is a straight line, and a copy for each row whose path is not.
  std::size_t total = 0;
  for (const SequenceShare& s : pass.sequences) {
    const std::size_t columns = s.context + s.forced + s.nodes;
    total += columns;
    for (int node = 1; node < s.nodes; ++node) {
      if (s.parents[node] != node - 1) {
        total += columns * (s.nodes - node);  // its descendants may need one as well
        break;
      }
    }
  }
  b.slots.resize(total);
  b.views.resize(pass.rows);
  std::int32_t* free = b.slots.data();
  std::vector<std::int32_t*> of_node;
  std::vector<int> depth;
  for (const SequenceShare& s : pass.sequences) {
    const int straight = s.context + s.forced, columns = straight + s.nodes;
    std::int32_t* shared = free;
    free += columns;
    for (int i = 0; i < columns; ++i) shared[i] = std::int32_t(s.slots[i]);
    of_node.assign(s.nodes, shared);
    depth.assign(s.nodes, 0);
    for (int node = 1; node < s.nodes; ++node) {
      const int parent = s.parents[node];
      depth[node] = depth[parent] + 1;
      const int newest = straight + depth[node];
      of_node[node] = of_node[parent];
      if (of_node[parent] != shared || node != depth[node]) {
        std::memcpy(free, of_node[parent], sizeof(std::int32_t) * newest);
        free[newest] = std::int32_t(s.slots[straight + node]);
        of_node[node] = free;
        free += newest + 1;
      }
    }
    for (int r = 0; r < s.rows; ++r) {
      const int place = s.skip + r, node = place - s.forced;
      const int own = node < 0 ? s.context + place : straight + depth[node];
      b.views[s.first_row + r] = {node < 0 ? shared : of_node[node], node < 0 && s.together ? straight - 1 : own, own};
    }
  }
}

void Decoder::turn_rows(const Pass& pass, Buffers& b) const {
  const int half = shape_.rotary_width / 2;
  b.angles.resize(std::max(b.angles.size(), rotations_.size()));
  for (std::size_t i = 0; i < rotations_.size(); ++i) {
    Buffers::Angles& angles = b.angles[i];
    angles.cosines.resize(std::size_t(pass.rows) * half);
    angles.sines.resize(std::size_t(pass.rows) * half);
    pool().run(pass.rows, kRowsAtOnce, [&](int first, int last) {
      for (int r = first; r < last; ++r) {
        for (int k = 0; k < half; ++k) {
          const float angle = float(pass.positions[r]) * rotations_[i].frequencies[k];
          angles.cosines[std::size_t(r) * half + k] = std::cos(angle) * rotations_[i].scale;
          angles.sines[std::size_t(r) * half + k] = std::sin(angle) * rotations_[i].scale;
        }
      }
    });
  }
}

void Decoder::embed(const std::int64_t* tokens, int rows, float* to) const {
  pool().run(rows, kRowsAtOnce, [&](int first, int last) {
    for (int r = first; r < last; ++r) {
      float* x = to + std::size_t(r) * shape_.width;
      unpack_output(ends_.embedding, int(tokens[r]), x);
      if (shape_.embedding_scale != 1.0f) {
        for (int i = 0; i < shape_.width; ++i) x[i] *= shape_.embedding_scale;
      }
    }
  });
}

namespace {

void add_normalized(const float* added, const float* weight, int width, float epsilon, int rows, float* x) {
  pool().run(rows, kRowsAtOnce, [&](int first, int last) {
    float* normal = scratch(width, 1);
    for (int r = first; r < last; ++r) {
      normalize(added + std::size_t(r) * width, weight, width, epsilon, normal);
      for (int i = 0; i < width; ++i) x[std::size_t(r) * width + i] += normal[i];
    }
  });
}

// Halves of a head's rotated part turn into each other.
void rotate(float* head, int half, const float* cosines, const float* sines) {
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace

// What a layer's attention reads, ready for its matrices.
const Activations& Decoder::attention_rows(const Pass& pass, const LayerWeights& layer, const Tiles& tiles,
                                           Buffers& b) const {
  const int inputs = layer.query.inputs;
  const Activations& ready = b.normal_store.shape(inputs, b.rows, {&layer.query, &layer.key, &layer.value});
  if (layer.joins) {
    join(pass.beside, layer.beside_norm, b.x, layer.attention_norm, shape_, b.rows, b.joined);
    prepare_rows(b.joined, nullptr, inputs, 0.0f, tiles, ready);
  } else {
    prepare_rows(b.x, pass.keys_only ? nullptr : layer.attention_norm, inputs, shape_.norm_epsilon, tiles, ready);
  }
  return ready;
}

// Writes the rows' keys and values into the cache, and makes their queries if anything will attend.
void Decoder::keys(const Pass& pass, const LayerWeights& layer, int index, Buffers& b) const {
  const Tiles tiles(b.rows);
  const Activations& ready = attention_rows(pass, layer, tiles, b);
  const std::size_t query_stride = std::size_t(shape_.heads) * shape_.head_width;
  const std::size_t key_stride = std::size_t(shape_.key_heads) * shape_.head_width;
  const Product key{layer.key, layer.key_bias, b.key, key_stride, false};
  const Product value{layer.value, layer.value_bias, b.value, key_stride, false};
  if (pass.keys_only) {
    multiply(ready, tiles, {key, value});
  } else {
    multiply(ready, tiles, {{layer.query, layer.query_bias, b.query, query_stride, false}, key, value});
  }
  write_cache(pass, layer, index, b);
}

void Decoder::attention(const Pass& pass, const LayerWeights& layer, int index, Buffers& b) const {
  const Tiles tiles(b.rows);
  const int stored = shape_.stored_width(), group = shape_.heads / shape_.key_heads;
  const std::size_t query_stride = std::size_t(shape_.heads) * shape_.head_width;
  Activations& mixed = b.mixed_store.shape(int(query_stride), b.rows, {&layer.output});
  const std::size_t head_stride = std::size_t(pass.cache.slots) * stored;
  const int count = group * shape_.head_width;
  pool().run(b.rows * shape_.key_heads, 1, [&](int first, int last) {
    for (int item = first; item < last; ++item) {
      const int r = item / shape_.key_heads, key_head = item % shape_.key_heads;
      const View& view = b.views[r];
      const int oldest = layer.window ? std::max(0, view.newest - layer.window + 1) : 0;
      const int capacity = (view.newest - (oldest & ~15) + 16) & ~15;
      const std::size_t head = std::size_t(index) * shape_.key_heads + key_head;
      float* scores = scratch(std::size_t(capacity) * 8, 0);
      float* out = scratch(std::size_t(group) * stored + query_stride, 1);
      const float* query = b.query + (std::size_t(r) * shape_.heads + std::size_t(key_head) * group) * shape_.head_width;
      float* padded = scratch(std::size_t(group) * stored, 2);
      for (int h = 0; h < group; ++h) {
        for (int i = 0; i < stored; ++i) {
          padded[h * stored + i] = i < shape_.head_width ? query[h * shape_.head_width + i] * shape_.score_scale : 0.0f;
        }
      }
      kernels().attend(group, padded, pass.cache.keys + head * head_stride, pass.cache.values + head * head_stride,
                       stored, view.slots, oldest, view.newest, shape_.score_cap, scores, capacity, out);
      if (stored != shape_.head_width) {
        for (int h = 1; h < group; ++h) {
          std::memmove(out + h * shape_.head_width, out + h * stored, sizeof(float) * shape_.head_width);
        }
      }
      std::memcpy(b.mixed + std::size_t(r) * query_stride + key_head * count, out, sizeof(float) * count);
    }
  });
  prepare_rows(b.mixed, nullptr, int(query_stride), 0.0f, tiles, mixed);
  if (layer.attention_post_norm) {
    multiply(mixed, tiles, {{layer.output, layer.output_bias, b.added, std::size_t(shape_.width), false}});
    add_normalized(b.added, layer.attention_post_norm, shape_.width, shape_.norm_epsilon, b.rows, b.x);
  } else {
    multiply(mixed, tiles, {{layer.output, layer.output_bias, b.x, std::size_t(shape_.width), true}});
  }
}

void Decoder::write_cache(const Pass& pass, const LayerWeights& layer, int index, Buffers& b) const {
  const int width = shape_.head_width, stored = shape_.stored_width(), half = shape_.rotary_width / 2;
  const std::size_t head_stride = std::size_t(pass.cache.slots) * stored;
  const Buffers::Angles& angles = b.angles[layer.rotary];
  pool().run(b.rows, kRowsAtOnce, [&](int first, int last) {
    for (int r = first; r < last; ++r) {
      const View& view = b.views[r];
      const float* cosines = angles.cosines.data() + std::size_t(r) * half;
      const float* sines = angles.sines.data() + std::size_t(r) * half;
      const auto turn = [&](float* head, const float* norm) {
        if (norm) normalize(head, norm, width, shape_.norm_epsilon, head);
        rotate(head, half, cosines, sines);
      };
      for (int h = 0; h < (pass.keys_only ? 0 : shape_.heads); ++h) turn(b.query + (std::size_t(r) * shape_.heads + h) * width, layer.query_norm);
      for (int h = 0; h < shape_.key_heads; ++h) {
        float* key = b.key + (std::size_t(r) * shape_.key_heads + h) * width;
        const float* value = b.value + (std::size_t(r) * shape_.key_heads + h) * width;
        turn(key, layer.key_norm);
        const std::size_t at = (std::size_t(index) * shape_.key_heads + h) * head_stride +
                               std::size_t(view.slots[view.own]) * stored;
        kernels().to_half(key, width, stored, pass.cache.keys + at);
        kernels().to_half(value, width, stored, pass.cache.values + at);
      }
    }
  });
}

void Decoder::mlp(const LayerWeights& layer, Buffers& b) const {
  const Tiles tiles(b.rows);
  Activations& normal = b.normal_store.shape(shape_.width, b.rows, {&layer.gate, &layer.up});
  prepare_rows(b.x, layer.mlp_norm, shape_.width, shape_.norm_epsilon, tiles, normal);
  Activations& inner = b.inner_store.shape(shape_.inner, b.rows, {&layer.down});
  const int panels = layer.gate.panels();
  pool().run(panels * TileRange::count(tiles), kGatePanelsAtOnce, [&](int first, int last) {
    const Kernels& run = kernels();
    float* gate = scratch(kMostSums, 0);
    float* up = scratch(kMostSums, 1);
    for (int item = first; item < last; ++item) {
      const TileRange range(tiles, item / panels);
      const int panel = item % panels;
      const int columns = std::min(kPanel, shape_.inner - panel * kPanel);
      run.linear(layer.gate, panel, normal, tiles, range, gate);
      run.linear(layer.up, panel, normal, tiles, range, up);
      if (layer.gate_bias) {
        for (int m = 0; m < range.rows; ++m) {
          for (int i = 0; i < columns; ++i) {
            gate[m * kPanel + i] += layer.gate_bias[panel * kPanel + i];
            up[m * kPanel + i] += layer.up_bias[panel * kPanel + i];
          }
        }
      }
      run.finish_gate(gate, up, shape_.gelu, panel, columns, tiles, range, inner);
    }
  });
  if (layer.mlp_post_norm) {
    multiply(inner, tiles, {{layer.down, layer.down_bias, b.added, std::size_t(shape_.width), false}});
    add_normalized(b.added, layer.mlp_post_norm, shape_.width, shape_.norm_epsilon, b.rows, b.x);
  } else {
    multiply(inner, tiles, {{layer.down, layer.down_bias, b.x, std::size_t(shape_.width), true}});
  }
}

void Decoder::project(const float* rows, const float* norm, int count, float* to) const {
  static RowStore store;  // calls take turns
  const Tiles tiles(count);
  Activations& last = store.shape(shape_.width, count, {&ends_.head});
  prepare_rows(rows, norm, shape_.width, shape_.norm_epsilon, tiles, last);
  multiply(last, tiles, {{ends_.head, nullptr, to, std::size_t(shape_.vocabulary), false}});
  if (shape_.logit_cap > 0.0f) {
    const int pieces = (shape_.vocabulary + kLogitsAtOnce - 1) / kLogitsAtOnce;
    pool().run(count * pieces, 1, [&](int first, int last_piece) {
      for (int item = first; item < last_piece; ++item) {
        const int start = item % pieces * kLogitsAtOnce, numbers = std::min(kLogitsAtOnce, shape_.vocabulary - start);
        kernels().soft_cap(to + std::size_t(item / pieces) * shape_.vocabulary + start, numbers, shape_.logit_cap);
      }
    });
  }
}

}  // namespace outrider

// One pass of a dense decoder over the rows of many sequences, from token ids or from given rows.
#pragma once

#include <cstdint>
#include <vector>

#include "packed.h"

namespace outrider {

// Pointers belong to whoever made the decoder; a null vector is absent.
struct LayerWeights {
  Packed query, key, value, output, gate, up, down;
  const float* query_bias = nullptr;
  const float* key_bias = nullptr;
  const float* value_bias = nullptr;
  const float* output_bias = nullptr;
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
  const float* attention_norm = nullptr;
  const float* mlp_norm = nullptr;
  const float* query_norm = nullptr;       // per head
  const float* key_norm = nullptr;
  const float* attention_post_norm = nullptr;  // of what attention adds to the row
  const float* mlp_post_norm = nullptr;
  bool joins = false;                      // attention reads [row beside it; row], each normed on its own
  const float* beside_norm = nullptr;
  const float* inverse_frequencies = nullptr;  // [rotary width / 2]
  float rotary_scale = 1.0f;               // of cosines and sines (yarn)
  int rotary = 0;                          // which of the decoder's rotations; it finds out itself
  int window = 0;                          // positions a row sees, its own included; 0 is all
};

// What is before the first layer and after the last; a matrix without outputs is absent.
struct DecoderEnds {
  Packed embedding;                   // absent where rows are given
  Packed entry;                       // [row beside it; row] becomes the first layer's row
  const float* entry_bias = nullptr;
  const float* entry_norm = nullptr;  // of the first layer's rows, the residual stream included
  const float* final_norm = nullptr;
  Packed head;
};

struct DecoderShape {
  int width = 0, heads = 0, key_heads = 0, head_width = 0, rotary_width = 0, inner = 0, vocabulary = 0;
  float norm_epsilon = 0.0f, score_scale = 0.0f, embedding_scale = 1.0f;
  float score_cap = 0.0f, logit_cap = 0.0f;  // bounds of attention scores and logits; 0 is none
  bool gelu = false;

  // Head rows in the cache are filled up with zeros to whole vectors.
  int stored_width() const { return (head_width + kPanel - 1) / kPanel * kPanel; }
};

// One sequence's share of a pass; see SequenceRows in tree.py.  Rows are forced tokens, then tree nodes.
struct SequenceShare {
  int first_row, rows, context, forced, skip;
  bool together;                // forced rows all see each other
  const std::int32_t* parents;  // of the tree's nodes; -1 for the anchor
  int nodes;
  const std::int64_t* slots;    // cache slot of each row of the sequence, committed and new
};

// Keys and values of all layers: [layer][key head][slot][stored width] fp16.
struct Cache {
  std::uint16_t* keys;
  std::uint16_t* values;
  std::int64_t slots;
};

class Decoder {
 public:
  Decoder(DecoderShape shape, std::vector<LayerWeights> layers, DecoderEnds ends);

  struct Pass {
    int rows;
    const std::int64_t* tokens;                // null where rows are given
    const float* input;                        // [rows][width]
    const float* beside;                       // [rows][width], for what reads two rows side by side
    bool keys_only;                            // write every layer's keys and values of the rows, and nothing else
    const std::int64_t* positions;
    std::vector<SequenceShare> sequences;
    Cache cache;
    const std::int64_t* wanted;
    int wanted_rows;
    float* logits;                             // [wanted rows][vocabulary]
    std::vector<std::pair<int, float*>> hidden;  // layer, [rows][width]; the one past the last is the final norm
  };

  void forward(const Pass& pass);

  // The ends alone: rows the first layer reads, logits of rows after the final norm, and rows of the head matrix.
  void embed_tokens(const std::int64_t* tokens, int rows, float* to) const;
  void unembed(const float* rows, int count, float* to) const;
  void head_rows(const std::int64_t* ids, int count, float* to) const;

  const DecoderShape& shape() const { return shape_; }
  const DecoderEnds& ends() const { return ends_; }
  int layers() const { return int(layers_.size()); }
  // Whether anything reads a row beside each row.
  bool joins() const { return joins_; }

 private:
  // A row's view of the cache: slots by absolute position, up to the newest it sees, and its own.
  struct View {
    const std::int32_t* slots;
    int newest, own;
  };
  struct Buffers;
  struct Rotation {
    const float* frequencies;
    float scale;
  };

  void view_rows(const Pass& pass, Buffers& b) const;
  void turn_rows(const Pass& pass, Buffers& b) const;
  void embed(const std::int64_t* tokens, int rows, float* to) const;
  void enter(const Pass& pass, Buffers& b) const;
  void leave(const Pass& pass, Buffers& b) const;
  const Activations& attention_rows(const Pass& pass, const LayerWeights& layer, const Tiles& tiles, Buffers& b) const;
  void keys(const Pass& pass, const LayerWeights& layer, int index, Buffers& b) const;
  void attention(const Pass& pass, const LayerWeights& layer, int index, Buffers& b) const;
  void write_cache(const Pass& pass, const LayerWeights& layer, int index, Buffers& b) const;
  void mlp(const LayerWeights& layer, Buffers& b) const;
  // Logits of rows, normalised first if there is a weight for it.
  void project(const float* rows, const float* norm, int count, float* to) const;

  DecoderShape shape_;
  std::vector<LayerWeights> layers_;
  std::vector<Rotation> rotations_;
  DecoderEnds ends_;
  bool joins_;
};

}  // namespace outrider

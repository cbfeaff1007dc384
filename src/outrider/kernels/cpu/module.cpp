// What Python sees: packed matrices, a decoder, the pool, and the kernels themselves for tests and benchmarks.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "decoder.h"
#include "kernels.h"
#include "pack.h"
#include "product.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace outrider {
namespace {

template <class T, std::size_t dimensions>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu, nb::ndim<dimensions>>;
template <class T>
using Vector = Array<const T, 1>;

// One block of Philox4x32-10, for the few numbers that are drawn one by one: see sampling/noise.py, the specification.
std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t> philox(
    std::uint64_t seed, std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3) {
  std::uint32_t low = std::uint32_t(seed), high = std::uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round, low += 0x9E3779B9u, high += 0xBB67AE85u) {
    const std::uint64_t one = 0xD2511F53ull * c0, two = 0xCD9E8D57ull * c2;
    c0 = std::uint32_t(two >> 32) ^ c1 ^ low, c1 = std::uint32_t(two);
    c2 = std::uint32_t(one >> 32) ^ c3 ^ high, c3 = std::uint32_t(one);
  }
  return {c0, c1, c2, c3};
}

Kind kind_named(const std::string& name) {
  for (int i = 0; i < kKinds; ++i) {
    if (name == facts(Kind(i)).name) return Kind(i);
  }
  throw nb::value_error(("there are no kernels for weights of the kind " + name).c_str());
}

void check(bool holds, const char* message) {
  if (!holds) throw nb::value_error(message);
}

std::size_t packed_bytes(const std::string& kind, int inputs, int outputs) {
  const Kind found = kind_named(kind);
  check(inputs > 0 && outputs > 0, "a matrix needs inputs and outputs");
  const int unit = facts(found).file_block_inputs;
  check(inputs % unit == 0, "the inputs are no multiple of the kind's block");
  return panel_bytes(found, inputs) * std::size_t((outputs + kPanel - 1) / kPanel);
}

Packed packed_view(const std::string& kind, int inputs, int outputs, Vector<std::uint8_t> data) {
  check(data.size() == packed_bytes(kind, inputs, outputs), "the packed bytes have another length than their shape asks for");
  const Kind found = kind_named(kind);
  return {found, inputs, outputs, panel_bytes(found, inputs), data.data()};
}

std::size_t rows_of(Kind kind, int inputs, std::size_t bytes) {
  const KindFacts& fact = facts(kind);
  check(inputs > 0 && inputs % fact.file_block_inputs == 0, "the inputs are no multiple of the kind's block");
  const std::size_t row = std::size_t(inputs) / fact.file_block_inputs * fact.file_block_bytes;
  check(bytes % row == 0, "the bytes are not made of whole rows");
  return bytes / row;
}

void check_order(const std::optional<Vector<std::int64_t>>& order, int outputs, std::size_t rows) {
  check(order || rows == std::size_t(outputs), "the source has another number of rows than the matrix has outputs");
  if (!order) return;
  check(order->size() == std::size_t(outputs), "the order has another length than the matrix has outputs");
  for (std::size_t i = 0; i < order->size(); ++i) {
    check(order->data()[i] >= 0 && std::size_t(order->data()[i]) < rows, "the order names a row that is not there");
  }
}

void pack_matrix(const std::string& kind, int inputs, int outputs, Vector<std::uint8_t> source,
                 std::optional<Vector<std::int64_t>> order, Array<std::uint8_t, 1> to) {
  const Kind found = kind_named(kind);
  check(to.size() == packed_bytes(kind, inputs, outputs), "the packed bytes have another length than their shape asks for");
  check_order(order, outputs, rows_of(found, inputs, source.size()));
  const nb::gil_scoped_release release;
  const std::scoped_lock turn(pool().turn());
  pack(found, inputs, outputs, source.data(), order ? order->data() : nullptr, to.data());
}

void requantize_matrix(const std::string& from, const std::string& to_kind, int inputs, int outputs, Vector<std::uint8_t> source,
                       std::optional<Vector<std::int64_t>> order, Array<std::uint8_t, 1> to) {
  const Kind found = kind_named(from), wanted = kind_named(to_kind);
  check(wanted == Kind::q8_0 || wanted == Kind::q4_0, "weights can be quantised to Q8_0 and Q4_0 only");
  const std::size_t source_rows = rows_of(found, inputs, source.size());
  check(rows_of(wanted, inputs, to.size()) == std::size_t(outputs), "the result has another length than its shape asks for");
  check_order(order, outputs, source_rows);
  const nb::gil_scoped_release release;
  const std::scoped_lock turn(pool().turn());
  requantize(found, wanted, inputs, outputs, source.data(), order ? order->data() : nullptr, to.data());
}

// Rows times a matrix, in workspace that is kept; a bias is added if there is one.
void linear(const Packed& weights, Array<const float, 2> rows, Array<float, 2> to, std::optional<Vector<float>> bias) {
  check(int(rows.shape(1)) == weights.inputs, "the rows have another width than the matrix");
  check(to.shape(0) == rows.shape(0) && int(to.shape(1)) == weights.outputs, "the output has another shape than the product");
  check(!bias || int(bias->size()) == weights.outputs, "the bias has another length than the matrix has outputs");
  const int count = int(rows.shape(0));
  if (!count) return;
  const nb::gil_scoped_release release;
  const std::scoped_lock turn(pool().turn());
  const FloatingPointState state;
  static RowStore store;  // calls take turns
  const Tiles tiles(count);
  const Activations& ready = store.shape(weights.inputs, count, {&weights});
  prepare_rows(rows.data(), nullptr, weights.inputs, 0.0f, tiles, ready);
  multiply(ready, tiles, {{weights, bias ? bias->data() : nullptr, to.data(), std::size_t(weights.outputs), false}});
}

double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// Seconds of each product of the same rows with each of several matrices, one after the other: with enough of them
// every one comes from memory.  Making the rows ready is not in the time.
std::vector<double> time_linear(const std::vector<Packed>& matrices, Array<const float, 2> rows, int repeat) {
  check(!matrices.empty() && repeat > 0, "there is nothing to time");
  for (const Packed& each : matrices) check(int(rows.shape(1)) == each.inputs, "the rows have another width than a matrix");
  const nb::gil_scoped_release release;
  const std::scoped_lock turn(pool().turn());
  const Tiles tiles(int(rows.shape(0)));
  RowStore store;
  const Activations& ready = store.shape(matrices[0].inputs, tiles.rows, {&matrices[0]});
  prepare_rows(rows.data(), nullptr, matrices[0].inputs, 0.0f, tiles, ready);
  std::vector<float> to(rows.shape(0) * std::size_t(matrices[0].outputs));
  std::vector<double> seconds;
  for (int i = 0; i < repeat; ++i) {
    for (const Packed& each : matrices) {
      const auto begun = std::chrono::steady_clock::now();
      multiply(ready, tiles, {{each, nullptr, to.data(), std::size_t(each.outputs), false}});
      seconds.push_back(seconds_since(begun));
    }
  }
  return seconds;
}

// Seconds to read some memory once with all threads.
double time_read(Vector<std::uint8_t> data) {
  constexpr std::size_t piece = 1 << 16;
  const nb::gil_scoped_release release;
  const std::scoped_lock turn(pool().turn());
  std::atomic<std::int32_t> seen{0};
  const auto begun = std::chrono::steady_clock::now();
  pool().run(int(data.size() / piece), 4, [&](int first, int last) {
    seen.fetch_add(kernels().read(data.data() + first * piece, (last - first) * piece), std::memory_order_relaxed);
  });
  return seconds_since(begun);
}

const float* float_of(const nb::dict& layer, const char* name, std::size_t length) {
  if (!layer.contains(name) || layer[name].is_none()) return nullptr;
  const auto array = nb::cast<Vector<float>>(layer[name]);
  check(array.size() == length, (std::string(name) + " has another length than the shape asks for").c_str());
  return array.data();
}

Packed packed_of(const nb::dict& layer, const char* name, int inputs, int outputs) {
  check(layer.contains(name), (std::string(name) + " is missing").c_str());
  const Packed found = nb::cast<Packed>(layer[name]);
  check(found.inputs == inputs && found.outputs == outputs, (std::string(name) + " has another shape than is due").c_str());
  return found;
}

LayerWeights layer_of(const nb::dict& layer, const DecoderShape& s) {
  const int query = s.heads * s.head_width, key = s.key_heads * s.head_width;
  LayerWeights made;
  made.joins = layer.contains("joins") && nb::cast<bool>(layer["joins"]);
  made.beside_norm = float_of(layer, "beside_norm", s.width);
  const int reads = made.joins ? 2 * s.width : s.width;
  made.query = packed_of(layer, "query", reads, query);
  made.key = packed_of(layer, "key", reads, key);
  made.value = packed_of(layer, "value", reads, key);
  made.output = packed_of(layer, "output", query, s.width);
  made.gate = packed_of(layer, "gate", s.width, s.inner);
  made.up = packed_of(layer, "up", s.width, s.inner);
  made.down = packed_of(layer, "down", s.inner, s.width);
  made.query_bias = float_of(layer, "query_bias", query);
  made.key_bias = float_of(layer, "key_bias", key);
  made.value_bias = float_of(layer, "value_bias", key);
  made.output_bias = float_of(layer, "output_bias", s.width);
  made.gate_bias = float_of(layer, "gate_bias", s.inner);
  made.up_bias = float_of(layer, "up_bias", s.inner);
  check(!made.gate_bias == !made.up_bias, "gate and up have a bias both or neither");
  made.down_bias = float_of(layer, "down_bias", s.width);
  made.attention_norm = float_of(layer, "attention_norm", s.width);
  made.mlp_norm = float_of(layer, "mlp_norm", s.width);
  check(made.mlp_norm, "a layer needs the norm before its feed-forward part");
  made.query_norm = float_of(layer, "query_norm", s.head_width);
  made.key_norm = float_of(layer, "key_norm", s.head_width);
  made.attention_post_norm = float_of(layer, "attention_post_norm", s.width);
  made.mlp_post_norm = float_of(layer, "mlp_post_norm", s.width);
  made.inverse_frequencies = float_of(layer, "inverse_frequencies", s.rotary_width / 2);
  check(made.inverse_frequencies, "a layer needs its rotary frequencies");
  made.rotary_scale = nb::cast<float>(layer["rotary_scale"]);
  made.window = nb::cast<int>(layer["window"]);
  return made;
}

DecoderShape shape_of(const nb::dict& d) {
  DecoderShape s;
  s.width = nb::cast<int>(d["width"]);
  s.heads = nb::cast<int>(d["heads"]);
  s.key_heads = nb::cast<int>(d["key_heads"]);
  s.head_width = nb::cast<int>(d["head_width"]);
  s.rotary_width = nb::cast<int>(d["rotary_width"]);
  s.inner = nb::cast<int>(d["inner"]);
  s.vocabulary = nb::cast<int>(d["vocabulary"]);
  s.norm_epsilon = nb::cast<float>(d["norm_epsilon"]);
  s.score_scale = nb::cast<float>(d["score_scale"]);
  s.embedding_scale = nb::cast<float>(d["embedding_scale"]);
  s.score_cap = nb::cast<float>(d["score_cap"]);
  s.logit_cap = nb::cast<float>(d["logit_cap"]);
  s.gelu = nb::cast<bool>(d["gelu"]);
  check(s.heads > 0 && s.key_heads > 0 && s.heads % s.key_heads == 0, "the key heads do not divide the heads");
  check(s.rotary_width % 2 == 0 && s.rotary_width <= s.head_width, "the rotary width is odd or wider than a head");
  return s;
}

Packed end_of(const nb::dict& ends, const char* name, int inputs, int outputs) {
  const bool absent = !ends.contains(name) || ends[name].is_none();
  return absent ? Packed{} : packed_of(ends, name, inputs, outputs);
}

void make_decoder(Decoder* self, const nb::dict& shape, const nb::list& layers, const nb::dict& ends) {
  const DecoderShape s = shape_of(shape);
  std::vector<LayerWeights> made;
  for (const nb::handle layer : layers) made.push_back(layer_of(nb::cast<nb::dict>(layer), s));
  DecoderEnds e;
  e.embedding = end_of(ends, "embedding", s.width, s.vocabulary);
  e.entry = end_of(ends, "entry", 2 * s.width, s.width);
  e.entry_bias = float_of(ends, "entry_bias", s.width);
  e.entry_norm = float_of(ends, "entry_norm", s.width);
  e.final_norm = float_of(ends, "final_norm", s.width);
  e.head = end_of(ends, "head", s.width, s.vocabulary);
  new (self) Decoder(s, std::move(made), e);
}

void check_tokens(Vector<std::int64_t> tokens, int vocabulary) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    check(tokens.data()[i] >= 0 && tokens.data()[i] < vocabulary, "a token lies outside the vocabulary");
  }
}

void check_rows(const Array<float, 2>& rows, std::size_t count, int width) {
  check(rows.shape(0) == count && int(rows.shape(1)) == width, "the output has another shape than is due");
}

void check_end(const Packed& end) {
  check(end.outputs > 0, "the decoder was made without the matrix this takes");
}

void embed(const Decoder& decoder, Vector<std::int64_t> tokens, Array<float, 2> to) {
  check_end(decoder.ends().embedding);
  check_tokens(tokens, decoder.shape().vocabulary);
  check_rows(to, tokens.size(), decoder.shape().width);
  const nb::gil_scoped_release release;
  decoder.embed_tokens(tokens.data(), int(tokens.size()), to.data());
}

void unembed(const Decoder& decoder, Array<const float, 2> rows, Array<float, 2> to) {
  check_end(decoder.ends().head);
  check(int(rows.shape(1)) == decoder.shape().width, "the rows have another width than the decoder");
  check_rows(to, rows.shape(0), decoder.shape().vocabulary);
  if (!rows.shape(0)) return;
  const nb::gil_scoped_release release;
  decoder.unembed(rows.data(), int(rows.shape(0)), to.data());
}

void head_rows(const Decoder& decoder, Vector<std::int64_t> ids, Array<float, 2> to) {
  check_end(decoder.ends().head);
  check_tokens(ids, decoder.shape().vocabulary);
  check_rows(to, ids.size(), decoder.shape().width);
  const nb::gil_scoped_release release;
  decoder.head_rows(ids.data(), int(ids.size()), to.data());
}

using Halves = nb::ndarray<nb::c_contig, nb::device::cpu>;

// Where a pass's rows stand and what is wanted of them.  A sequence is (rows, context, forced, skip, parents, slots,
// together).
Decoder::Pass pass_of(const Decoder& decoder, Vector<std::int64_t> positions, const nb::list& sequences,
                      const Halves& keys, const Halves& values) {
  Decoder::Pass pass{};
  check(keys.ndim() == 3 && values.ndim() == 3 && keys.itemsize() == 2 && values.itemsize() == 2,
        "keys and values must be [layers x heads, slots, width] of 16 bits");
  check(int(keys.shape(2)) == decoder.shape().stored_width() && keys.nbytes() == values.nbytes(),
        "keys and values have another width than a stored head");
  check(int(keys.shape(0)) == decoder.layers() * decoder.shape().key_heads, "keys are kept for more heads than there are, or fewer");
  pass.rows = int(positions.size());
  pass.positions = positions.data();
  pass.cache = {static_cast<std::uint16_t*>(keys.data()), static_cast<std::uint16_t*>(values.data()),
                std::int64_t(keys.shape(1))};
  int row = 0;
  for (const nb::handle item : sequences) {
    const auto share = nb::cast<nb::tuple>(item);
    const auto parents = nb::cast<Vector<std::int32_t>>(share[4]);
    const auto slots = nb::cast<Vector<std::int64_t>>(share[5]);
    SequenceShare made{row, nb::cast<int>(share[0]), nb::cast<int>(share[1]), nb::cast<int>(share[2]),
                       nb::cast<int>(share[3]), nb::cast<bool>(share[6]), parents.data(), int(parents.size()), slots.data()};
    check(made.context >= 0 && made.forced >= 0 && made.skip >= 0 &&
              made.skip + made.rows == made.forced + made.nodes &&
              int(slots.size()) == made.context + made.forced + made.nodes,
          "a sequence's rows do not add up");
    for (int n = 1; n < made.nodes; ++n) check(made.parents[n] >= 0 && made.parents[n] < n, "a node's parent must precede it");
    for (std::size_t i = 0; i < slots.size(); ++i) check(slots.data()[i] >= 0 && slots.data()[i] < pass.cache.slots, "a slot lies outside the cache");
    row += made.rows;
    pass.sequences.push_back(made);
  }
  check(row == pass.rows, "the sequences have more rows than the pass, or fewer");
  return pass;
}

// What a pass hands out: logits of wanted rows, and hidden rows of (layer, to).
void want(const Decoder& decoder, Vector<std::int64_t> wanted, const Array<float, 2>& logits, const nb::list& hidden,
          Decoder::Pass& pass) {
  const DecoderShape& shape = decoder.shape();
  pass.wanted = wanted.data();
  pass.wanted_rows = int(wanted.size());
  for (int i = 0; i < pass.wanted_rows; ++i) check(wanted.data()[i] >= 0 && wanted.data()[i] < pass.rows, "a wanted row is not in the pass");
  check(int(logits.shape(0)) == pass.wanted_rows && int(logits.shape(1)) == shape.vocabulary, "the logits have another shape than is due");
  pass.logits = logits.data();
  for (const nb::handle item : hidden) {
    const auto pair = nb::cast<nb::tuple>(item);
    const auto to = nb::cast<Array<float, 2>>(pair[1]);
    const int layer = nb::cast<int>(pair[0]);
    check(layer >= 0 && layer <= decoder.layers(), "hidden rows are asked of a layer that is not there");
    check(int(to.shape(0)) == pass.rows && int(to.shape(1)) == shape.width, "hidden rows have another shape than is due");
    pass.hidden.emplace_back(layer, to.data());
  }
}

void forward(Decoder& decoder, Vector<std::int64_t> tokens, Vector<std::int64_t> positions, const nb::list& sequences,
             const Halves& keys, const Halves& values, Vector<std::int64_t> wanted, const Array<float, 2>& logits,
             const nb::list& hidden) {
  Decoder::Pass pass = pass_of(decoder, positions, sequences, keys, values);
  check_end(decoder.ends().embedding);
  check_end(decoder.ends().head);
  check(!decoder.joins(), "a decoder that reads two rows side by side begins with rows, not with tokens");
  check(positions.size() == tokens.size(), "there are more positions than tokens, or fewer");
  check_tokens(tokens, decoder.shape().vocabulary);
  pass.tokens = tokens.data();
  want(decoder, wanted, logits, hidden, pass);
  const nb::gil_scoped_release release;
  decoder.forward(pass);
}

using Rows = Array<const float, 2>;

void give_rows(const Decoder& decoder, const Rows& rows, const std::optional<Rows>& beside, Decoder::Pass& pass) {
  check(decoder.joins() == beside.has_value(), "there are rows beside the rows, and nothing reads them, or the other way round");
  for (const Rows* each : {&rows, beside ? &*beside : &rows}) {
    check(int(each->shape(0)) == pass.rows && int(each->shape(1)) == decoder.shape().width,
          "the given rows have another shape than is due");
  }
  pass.input = rows.data();
  pass.beside = beside ? beside->data() : nullptr;
}

void forward_rows(Decoder& decoder, const Rows& rows, const std::optional<Rows>& beside, Vector<std::int64_t> positions,
                  const nb::list& sequences, const Halves& keys, const Halves& values, Vector<std::int64_t> wanted,
                  const Array<float, 2>& logits, const nb::list& hidden) {
  Decoder::Pass pass = pass_of(decoder, positions, sequences, keys, values);
  give_rows(decoder, rows, beside, pass);
  want(decoder, wanted, logits, hidden, pass);
  const nb::gil_scoped_release release;
  decoder.forward(pass);
}

// Every layer's keys and values of given rows, which no layer changes or norms: a context that layers attend to.
void write_keys(Decoder& decoder, const Rows& rows, Vector<std::int64_t> positions, const nb::list& sequences,
                const Halves& keys, const Halves& values) {
  Decoder::Pass pass = pass_of(decoder, positions, sequences, keys, values);
  give_rows(decoder, rows, std::nullopt, pass);
  pass.keys_only = true;
  const nb::gil_scoped_release release;
  decoder.forward(pass);
}

constexpr int kMostWidth = 1024;
constexpr const char* kNoChoice = "a row holds NaN or infinity, or leaves no token to choose";

// Kept by each thread, so that no row allocates.
RowScratch scratch_for(int vocabulary) {
  thread_local std::vector<float> numbers;
  thread_local std::vector<Scored> tokens;
  if (tokens.size() < std::size_t(vocabulary)) {
    tokens.resize(vocabulary);
    numbers.resize(vocabulary / 32 + 2);
  }
  return {numbers.data(), tokens.data()};
}

Truncation truncation_of(int top_k, double top_p, float log_min_p) {
  check(top_k >= 0 && top_p > 0.0 && top_p <= 1.0 && log_min_p <= 0.0f, "top_k, top_p or min_p is out of range");
  return {top_k, top_p, log_min_p};
}

void check_row(int vocabulary, std::size_t columns, float temperature) {
  check(vocabulary > 0 && std::size_t(vocabulary) <= columns, "the logits have fewer columns than the vocabulary");
  check(temperature > 0.0f, "the temperature must be positive");
}

// The best scores of some rows of the logits among the survivors of a truncation: ids and scores [asked, width]; each row
// has noise of its own, or none has.  Raises where a row holds NaN or infinity.
void best_scores(Array<const float, 2> logits, Vector<std::int64_t> asked, int vocabulary, float temperature, int top_k,
                 double top_p, float log_min_p, const std::optional<Vector<std::uint64_t>>& seeds,
                 Vector<std::int64_t> positions, Vector<std::int64_t> choices, std::uint32_t purpose,
                 Array<std::int64_t, 2> ids, Array<float, 2> scores) {
  const int rows = int(asked.size()), width = int(ids.shape(1));
  check_row(vocabulary, logits.shape(1), temperature);
  const Truncation truncation = truncation_of(top_k, top_p, log_min_p);
  check(width > 0 && width <= kMostWidth, "the width must be from 1 to 1024");
  check(int(ids.shape(0)) == rows && int(scores.shape(0)) == rows && int(scores.shape(1)) == width,
        "ids and scores must have a row for each row that is asked for");
  check(!seeds || (int(seeds->size()) == rows && int(positions.size()) == rows && int(choices.size()) == rows),
        "the noise must have a seed, a position and a choice for each row");
  for (int r = 0; r < rows; ++r)
    check(asked.data()[r] >= 0 && std::size_t(asked.data()[r]) < logits.shape(0), "a row is asked for that there is not");
  std::atomic<bool> good{true};
  {
    const nb::gil_scoped_release release;
    const std::scoped_lock turn(pool().turn());
    pool().run(rows, 1, [&](int first, int last) {
      const FloatingPointState state;
      const RowScratch scratch = scratch_for(vocabulary);
      Scored found[kMostWidth];
      for (int r = first; r < last; ++r) {
        const NoiseKey key = seeds ? NoiseKey{seeds->data()[r], std::uint32_t(positions.data()[r]), std::uint32_t(choices.data()[r]), purpose}
                                   : NoiseKey{};
        const Row row{logits.data() + std::size_t(asked.data()[r]) * logits.shape(1), vocabulary, temperature, truncation};
        if (!kernels().best(row, seeds ? &key : nullptr, width, scratch, found)) {
          good = false;
          continue;
        }
        for (int i = 0; i < width; ++i) {
          ids.data()[std::size_t(r) * width + i] = found[i].id;
          scores.data()[std::size_t(r) * width + i] = found[i].score;
        }
      }
    });
  }
  check(good, kNoChoice);
}

// The ids of one row's survivors, rising, into the front of `ids`; returns how many.
int survivors(Array<const float, 1> logits, int vocabulary, float temperature, int top_k, double top_p, float log_min_p,
              Array<std::int64_t, 1> ids) {
  check_row(vocabulary, logits.size(), temperature);
  check(ids.size() >= std::size_t(vocabulary), "the ids may be as many as the vocabulary");
  const Row row{logits.data(), vocabulary, temperature, truncation_of(top_k, top_p, log_min_p)};
  int count;
  {
    const nb::gil_scoped_release release;
    const FloatingPointState state;
    count = kernels().survivors(row, scratch_for(vocabulary), ids.data());
  }
  check(count >= 0, kNoChoice);
  return count;
}

std::vector<std::string> kernel_names() {
  const Kernels* const* list;
  const int count = available_kernels(&list);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(list[i]->name);
  return names;
}

void select_kernels(const std::optional<std::string>& name) {
  if (!name) return use_kernels(nullptr);
  const Kernels* const* list;
  const int count = available_kernels(&list);
  for (int i = 0; i < count; ++i) {
    if (*name == list[i]->name) return use_kernels(list[i]);
  }
  throw nb::value_error("this CPU has no such kernels");
}

}  // namespace
}  // namespace outrider

NB_MODULE(_cpu, m) {
  using namespace outrider;
  nb::set_leak_warnings(false);  // models that live as long as the process are no leak
  m.attr("PANEL") = kPanel;
  m.attr("MOST_TILE") = kMostTile;
  m.attr("MOST_WIDTH") = kMostWidth;
  nb::class_<Packed>(m, "Matrix")
      .def("__init__", [](Packed* self, const std::string& kind, int inputs, int outputs, Vector<std::uint8_t> data) {
             new (self) Packed(packed_view(kind, inputs, outputs, data));
           }, "kind"_a, "inputs"_a, "outputs"_a, "data"_a, nb::keep_alive<1, 5>())
      .def_prop_ro("kind", [](const Packed& self) { return facts(self.kind).name; })
      .def_ro("inputs", &Packed::inputs)
      .def_ro("outputs", &Packed::outputs);
  nb::class_<Decoder>(m, "Decoder")
      .def("__init__", &make_decoder, "shape"_a, "layers"_a, "ends"_a, nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("forward", &forward, "tokens"_a, "positions"_a, "sequences"_a, "keys"_a, "values"_a, "wanted"_a, "logits"_a,
           "hidden"_a)
      .def("forward_rows", &forward_rows, "rows"_a, "beside"_a.none(), "positions"_a, "sequences"_a, "keys"_a, "values"_a,
           "wanted"_a, "logits"_a, "hidden"_a)
      .def("write_keys", &write_keys, "rows"_a, "positions"_a, "sequences"_a, "keys"_a, "values"_a)
      .def("embed", &embed, "tokens"_a, "to"_a)
      .def("unembed", &unembed, "rows"_a, "to"_a)
      .def("head_rows", &head_rows, "ids"_a, "to"_a);
  m.def("packed_bytes", &packed_bytes, "kind"_a, "inputs"_a, "outputs"_a);
  m.def("pack", &pack_matrix, "kind"_a, "inputs"_a, "outputs"_a, "source"_a, "order"_a.none(), "to"_a);
  m.def("requantize", &requantize_matrix, "kind"_a, "to_kind"_a, "inputs"_a, "outputs"_a, "source"_a, "order"_a.none(),
        "to"_a);
  m.def("unpack_output", [](const Packed& weights, int output, Array<float, 1> to) {
    check(output >= 0 && output < weights.outputs && int(to.size()) == weights.inputs, "no such output");
    unpack_output(weights, output, to.data());
  }, "weights"_a, "output"_a, "to"_a);
  m.def("soft_cap", [](Array<float, 1> numbers, float cap) {
    check(cap > 0.0f, "the cap must be positive");
    const FloatingPointState state;
    kernels().soft_cap(numbers.data(), int(numbers.size()), cap);
  }, "numbers"_a, "cap"_a);
  m.def("linear", &linear, "weights"_a, "rows"_a, "to"_a, "bias"_a = nb::none());
  m.def("time_linear", &time_linear, "matrices"_a, "rows"_a, "repeat"_a);
  m.def("time_read", &time_read, "data"_a);
  m.def("best_scores", &best_scores, "logits"_a, "asked"_a, "vocabulary"_a, "temperature"_a, "top_k"_a, "top_p"_a, "log_min_p"_a,
        "seeds"_a.none(), "positions"_a, "choices"_a, "purpose"_a, "ids"_a, "scores"_a);
  m.def("noise_words", [](std::uint64_t seed, std::uint32_t position, std::uint32_t choice, std::uint32_t purpose,
                          Array<std::uint32_t, 1> to) {
    check(to.size() % 64 == 0, "words come 64 at a time");
    kernels().words({seed, position, choice, purpose}, int(to.size()), to.data());
  }, "seed"_a, "position"_a, "choice"_a, "purpose"_a, "to"_a);
  m.def("philox", &philox, "seed"_a, "first"_a, "second"_a, "third"_a, "fourth"_a);
  m.def("survivors", &survivors, "logits"_a, "vocabulary"_a, "temperature"_a, "top_k"_a, "top_p"_a, "log_min_p"_a, "ids"_a);
  m.def("kernel_names", &kernel_names);
  m.def("kernel_name", [] { return kernels().name; });
  m.def("select_kernels", &select_kernels, "name"_a.none());
  m.def("set_threads", [](int threads) {
    check(threads >= 1 && threads <= 1024, "there must be between 1 and 1024 threads");
    const nb::gil_scoped_release release;
    pool().resize(threads);
  }, "threads"_a);
  m.def("threads", [] { return pool().threads(); });
}

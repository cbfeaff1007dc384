#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "half.h"
#include "kernels.h"
#include "thread_pool.h"

namespace outrider {
namespace {

constexpr KindFacts kFacts[kKinds] = {
    {"Q4_0", true, Q4_0::zero_number(), 32, 18},   {"Q4_1", true, Q4_1::zero_number(), 32, 20},
    {"Q5_0", true, Q5_0::zero_number(), 32, 22},   {"Q5_1", true, Q5_1::zero_number(), 32, 24},
    {"Q8_0", true, Q8_0::zero_number(), 32, 34},   {"Q4_K", true, Q4_K::zero_number(), 256, 144},
    {"Q5_K", true, Q5_K::zero_number(), 256, 176}, {"Q6_K", true, Q6_K::zero_number(), 256, 210},
    {"F32", false, -1, 1, 4},                      {"F16", false, -1, 1, 2},
    {"BF16", false, -1, 1, 2},
};

// One group of 32 inputs of one output, in no particular packing.
struct Group {
  std::uint8_t codes[kGroup];  // as stored: zero means the kind's zero point
  std::uint16_t scale, minimum;
};

// The parts of a 256-block's header that its groups share.
struct Header {
  std::uint16_t d, dmin;
  std::uint8_t scales[16], minima[8];  // six-bit kinds use eight scales, signed kinds sixteen
};

void read_half_scaled(Kind kind, const std::uint8_t* block, Group& to) {
  std::memcpy(&to.scale, block, 2);
  to.minimum = 0;
  if (kind == Kind::q8_0) {
    for (int i = 0; i < kGroup; ++i) to.codes[i] = block[2 + i] ^ 0x80;
    return;
  }
  const bool has_minimum = kind == Kind::q4_1 || kind == Kind::q5_1;
  const bool has_fifth = kind == Kind::q5_0 || kind == Kind::q5_1;
  if (has_minimum) std::memcpy(&to.minimum, block + 2, 2);
  const std::uint8_t* rest = block + (has_minimum ? 4 : 2);
  std::uint32_t fifth = 0;
  if (has_fifth) std::memcpy(&fifth, rest, 4);
  const std::uint8_t* nibbles = rest + (has_fifth ? 4 : 0);
  for (int i = 0; i < 16; ++i) {
    to.codes[i] = std::uint8_t((nibbles[i] & 15) | (fifth >> i & 1) << 4);
    to.codes[i + 16] = std::uint8_t(nibbles[i] >> 4 | (fifth >> (i + 16) & 1) << 4);
  }
}

void read_six_bit(Kind kind, const std::uint8_t* block, Header& header, std::uint8_t* codes) {
  std::memcpy(&header.d, block, 2);
  std::memcpy(&header.dmin, block + 2, 2);
  const std::uint8_t* packed = block + 4;
  for (int g = 0; g < 8; ++g) {
    if (g < 4) {
      header.scales[g] = packed[g] & 63;
      header.minima[g] = packed[g + 4] & 63;
    } else {
      header.scales[g] = std::uint8_t((packed[g + 4] & 15) | packed[g - 4] >> 6 << 4);
      header.minima[g] = std::uint8_t(packed[g + 4] >> 4 | packed[g] >> 6 << 4);
    }
  }
  const bool has_fifth = kind == Kind::q5_k;
  const std::uint8_t* fifth = block + 16;
  const std::uint8_t* nibbles = block + (has_fifth ? 48 : 16);
  for (int g = 0; g < 8; ++g) {
    for (int i = 0; i < kGroup; ++i) {
      const std::uint8_t byte = nibbles[g / 2 * 32 + i];
      const int high = has_fifth ? (fifth[i] >> g & 1) << 4 : 0;
      codes[g * kGroup + i] = std::uint8_t((g % 2 ? byte >> 4 : byte & 15) | high);
    }
  }
}

void read_signed(const std::uint8_t* block, Header& header, std::uint8_t* codes) {
  std::memcpy(&header.d, block + 208, 2);
  std::memcpy(header.scales, block + 192, 16);
  for (int half = 0; half < 2; ++half) {
    const std::uint8_t* low = block + 64 * half;
    const std::uint8_t* high = block + 128 + 32 * half;
    for (int i = 0; i < 32; ++i) {
      std::uint8_t* to = codes + 128 * half + i;
      to[0] = std::uint8_t((low[i] & 15) | (high[i] & 3) << 4);
      to[32] = std::uint8_t((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4);
      to[64] = std::uint8_t(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
      to[96] = std::uint8_t(low[i + 32] >> 4 | (high[i] >> 6 & 3) << 4);
    }
  }
}

// Puts one group's codes of one column into the planes.
template <class K>
void place(const std::uint8_t* codes, int column, std::uint8_t* planes) {
  const int half = column / 16, lane = column % 16;
  std::uint8_t* high = planes + K::low_bytes;
  for (int i = 0; i < kGroup; ++i) {
    const int quad = i / kQuad, byte = lane * kQuad + i % kQuad, vector = 2 * quad + half;
    if constexpr (K::low_bits == 8) {
      planes[64 * vector + byte] = codes[i];
    } else if constexpr (K::high_bits == 2) {
      std::uint8_t* three = planes + 192 * (vector / 4) + byte;
      for (int j = 0; j < 3; ++j) {
        const int bits = vector % 4 == j ? codes[i] : vector % 4 == 3 ? (codes[i] >> 2 * j & 3) << 6 : 0;
        three[64 * j] = std::uint8_t(three[64 * j] | bits);
      }
    } else {
      std::uint8_t& both = planes[64 * (2 * (quad / 2) + half) + byte];
      both = std::uint8_t(both | (codes[i] & 15) << (quad % 2 ? 4 : 0));
    }
    if constexpr (K::high_bits == 1) {
      high[8 * vector + byte / 8] = std::uint8_t(high[8 * vector + byte / 8] | (codes[i] >> 4 & 1) << byte % 8);
    }
  }
}

void put_half(std::uint8_t* to, int column, std::uint16_t value) { std::memcpy(to + 2 * column, &value, 2); }

template <class K, Kind kind>
void pack_half_scaled(int inputs, const std::uint8_t* row, int column, std::uint8_t* panel) {
  Group group;
  for (int g = 0; g < inputs / kGroup; ++g) {
    read_half_scaled(kind, row + std::size_t(g) * kFacts[int(kind)].file_block_bytes, group);
    std::uint8_t* to = panel + g * K::group_bytes;
    put_half(to, column, group.scale);
    if constexpr (K::has_minimum) put_half(to + 2 * kPanel, column, group.minimum);
    place<K>(group.codes, column, to + K::group_scale_bytes);
  }
}

template <class K, Kind kind>
void pack_blocks(int inputs, const std::uint8_t* row, int column, std::uint8_t* panel) {
  Header header;
  std::uint8_t codes[kBlock];
  for (int b = 0; b < inputs / kBlock; ++b) {
    const std::uint8_t* block = row + std::size_t(b) * kFacts[int(kind)].file_block_bytes;
    std::uint8_t* to = panel + b * K::block_bytes;
    if constexpr (K::scales == Scales::six_bit) {
      read_six_bit(kind, block, header, codes);
      put_half(to + 2 * kPanel, column, header.dmin);
      std::uint8_t* numbers = to + 4 * kPanel;
      for (int g = 0; g < 8; ++g) {
        numbers[g * kPanel + column] = std::uint8_t(header.scales[g] | header.minima[g] << 6);
        std::uint8_t& upper = numbers[(8 + g % 4) * kPanel + column];
        upper = std::uint8_t(upper | header.minima[g] >> 2 << (g < 4 ? 0 : 4));
      }
    } else {
      read_signed(block, header, codes);
    }
    put_half(to, column, header.d);
    std::uint8_t* group = to + K::header_bytes;
    for (int g = 0; g < kBlock / kGroup; ++g, group += K::group_bytes) {
      if constexpr (K::scales == Scales::signed_byte) {
        group[column] = header.scales[2 * g];
        group[kPanel + column] = header.scales[2 * g + 1];
      }
      place<K>(codes + g * kGroup, column, group + K::group_scale_bytes);
    }
  }
}

template <int bytes>
void pack_plain(int inputs, const std::uint8_t* row, int column, std::uint8_t* panel) {
  for (int k = 0; k < inputs; ++k) std::memcpy(panel + (std::size_t(k) * kPanel + column) * bytes, row + std::size_t(k) * bytes, bytes);
}

using PackRow = void (*)(int, const std::uint8_t*, int, std::uint8_t*);

constexpr PackRow kPackRow[kKinds] = {
    pack_half_scaled<Q4_0, Kind::q4_0>, pack_half_scaled<Q4_1, Kind::q4_1>, pack_half_scaled<Q5_0, Kind::q5_0>,
    pack_half_scaled<Q5_1, Kind::q5_1>, pack_half_scaled<Q8_0, Kind::q8_0>, pack_blocks<Q4_K, Kind::q4_k>,
    pack_blocks<Q5_K, Kind::q5_k>,      pack_blocks<Q6_K, Kind::q6_k>,      pack_plain<4>,
    pack_plain<2>,                      pack_plain<2>,
};

template <class K>
constexpr std::size_t bytes_of(int inputs) {
  return K::has_header ? std::size_t(inputs / kBlock) * K::block_bytes : std::size_t(inputs / kGroup) * K::group_bytes;
}

// ---- another kind ----------------------------------------------------------------------------------------------------

// A row of any kind as fp32, with the roundings of the reference decoder.
void decode_row(Kind kind, int inputs, const std::uint8_t* row, float* to) {
  const KindFacts& fact = kFacts[int(kind)];
  const auto at = [&](int block) { return row + std::size_t(block) * fact.file_block_bytes; };
  if (fact.file_block_inputs == 1) {
    for (int k = 0; k < inputs; ++k) {
      std::uint16_t value;
      std::memcpy(&value, at(k), 2);
      if (kind == Kind::f32) std::memcpy(to + k, at(k), 4);
      if (kind == Kind::f16) to[k] = half_to_float(value);
      if (kind == Kind::bf16) to[k] = brain_to_float(value);
    }
    return;
  }
  if (fact.file_block_inputs == kGroup) {
    const bool has_minimum = kind == Kind::q4_1 || kind == Kind::q5_1;
    const int zero = has_minimum ? 0 : kind == Kind::q4_0 ? 8 : kind == Kind::q5_0 ? 16 : 128;
    Group group;
    for (int g = 0; g < inputs / kGroup; ++g) {
      read_half_scaled(kind, at(g), group);
      const float scale = half_to_float(group.scale), minimum = half_to_float(group.minimum);
      for (int i = 0; i < kGroup; ++i) {
        const float product = float(group.codes[i] - zero) * scale;
        to[g * kGroup + i] = has_minimum ? product + minimum : product;
      }
    }
    return;
  }
  Header header;
  std::uint8_t codes[kBlock];
  for (int b = 0; b < inputs / kBlock; ++b) {
    const bool is_signed = kind == Kind::q6_k;
    is_signed ? read_signed(at(b), header, codes) : read_six_bit(kind, at(b), header, codes);
    const float d = half_to_float(header.d);
    for (int i = 0; i < kBlock; ++i) {
      if (is_signed) {
        to[b * kBlock + i] = d * float(static_cast<std::int8_t>(header.scales[i / 16])) * float(codes[i] - 32);
      } else {
        const float scale = d * float(header.scales[i / 32]), minimum = half_to_float(header.dmin) * float(header.minima[i / 32]);
        to[b * kBlock + i] = scale * float(codes[i]) - minimum;
      }
    }
  }
}

// To the nearest whole number, ties to even, for numbers below 2^22: what the additions cannot hold rounds away.
inline float whole(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

void encode_group(Kind kind, const float* x, std::uint8_t* block) {
  std::uint16_t scale;
  if (kind == Kind::q8_0) {
    float most = 0.0f;
    for (int i = 0; i < kGroup; ++i) most = std::max(most, std::fabs(x[i]));
    scale = float_to_half(most / 127.0f);
  } else {
    scale = kernels().four_bit_scale(x);
  }
  std::memcpy(block, &scale, 2);
  const float size = half_to_float(scale), inverse = size != 0.0f ? 1.0f / size : 0.0f;
  const float least = kind == Kind::q8_0 ? -127.0f : -8.0f, most = kind == Kind::q8_0 ? 127.0f : 7.0f;
  int codes[kGroup];
  for (int i = 0; i < kGroup; ++i) codes[i] = int(std::min(most, std::max(least, whole(x[i] * inverse))));
  for (int i = 0; i < kGroup; ++i) {
    if (kind == Kind::q8_0) block[2 + i] = std::uint8_t(codes[i]);
    if (kind == Kind::q4_0 && i < 16) block[2 + i] = std::uint8_t((codes[i] + 8) | (codes[i + 16] + 8) << 4);
  }
}

// ---- the way back --------------------------------------------------------------------------------------------------

template <class K>
int code_at(const std::uint8_t* planes, int column, int i) {
  const int half = column / 16, lane = column % 16, quad = i / kQuad, byte = lane * kQuad + i % kQuad;
  const int vector = 2 * quad + half;
  const std::uint8_t* high = planes + K::low_bytes;
  int code;
  if constexpr (K::low_bits == 8) {
    code = planes[64 * vector + byte];
  } else if constexpr (K::high_bits == 2) {
    const std::uint8_t* three = planes + 192 * (vector / 4) + byte;
    code = vector % 4 < 3 ? three[64 * (vector % 4)] & 63 : three[0] >> 6 | three[64] >> 6 << 2 | three[128] >> 6 << 4;
  } else {
    code = planes[64 * (2 * (quad / 2) + half) + byte] >> (quad % 2 ? 4 : 0) & 15;
  }
  if constexpr (K::high_bits == 1) code |= (high[8 * vector + byte / 8] >> byte % 8 & 1) << 4;
  return code;
}

float half_at(const std::uint8_t* from, int column) {
  std::uint16_t value;
  std::memcpy(&value, from + 2 * column, 2);
  return half_to_float(value);
}

template <class K>
void unpack_quantized(const Packed& weights, const std::uint8_t* panel, int column, float* to) {
  for (int g = 0; g < weights.inputs / kGroup; ++g) {
    const std::uint8_t* header = panel + g / 8 * K::block_bytes;
    const std::uint8_t* group =
        K::has_header ? header + K::header_bytes + g % 8 * K::group_bytes : panel + g * K::group_bytes;
    float scales[2], minimum = 0.0f;
    if constexpr (K::scales == Scales::half) {
      scales[0] = scales[1] = half_at(group, column);
      if constexpr (K::has_minimum) minimum = -half_at(group + 2 * kPanel, column);
    } else if constexpr (K::scales == Scales::six_bit) {
      const std::uint8_t* numbers = header + 4 * kPanel;
      const int both = numbers[g % 8 * kPanel + column];
      const int upper = numbers[(8 + g % 4) * kPanel + column] >> (g % 8 < 4 ? 0 : 4) & 15;
      scales[0] = scales[1] = half_at(header, column) * float(both & 63);
      minimum = half_at(header + 2 * kPanel, column) * float(both >> 6 | upper << 2);
    } else {
      for (int part = 0; part < 2; ++part) {
        scales[part] = half_at(header, column) * float(static_cast<std::int8_t>(group[part * kPanel + column]));
      }
    }
    for (int i = 0; i < kGroup; ++i) {
      const int code = code_at<K>(group + K::group_scale_bytes, column, i) - (K::has_minimum ? 0 : K::zero);
      const float product = scales[i / 16] * float(code);
      to[g * kGroup + i] = K::has_minimum ? product - minimum : product;
    }
  }
}

template <Kind kind>
void unpack_plain(const Packed& weights, const std::uint8_t* panel, int column, float* to) {
  for (int k = 0; k < weights.inputs; ++k) {
    const std::size_t at = std::size_t(k) * kPanel + column;
    if constexpr (kind == Kind::f32) {
      std::memcpy(to + k, panel + 4 * at, 4);
    } else {
      std::uint16_t value;
      std::memcpy(&value, panel + 2 * at, 2);
      to[k] = kind == Kind::f16 ? half_to_float(value) : brain_to_float(value);
    }
  }
}

using UnpackRow = void (*)(const Packed&, const std::uint8_t*, int, float*);

constexpr UnpackRow kUnpackRow[kKinds] = {
    unpack_quantized<Q4_0>,  unpack_quantized<Q4_1>,  unpack_quantized<Q5_0>, unpack_quantized<Q5_1>,
    unpack_quantized<Q8_0>,  unpack_quantized<Q4_K>,  unpack_quantized<Q5_K>, unpack_quantized<Q6_K>,
    unpack_plain<Kind::f32>, unpack_plain<Kind::f16>, unpack_plain<Kind::bf16>,
};

}  // namespace

const KindFacts& facts(Kind kind) { return kFacts[int(kind)]; }

std::size_t panel_bytes(Kind kind, int inputs) {
  switch (kind) {
    case Kind::q4_0: return bytes_of<Q4_0>(inputs);
    case Kind::q4_1: return bytes_of<Q4_1>(inputs);
    case Kind::q5_0: return bytes_of<Q5_0>(inputs);
    case Kind::q5_1: return bytes_of<Q5_1>(inputs);
    case Kind::q8_0: return bytes_of<Q8_0>(inputs);
    case Kind::q4_k: return bytes_of<Q4_K>(inputs);
    case Kind::q5_k: return bytes_of<Q5_K>(inputs);
    case Kind::q6_k: return bytes_of<Q6_K>(inputs);
    default: return std::size_t(inputs) * kPanel * facts(kind).file_block_bytes;
  }
}

void pack(Kind kind, int inputs, int outputs, const std::uint8_t* source, const std::int64_t* order, std::uint8_t* to) {
  const std::size_t stride = panel_bytes(kind, inputs);
  const std::size_t row_bytes = std::size_t(inputs) / facts(kind).file_block_inputs * facts(kind).file_block_bytes;
  ThreadPool::instance().run((outputs + kPanel - 1) / kPanel, 4, [&](int first, int last) {
    for (int p = first; p < last; ++p) {
      std::uint8_t* panel = to + stride * p;
      std::memset(panel, 0, stride);
      for (int column = 0; column < std::min(kPanel, outputs - p * kPanel); ++column) {
        const std::int64_t output = std::int64_t(p) * kPanel + column;
        kPackRow[int(kind)](inputs, source + row_bytes * std::size_t(order ? order[output] : output), column, panel);
      }
    }
  });
}

void requantize(Kind from, Kind to_kind, int inputs, int outputs, const std::uint8_t* source, const std::int64_t* order,
                std::uint8_t* to) {
  const auto row_bytes = [&](Kind kind) {
    return std::size_t(inputs) / facts(kind).file_block_inputs * facts(kind).file_block_bytes;
  };
  ThreadPool::instance().run(outputs, 16, [&](int first, int last) {
    std::vector<float> row(inputs);
    for (int i = first; i < last; ++i) {
      decode_row(from, inputs, source + row_bytes(from) * std::size_t(order ? order[i] : i), row.data());
      std::uint8_t* block = to + row_bytes(to_kind) * i;
      for (int g = 0; g < inputs / kGroup; ++g) {
        encode_group(to_kind, row.data() + g * kGroup, block + g * facts(to_kind).file_block_bytes);
      }
    }
  });
}

void unpack_output(const Packed& weights, int output, float* to) {
  const std::uint8_t* panel = weights.data + weights.panel_stride * (output / kPanel);
  kUnpackRow[int(weights.kind)](weights, panel, output % kPanel, to);
}

}  // namespace outrider

// From the rows of a file to panels.
#pragma once

#include <cstdint>

#include "packed.h"

namespace outrider {

// Packs outputs x inputs numbers.
//
//   source  the file's rows, one after the other, in the file's own blocks
//   order   row of the file for each output; null keeps the order
//   to      panels() x panel_bytes() bytes
void pack(Kind kind, int inputs, int outputs, const std::uint8_t* source, const std::int64_t* order, std::uint8_t* to);

// Rewrites rows from one kind into the blocks of another, Q8_0 or Q4_0; `to` holds whole rows of that kind.
void requantize(Kind from, Kind to_kind, int inputs, int outputs, const std::uint8_t* source, const std::int64_t* order,
                std::uint8_t* to);

// The numbers of one output, as the multiplication sees them, before any rounding of activations.
void unpack_output(const Packed& weights, int output, float* to);

}  // namespace outrider

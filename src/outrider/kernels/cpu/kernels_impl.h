// Instantiates every kernel for one instruction set; each file that includes this is compiled for its own CPU.
#pragma once

#include "kernels.h"
#include "linear_impl.h"
#include "noise_impl.h"
#include "rows_impl.h"
#include "sample_impl.h"

namespace outrider {

template <class L>
const Kernels& kernels_of() {
  static constexpr Kernels table{
      L::name,
      Linear<L>::run,
      Rows<L>::prepare,
      Rows<L>::norm_factor,
      Rows<L>::apply_norm,
      Rows<L>::finish_store,
      Rows<L>::finish_add,
      Rows<L>::finish_gate,
      Rows<L>::attend_heads,
      Rows<L>::soft_cap,
      Rows<L>::to_half,
      Rows<L>::read,
      Rows<L>::four_bit_scale,
      Sample<L>::best,
      Sample<L>::survivors,
      Noise<L>::write,
  };
  return table;
}

}  // namespace outrider

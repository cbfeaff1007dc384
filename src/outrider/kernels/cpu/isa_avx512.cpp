#include "kernels_impl.h"
#include "lanes_avx512.h"

namespace outrider {

template const Kernels& kernels_of<Avx512Lanes>();

}  // namespace outrider

#include "kernels_impl.h"
#include "lanes_avx2.h"

namespace outrider {

template const Kernels& kernels_of<Avx2VnniLanes>();

}  // namespace outrider

#include "kernels_impl.h"
#include "lanes_portable.h"

namespace outrider {

template const Kernels& kernels_of<PortableLanes>();

}  // namespace outrider

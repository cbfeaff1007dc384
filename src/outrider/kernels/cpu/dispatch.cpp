#include <array>
#include <atomic>

#include "kernels.h"

namespace outrider {

struct PortableLanes;
extern template const Kernels& kernels_of<PortableLanes>();
#if defined(__x86_64__)
struct Avx2Lanes;
struct Avx2VnniLanes;
struct Avx512Lanes;
extern template const Kernels& kernels_of<Avx2Lanes>();
extern template const Kernels& kernels_of<Avx2VnniLanes>();
extern template const Kernels& kernels_of<Avx512Lanes>();
#endif

namespace {

#if defined(__x86_64__)
bool has_avx_vnni() {
  unsigned eax = 7, ebx = 0, ecx = 1, edx = 0;
  __asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  return __builtin_cpu_supports("avx2") && (eax >> 4 & 1);
}
#endif

struct Available {
  std::array<const Kernels*, 4> list{};
  int count = 0;

  Available() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni")) {
      list[count++] = &kernels_of<Avx512Lanes>();
    }
    if (avx2 && has_avx_vnni()) list[count++] = &kernels_of<Avx2VnniLanes>();
    if (avx2) list[count++] = &kernels_of<Avx2Lanes>();
#endif
    list[count++] = &kernels_of<PortableLanes>();
  }
};

const Available& available() {
  static const Available found;
  return found;
}

std::atomic<const Kernels*> chosen{nullptr};

}  // namespace

const Kernels& kernels() {
  const Kernels* wanted = chosen.load(std::memory_order_relaxed);
  return wanted ? *wanted : *available().list[0];
}

int available_kernels(const Kernels* const** list) {
  *list = available().list.data();
  return available().count;
}

void use_kernels(const Kernels* wanted) { chosen.store(wanted); }

}  // namespace outrider

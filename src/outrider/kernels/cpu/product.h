// Rows times matrices: the form the kernels read rows in, memory that is kept, and lists of panels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <memory>

#include "kernels.h"
#include "packed.h"
#include "thread_pool.h"

namespace outrider {

constexpr std::size_t kMostSums = std::size_t{kTilesAtOnce} * kMostTile * kPanel;

inline ThreadPool& pool() { return ThreadPool::instance(); }

// Memory that starts on a cache line and is kept between passes.
class Memory {
 public:
  template <class T>
  T* take(std::size_t count) {
    const std::size_t bytes = count * sizeof(T) + 64;
    if (bytes > size_) {
      storage_.reset(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
      size_ = bytes;
    }
    return reinterpret_cast<T*>(storage_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> storage_;
  std::size_t size_ = 0;
};

// Memory of the calling thread, which may hold three pieces at once.
float* scratch(std::size_t count, int which);

// Rows in the form the linear kernels read, in memory that is kept.
class RowStore {
 public:
  Activations& shape(int inputs, int rows, std::initializer_list<const Packed*> readers);

 private:
  Activations view_;
  Memory quads_, scales_, scaled_sums_, values_, starts_[kZeroPoints];
};

// Makes rows ready for the next matrices, normalised first if there is a weight for it.
void prepare_rows(const float* x, const float* norm, int width, float epsilon, const Tiles& tiles, const Activations& to);

// One matrix's product and where it goes.
struct Product {
  const Packed& weights;
  const float* bias;
  float* to;
  std::size_t stride;
  bool add;
};

// Several products of the same rows, as one list of panels.
void multiply(const Activations& rows, const Tiles& tiles, std::initializer_list<Product> products);

}  // namespace outrider

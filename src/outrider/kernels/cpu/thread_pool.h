// One pool of threads for the process: short barriers while a model runs, asleep when it does not.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace outrider {

// Work is a numbered list of items.  Which thread takes which item changes no result: an item writes only its own
// outputs.  `run` waits for items, not for threads, so a thread that is off its core between two lists delays nothing.
class ThreadPool {
 public:
  static ThreadPool& instance();

  // Threads that share the work, the caller included.  Takes effect at once; not to be called while a pass runs.
  void resize(int threads);
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(first, last) over pieces of at least `grain` items of 0 … count − 1, and returns when all are done.
  template <class Task>
  void run(int count, int grain, const Task& task) {
    if (count <= 0) return;
    if (workers_.empty() || count <= grain) {
      task(0, count);
      return;
    }
    publish(count, grain, [](const void* made, int first, int last) { (*static_cast<const Task*>(made))(first, last); },
            &task);
  }

  // Held by whoever runs a pass: passes of several Python threads take turns.
  std::mutex& turn() { return turn_; }

 private:
  using Call = void (*)(const void*, int, int);

  void publish(int count, int grain, Call call, const void* task);
  bool take_piece();
  void work();
  void stop();

  // generation, count and next item in one word: a late thread can never take an item of a list it did not read.
  static constexpr int kBits = 20;
  static constexpr std::uint64_t kMask = (1u << kBits) - 1;
  alignas(64) std::atomic<std::uint64_t> ticket_{0};
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<bool> quit_{false};
  Call call_ = nullptr;
  const void* task_ = nullptr;
  std::atomic<int> grain_{1};
  std::uint64_t generation_ = 0;
  std::vector<std::thread> workers_;
  std::mutex turn_;
};

// Rounding to nearest and denormals kept, whatever the caller has set; restored at the end of the scope.
class FloatingPointState {
 public:
  FloatingPointState();
  ~FloatingPointState();

 private:
  unsigned saved_;
};

}  // namespace outrider

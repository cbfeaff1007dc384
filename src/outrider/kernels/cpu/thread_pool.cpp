#include "thread_pool.h"

#include <algorithm>
#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace outrider {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kChecksPerClock = 64;  // the clock costs as much as many checks

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Waits until `value` is no longer `old`: spinning at first, because most waits are shorter than a system call.
template <class T>
void wait_while(std::atomic<T>& value, T old) {
  const auto limit = std::chrono::steady_clock::now() + kSpin;
  for (;;) {
    for (int i = 0; i < kChecksPerClock; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      relax();
    }
    if (std::chrono::steady_clock::now() > limit) break;
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

#if defined(__x86_64__)
FloatingPointState::FloatingPointState() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
FloatingPointState::~FloatingPointState() { _mm_setcsr(saved_); }
#else
FloatingPointState::FloatingPointState() : saved_(static_cast<unsigned>(std::fegetround())) { std::fesetround(FE_TONEAREST); }
FloatingPointState::~FloatingPointState() { std::fesetround(static_cast<int>(saved_)); }
#endif

ThreadPool& ThreadPool::instance() {
  static ThreadPool* const pool = new ThreadPool;  // never destroyed: threads may outlive what exit takes down first
  return *pool;
}

void ThreadPool::stop() {
  quit_.store(true);
  ticket_.store(++generation_ << (2 * kBits));  // a generation of its own: no thread can have seen it before
  ticket_.notify_all();
  for (auto& worker : workers_) worker.join();
  workers_.clear();
  quit_.store(false);
}

void ThreadPool::resize(int threads) {
  const std::scoped_lock lock(turn_);
  if (threads == this->threads()) return;
  stop();
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

void ThreadPool::publish(int count, int grain, Call call, const void* task) {
  call_ = call;
  task_ = task;
  grain_.store(grain, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  ++generation_;
  ticket_.store(generation_ << (2 * kBits) | std::uint64_t(count) << kBits, std::memory_order_release);
  ticket_.notify_all();
  while (take_piece()) {
  }
  for (int finished; (finished = done_.load(std::memory_order_acquire)) != count;) wait_while(done_, finished);
}

bool ThreadPool::take_piece() {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  int first, last;
  do {
    const int count = int(ticket >> kBits & kMask);
    first = int(ticket & kMask);
    if (first >= count) return false;
    // Large pieces first, so that memory is read in long runs; small ones last, so that nobody waits long.
    const int share = (count - first) / (3 * threads());
    last = std::min(count, first + std::max(share, grain_.load(std::memory_order_relaxed)));
  } while (!ticket_.compare_exchange_weak(ticket, (ticket & ~kMask) | std::uint64_t(last), std::memory_order_acq_rel,
                                          std::memory_order_acquire));
  call_(task_, first, last);
  const int count = int(ticket >> kBits & kMask);
  if (done_.fetch_add(last - first, std::memory_order_acq_rel) + last - first == count) done_.notify_one();
  return true;
}

void ThreadPool::work() {
  const FloatingPointState state;
  for (;;) {
    // The ticket first: one that `stop` has already moved on is then never waited for.
    const std::uint64_t seen = ticket_.load(std::memory_order_acquire);
    if (quit_.load(std::memory_order_acquire)) return;
    if (!take_piece()) wait_while(ticket_, seen);
  }
}

}  // namespace outrider

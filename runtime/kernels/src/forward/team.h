// The threads of one call: handed out by the caller's OpenMP runtime, and led through the call's phases together.
//
// A phase is over when all of its items are done, not when all threads have come by: one that the system has put aside
// holds up nothing but the item it was at, and skips what it missed. Who waits spins briefly and then sleeps, so that
// its core can run the thread that is waited for, where other processes want cores as well.
#pragma once

#include <sched.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

constexpr int kMaxThreads = 256;

// What sw_set_runtime was given.
struct ThreadRuntime {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*count)() = nullptr;
};
ThreadRuntime& thread_runtime();

class Team {
 public:
  // Runs body(Worker&) on up to `threads` threads, this one among them; returns when all are done.
  template <class Body>
  void run(int threads, Body body);

 private:
  friend class Worker;

  // The items of a phase that a thread begins with, as one number, so that an item is taken only together with the
  // certainty that its phase is still the current one: 16 bits of the phase, 24 of the end, 24 of the next item.
  struct alignas(64) Run {
    std::atomic<uint64_t> state{0};
  };
  static uint64_t pack(uint32_t phase, uint64_t end, uint64_t next) {
    return static_cast<uint64_t>(phase & 0xFFFF) << 48 | end << 24 | next;
  }

  void begin(uint32_t phase, int64_t items, int size) {
    unfinished_.store(items, std::memory_order_relaxed);
    for (int i = 0; i < size; ++i)
      runs_[i].state.store(pack(phase, items * (i + 1) / size, items * i / size), std::memory_order_release);
    phase_.store(phase);
    if (asleep_.load() > 0) wake();
  }
  void await(uint32_t phase) {
    for (int spins = 0; spins < kSpins; ++spins) {
      if (phase_.load(std::memory_order_acquire) >= phase) return;
      pause();
    }
    asleep_.fetch_add(1);
    for (uint32_t now = phase_.load(); now < phase; now = phase_.load()) sleep(now);
    asleep_.fetch_sub(1);
  }

  static constexpr int kSpins = 1000;  // some tens of microseconds: longer than most phases' ends lie apart
  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  // Returns at once if the phase is not `now` any more; may return early.
  void sleep(uint32_t now) {
#if defined(__linux__)
    syscall(SYS_futex, &phase_, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0);
#else
    (void)now;
    sched_yield();
#endif
  }
  void wake() {
#if defined(__linux__)
    syscall(SYS_futex, &phase_, FUTEX_WAKE_PRIVATE, kMaxThreads, nullptr, nullptr, 0);
#endif
  }

  Run runs_[kMaxThreads];
  alignas(64) std::atomic<int64_t> unfinished_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> asleep_{0};
  alignas(64) std::atomic<int> ids_{0};
};

class Worker {
 public:
  Worker(Team& team, int id, int size) : team_(team), id_(id), size_(size), leads_(id == 0) {}
  int id() const { return id_; }
  int size() const { return size_; }

  // Does its share of run(0) ... run(items - 1), fewer than 2^24. All workers must go through the same phases. What was
  // written in earlier phases can be read. A call has fewer than 2^16 phases.
  template <class Item>
  void phase(int64_t items, Item run) {
    ++phase_;
    if (items == 0) return;
    if (leads_)
      team_.begin(phase_, items, size_);
    else
      team_.await(phase_);
    leads_ = false;
    for (int i = 0; i < size_; ++i) {
      std::atomic<uint64_t>& state = team_.runs_[(id_ + i) % size_].state;
      for (int64_t item = take(state); item >= 0; item = take(state)) {
        run(item);
        if (team_.unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) leads_ = true;
      }
    }
  }

 private:
  // The next item of a run; -1 where there is none left in this phase.
  int64_t take(std::atomic<uint64_t>& state) {
    uint64_t now = state.load(std::memory_order_acquire);
    while (now >> 48 == (phase_ & 0xFFFF)) {
      const uint64_t next = now & 0xFFFFFF;
      if (next >= (now >> 24 & 0xFFFFFF)) return -1;
      if (state.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel, std::memory_order_acquire))
        return static_cast<int64_t>(next);
    }
    return -1;
  }

  Team& team_;
  int id_, size_;
  uint32_t phase_ = 0;
  bool leads_;  // it did the last item of the phase before, so that it begins the next one
};

template <class Body>
void Team::run(int threads, Body body) {
  const ThreadRuntime& runtime = thread_runtime();
  phase_.store(0);
  for (Run& run : runs_) run.state.store(0);
  if (threads <= 1 || runtime.parallel == nullptr) {
    Worker worker(*this, 0, 1);
    body(worker);
    return;
  }
  struct Call {
    Team* team;
    Body* body;
  } call{this, &body};
  ids_.store(0);
  runtime.parallel(
      [](void* data) {
        const Call& call = *static_cast<Call*>(data);
        Worker worker(*call.team, call.team->ids_.fetch_add(1), thread_runtime().count());
        (*call.body)(worker);
      },
      &call, static_cast<unsigned>(threads < kMaxThreads ? threads : kMaxThreads), 0);
}

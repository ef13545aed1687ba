#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/threads/mutex.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

// Blocks threads until `count` of them have arrived.
class Rendezvous {
 public:
  explicit Rendezvous(int count) : missing_(count) {}
  void Arrive() {
    MutexLock lock(mutex_);
    if (--missing_ == 0) all_here_.NotifyAll();
    while (missing_ > 0) all_here_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar all_here_;
  int missing_ ABSL_GUARDED_BY(mutex_);
};

TEST_CASE("ThreadPool runs every index once, and the caller sees what was written") {
  for (int threads : {-1, 0, 1, 2, 3, 8}) {
    ThreadPool pool(threads);
    CHECK(pool.threads() == std::max(threads, 1));
    for (int64_t n : {0, 1, 2, 3, 7, 8, 9, 1000}) {
      std::vector<int> runs(n,
                            0);  // not atomic: a lost or missing hand-over shows, to ThreadSanitizer at least
      pool.ParallelFor(n, [&](int64_t i) { ++runs[i]; });
      CHECK(runs == std::vector<int>(n, 1));
    }
  }
}

TEST_CASE("ThreadPool works on one loop with as many threads as it has, the caller among them") {
  ThreadPool pool(4);
  for (int round = 0; round < 20; ++round) {
    // Ends only if four bodies run at the same time.
    Rendezvous all(4);
    std::vector<std::thread::id> ran_on(4);
    pool.ParallelFor(4, [&](int64_t i) {
      ran_on[i] = std::this_thread::get_id();
      all.Arrive();
    });
    const std::set<std::thread::id> distinct(ran_on.begin(), ran_on.end());
    CHECK(distinct.size() == 4);
    CHECK(distinct.count(std::this_thread::get_id()) == 1);
  }
}

TEST_CASE("ThreadPool does not return before the last body that a helper runs") {
  ThreadPool pool(2);
  int unfinished = 0;
  for (int round = 0; round < 20; ++round) {
    Rendezvous both(2);
    const std::thread::id caller = std::this_thread::get_id();
    std::atomic<bool> helper_done{false};
    pool.ParallelFor(2, [&](int64_t) {
      both.Arrive();
      if (std::this_thread::get_id() == caller) return;
      // Gives a caller that does not wait time to show it. On a busy machine each takes milliseconds.
      for (int i = 0; i < 20; ++i) std::this_thread::yield();
      helper_done = true;
    });
    unfinished += !helper_done;
  }
  CHECK(unfinished == 0);
}

TEST_CASE("ThreadPool runs a single body, and every body of a pool of one, on the caller") {
  ThreadPool one(1), four(4);
  const std::thread::id caller = std::this_thread::get_id();
  int elsewhere = 0;
  four.ParallelFor(1, [&](int64_t) { elsewhere += std::this_thread::get_id() != caller; });
  one.ParallelFor(100, [&](int64_t) { elsewhere += std::this_thread::get_id() != caller; });
  CHECK(elsewhere == 0);
}

TEST_CASE("ThreadPool serves several callers at once") {
  ThreadPool pool(3);
  constexpr int kCallers = 5, kRounds = 300, kN = 17;
  std::vector<int64_t> sums(kCallers, 0);
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&, c] {
      for (int round = 0; round < kRounds; ++round) {
        std::vector<int64_t> out(kN, 0);
        pool.ParallelFor(kN, [&](int64_t i) { out[i] = i + c; });
        for (int64_t value : out) sums[c] += value;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (int c = 0; c < kCallers; ++c) CHECK(sums[c] == kRounds * (kN * (kN - 1) / 2 + kN * c));
}

TEST_CASE("ThreadPool is free for another caller while all helpers are held up in a loop") {
  ThreadPool pool(2);
  Rendezvous both_busy(3), release(3);
  // Its caller and the pool's only helper stay in here until the other loop is over.
  std::thread blocked([&] {
    pool.ParallelFor(2, [&](int64_t) {
      both_busy.Arrive();
      release.Arrive();
    });
  });
  both_busy.Arrive();
  std::vector<int> runs(50, 0);
  pool.ParallelFor(50, [&](int64_t i) { ++runs[i]; });
  CHECK(runs == std::vector<int>(50, 1));
  release.Arrive();
  blocked.join();
}

TEST_CASE("ThreadPool loops may be nested") {
  ThreadPool pool(3);
  std::atomic<int> runs{0};
  pool.ParallelFor(8, [&](int64_t) {
    pool.ParallelFor(8, [&](int64_t) { pool.ParallelFor(4, [&](int64_t) { ++runs; }); });
  });
  CHECK(runs == 8 * 8 * 4);
}

TEST_CASE("ThreadPool shuts down, used or not") {
  for (int round = 0; round < 50; ++round) {
    ThreadPool unused(3);
    ThreadPool used(3);
    std::atomic<int> runs{0};
    used.ParallelFor(5, [&](int64_t) { ++runs; });
    REQUIRE(runs == 5);
  }
}

}  // namespace
}  // namespace weir

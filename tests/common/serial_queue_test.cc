#include "common/threads/serial_queue.h"

#include <chrono>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/threads/mutex.h"

namespace weir {
namespace {

// For what takes no time.
constexpr std::chrono::seconds kLimit{30};

TEST_CASE("Whoever posts to an idle queue runs what is there, in the order of the posts") {
  SerialQueue queue;
  std::vector<int> ran;
  queue.Post([&] {
    queue.Post([&] { ran.push_back(2); });
    ran.push_back(1);
  });
  CHECK(ran == std::vector<int>{1, 2});
}

TEST_CASE("A queue with a thread runs nothing on the threads of its callers") {
  std::vector<int> ran;
  std::vector<std::thread::id> threads;
  const auto function = [&](int number) {
    return [&, number] {
      ran.push_back(number);
      threads.push_back(std::this_thread::get_id());
    };
  };
  {
    SerialQueue queue;
    queue.Post([&] {
      // These wait behind the function that starts the thread, and belong to the thread.
      queue.Post(function(1));
      queue.Post(function(2));
      CHECK(queue.StartThread());
      CHECK(queue.StartThread());
    });
    queue.Post(function(3));
    queue.Run(function(4));
    queue.Post(function(5));
  }
  CHECK(ran == std::vector<int>{1, 2, 3, 4, 5});
  for (const std::thread::id& thread : threads) CHECK(thread != std::this_thread::get_id());
}

TEST_CASE("A caller does not wait for a function that the queue's thread runs") {
  SerialQueue queue;
  queue.Post([&] { queue.StartThread(); });
  Mutex mutex;
  CondVar changed;
  bool go_on = false, came_back = true;
  queue.Post([&] {
    const auto deadline = std::chrono::steady_clock::now() + kLimit;
    MutexLock lock(mutex);
    while (!go_on && came_back) came_back = changed.WaitUntil(mutex, deadline);
  });
  queue.Post([] {});
  {
    MutexLock lock(mutex);
    go_on = true;
    changed.NotifyAll();
  }
  queue.Run([] {});
  // A caller that ran the function itself would have waited in it for its own next step.
  CHECK(came_back);
}

TEST_CASE("Functions of many threads run one at a time, each thread's in its order") {
  constexpr int kThreads = 4, kPosts = 500;
  std::vector<int> next(kThreads, 0);
  bool in_order = true;
  {
    SerialQueue queue;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kPosts; ++i) {
          queue.Post([&, t, i] {
            in_order &= next[t]++ == i;
            if (t == 0 && i == kPosts / 2) queue.StartThread();
          });
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(in_order);
  CHECK(next == std::vector<int>(kThreads, kPosts));
}

}  // namespace
}  // namespace weir

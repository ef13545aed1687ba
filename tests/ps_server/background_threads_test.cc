#include <chrono>
#include <vector>

#include "catch2/catch.hpp"
#include "ps_server/process/server_threads.h"
#include "tests/common/no_threads.h"

namespace weir {
namespace {

TEST_CASE("Work in the background does not wait for other work, and all of it is done in the end") {
  Mutex mutex;
  CondVar changed;
  int begun = 0;
  std::atomic<int> done{0};
  {
    BackgroundThreads background;
    REQUIRE(background.Start().ok());
    // Each function waits until all the others have begun.
    constexpr int kAtOnce = 3;
    for (int i = 0; i < kAtOnce; ++i) {
      background.Run([&] {
        MutexLock lock(mutex);
        ++begun;
        changed.NotifyAll();
        while (begun < kAtOnce) changed.Wait(mutex);
        ++done;
      });
    }
    background.Finish();
    CHECK(done == kAtOnce);
    // The destructor also waits for the functions that a function runs.
    background.Run([&] { background.Run([&] { ++done; }); });
  }
  CHECK(done == 4);
}

TEST_CASE("Where the system gives no thread, work runs on a spare one, and not on the caller's") {
  Mutex mutex;
  CondVar changed;
  bool posted = false, in_time = true;
  std::vector<int> ran;
  BackgroundThreads background;
  REQUIRE(background.Start().ok());
  const NoThreads none;
  background.Run([&] {
    // As a checkpoint waits for turns of the queue in which it was asked for.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    MutexLock lock(mutex);
    while (!posted && in_time) in_time = changed.WaitUntil(mutex, deadline);
    ran.push_back(1);
  });
  background.Run([&] {
    background.Run([&] { ran.push_back(3); });
    ran.push_back(2);
  });
  {
    MutexLock lock(mutex);
    posted = true;
    changed.NotifyAll();
  }
  background.Finish();
  CHECK(in_time);
  CHECK(ran == std::vector<int>{1, 2, 3});
}

TEST_CASE("Without a spare thread it does not start") {
  BackgroundThreads background;
  const NoThreads none;
  CHECK(absl::IsInternal(background.Start()));
}

}  // namespace
}  // namespace weir

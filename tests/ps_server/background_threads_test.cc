#include "ps_server/process/background_threads.h"

#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

TEST_CASE("Work in the background does not wait for other work, and all of it is done in the end") {
  Mutex mutex;
  CondVar changed;
  int begun = 0;
  std::atomic<int> done{0};
  {
    BackgroundThreads background;
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

}  // namespace
}  // namespace weir

#include "common/threads/mutex.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "catch2/catch.hpp"

namespace {
std::atomic<int> waits_by_time_of_day{0};
}  // namespace

// Takes the place of the C library's.
extern "C" int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                      const timespec* until) {
  ++waits_by_time_of_day;
  static const auto original =
      reinterpret_cast<decltype(&pthread_cond_timedwait)>(dlsym(RTLD_NEXT, "pthread_cond_timedwait"));
  return original(condition, mutex, until);
}

namespace weir {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

TEST_CASE("A wait ends at its time, whatever somebody does to the time of day") {
  Mutex mutex;
  CondVar changed;
  MutexLock lock(mutex);
  const auto begin = steady_clock::now();
  while (changed.WaitUntil(mutex, begin + milliseconds(20))) {
  }
  CHECK(steady_clock::now() - begin >= milliseconds(20));
  while (changed.WaitFor(mutex, milliseconds(1))) {
  }
#ifndef WEIR_TSAN
  CHECK(waits_by_time_of_day == 0);
#endif
}

TEST_CASE("A wait may have no end in sight") {
  Mutex mutex;
  CondVar changed;
  bool come = false;
  std::thread other([&] {
    MutexLock lock(mutex);
    come = true;
    changed.NotifyAll();
  });
  {
    MutexLock lock(mutex);
    while (!come) CHECK(changed.WaitUntil(mutex, steady_clock::time_point::max()));
  }
  other.join();
}

}  // namespace
}  // namespace weir

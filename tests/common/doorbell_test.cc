#include "common/shared_memory/doorbell.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/system/unique_fd.h"
#include "tests/common/open_descriptors.h"

namespace weir {
namespace {

using Steady = Doorbell::Steady;

Steady::time_point Soon() { return Steady::now() + std::chrono::seconds(30); }

std::shared_ptr<DoorbellPage> Make() {
  auto made = DoorbellPage::Create();
  REQUIRE(made.ok());
  return *std::move(made);
}

// A second mapping of the page, as another process has it.
std::shared_ptr<DoorbellPage> OpenAgain(const DoorbellPage& page) {
  auto opened = DoorbellPage::Open(UniqueFd(dup(page.fd())));
  REQUIRE(opened.ok());
  return *std::move(opened);
}

// How often the bell has rung while its thread slept.
uint32_t Count(const Doorbell& bell) {
  uint32_t count;
  memcpy(&count, static_cast<const void*>(&bell), sizeof(count));
  return count;
}

// Sleeps as a loop does, until done(). False: a wake-up was lost.
template <typename Done>
bool Await(Doorbell& bell, const Done& done) {
  const Steady::time_point until = Soon();
  while (!done()) {
    const uint32_t armed = bell.Arm();
    if (!done()) bell.Sleep(armed, until);
    bell.Disarm();
    if (Steady::now() >= until) return done();
  }
  return true;
}

TEST_CASE("a bell that rings between Arm() and Sleep() ends the sleep, whichever mapping it is rung in") {
  const auto page = Make();
  const auto other = OpenAgain(*page);
  for (uint32_t number : {0u, 5u, DoorbellPage::kBells - 1}) {
    for (Doorbell* ringer : {page->Bell(number), other->Bell(number)}) {
      Doorbell& bell = *page->Bell(number);
      const Steady::time_point until = Soon();
      const uint32_t armed = bell.Arm();
      ringer->Ring();
      bell.Sleep(armed, until);
      bell.Disarm();
      CHECK(Steady::now() < until);
    }
  }
}

TEST_CASE("the bells of a page are apart, and their number is limited") {
  const auto page = Make();
  Doorbell& bell = *page->Bell(1);
  bell.Arm();
  page->Bell(0)->Ring();
  page->Bell(2)->Ring();
  CHECK(Count(bell) == 0);
  CHECK(page->Bell(DoorbellPage::kBells) == nullptr);
  CHECK(page->Bell(UINT32_MAX) == nullptr);
}

TEST_CASE("a bell rings for a thread that sleeps, once, and for no other") {
  const auto page = Make();
  Doorbell& bell = *page->Bell(0);
  bell.Ring();
  CHECK(Count(bell) == 0);
  bell.Arm();
  bell.Ring();
  bell.Ring();
  CHECK(Count(bell) == 1);
  bell.Arm();
  bell.Disarm();
  bell.Ring();
  CHECK(Count(bell) == 1);
}

TEST_CASE("a sleep ends by itself") {
  auto ended = std::make_shared<std::promise<void>>();
  std::future<void> end = ended->get_future();
  // Detached: if it sleeps for ever, the test must still end.
  std::thread([page = Make(), ended] {
    Doorbell& bell = *page->Bell(0);
    const Steady::time_point until = Steady::now() + std::chrono::milliseconds(3);
    while (Steady::now() < until) bell.Sleep(bell.Arm(), until);
    // In the past.
    bell.Sleep(bell.Arm(), Steady::time_point::min());
    bell.Sleep(bell.Arm(), Steady::now());
    ended->set_value();
  }).detach();
  CHECK(end.wait_until(Soon()) == std::future_status::ready);
}

TEST_CASE("two threads that wake each other lose no wake-up") {
  constexpr int kRounds = 20000;
  const auto page = Make();
  const auto other = OpenAgain(*page);
  std::atomic<int> turn{0};
  bool lost = false;
  std::thread second([&] {
    for (int round = 0; round < kRounds && !lost; ++round) {
      lost = !Await(*other->Bell(1), [&] { return turn.load(std::memory_order_relaxed) == 2 * round + 1; });
      turn.store(2 * round + 2, std::memory_order_relaxed);
      other->Bell(0)->Ring();
    }
  });
  bool first_lost = false;
  for (int round = 0; round < kRounds && !first_lost; ++round) {
    turn.store(2 * round + 1, std::memory_order_relaxed);
    page->Bell(1)->Ring();
    first_lost =
        !Await(*page->Bell(0), [&] { return turn.load(std::memory_order_relaxed) == 2 * round + 2; });
  }
  second.join();
  CHECK_FALSE(lost);
  CHECK_FALSE(first_lost);
}

TEST_CASE("a thread that several threads wake at once misses none of them") {
  constexpr int kRingers = 3, kRounds = 20000;
  const auto page = Make();
  Doorbell& bell = *page->Bell(0);
  // Work of each ringer that the thread has not taken.
  std::vector<std::atomic<int>> left(kRingers);
  std::vector<std::thread> ringers;
  std::atomic<bool> stop{false};
  for (int i = 0; i < kRingers; ++i) {
    ringers.emplace_back([&, i] {
      const auto mapping = DoorbellPage::Open(UniqueFd(dup(page->fd())));
      for (int round = 0; round < kRounds; ++round) {
        left[i].store(1, std::memory_order_relaxed);
        (*mapping)->Bell(0)->Ring();
        // The thread then sleeps again and again.
        while (left[i].load(std::memory_order_relaxed) != 0) {
          if (stop.load(std::memory_order_relaxed)) return;
          std::this_thread::yield();
        }
      }
    });
  }
  int taken = 0;
  const auto take = [&] {
    int now = 0;
    for (std::atomic<int>& work : left) now += work.exchange(0, std::memory_order_relaxed);
    taken += now;
    return now > 0;
  };
  while (taken < kRingers * kRounds && !stop) {
    if (!Await(bell, take)) stop = true;
  }
  for (std::thread& ringer : ringers) ringer.join();
  CHECK(taken == kRingers * kRounds);
}

TEST_CASE("a page lives as long as someone has it mapped") {
  auto page = Make();
  const auto other = OpenAgain(*page);
  CHECK(other->fd() == -1);
  page = nullptr;
  other->Bell(7)->Arm();
  other->Bell(7)->Ring();
  CHECK(Count(*other->Bell(7)) == 1);
}

TEST_CASE("what is no page of bells is refused, and nothing leaks") {
  constexpr size_t kPageBytes = DoorbellPage::kBells * sizeof(Doorbell);
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  const auto memory = [](size_t bytes, int seals) {
    UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
    if (seals != 0) REQUIRE(fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
    return fd;
  };
  const int before = OpenDescriptors();
  CHECK(absl::IsFailedPrecondition(DoorbellPage::Open(UniqueFd()).status()));
  // A process that could shrink it would kill the others with SIGBUS.
  CHECK(absl::IsFailedPrecondition(DoorbellPage::Open(memory(kPageBytes, 0)).status()));
  CHECK(
      absl::IsFailedPrecondition(DoorbellPage::Open(memory(kPageBytes, F_SEAL_GROW | F_SEAL_SEAL)).status()));
  CHECK(absl::IsFailedPrecondition(DoorbellPage::Open(memory(0, kSeals)).status()));
  CHECK(absl::IsFailedPrecondition(DoorbellPage::Open(memory(kPageBytes - 1, kSeals)).status()));
  CHECK(absl::IsFailedPrecondition(DoorbellPage::Open(memory(2 * kPageBytes, kSeals)).status()));
  CHECK(absl::IsFailedPrecondition(
      DoorbellPage::Open(UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC))).status()));
  // Nobody but its maker may write it.
  CHECK_FALSE(DoorbellPage::Open(memory(kPageBytes, kSeals | F_SEAL_WRITE)).ok());
  CHECK(DoorbellPage::Open(memory(kPageBytes, kSeals)).ok());
  CHECK(OpenDescriptors() == before);
}

using std::chrono::microseconds;
using std::chrono::milliseconds;

TEST_CASE("A thread looks for longer while that would have found its work") {
  AdaptiveSpin spin;
  CHECK(spin.budget() == AdaptiveSpin::Duration(0));
  for (const int expected : {5, 10, 20, 40}) {
    spin.OnWaited(microseconds(45));
    CHECK(spin.budget() == microseconds(expected));
  }
  spin.OnWaited(microseconds(45));
  CHECK(spin.budget() == AdaptiveSpin::kMost);
  // Found while it looked.
  spin.OnWaited(microseconds(12));
  CHECK(spin.budget() == AdaptiveSpin::kMost);
}

TEST_CASE("A thread that waits for long does not look, nor does one whose core others want") {
  AdaptiveSpin spin;
  for (int i = 0; i < 10; ++i) spin.OnWaited(microseconds(45));
  SECTION("long waits") {
    spin.OnWaited(milliseconds(1));
    CHECK(spin.budget() == AdaptiveSpin::Duration(0));
    spin.OnWaited(milliseconds(1));
    CHECK(spin.budget() == AdaptiveSpin::Duration(0));
  }
  SECTION("the core is wanted: for so many waits, and for longer each time") {
    for (const int skipped : {AdaptiveSpin::kSkipLeast, 2 * AdaptiveSpin::kSkipLeast}) {
      spin.OnCoreWanted();
      for (int i = 0; i < skipped; ++i) {
        CHECK(spin.budget() == AdaptiveSpin::Duration(0));
        spin.OnWaited(microseconds(45));
      }
      CHECK(spin.budget() == AdaptiveSpin::kMost);
    }
  }
}

TEST_CASE("A core that is wanted now and then only is soon looked on again") {
  AdaptiveSpin spin;
  for (int i = 0; i < 10; ++i) spin.OnWaited(microseconds(45));
  for (int i = 0; i < 20; ++i) {
    spin.OnCoreWanted();
    int skipped = 0;
    for (; spin.budget() == AdaptiveSpin::Duration(0); ++skipped) spin.OnWaited(microseconds(45));
    CHECK(skipped == AdaptiveSpin::kSkipLeast);
    for (int found = 0; found < AdaptiveSpin::kCalm; ++found) spin.OnWaited(microseconds(12));
  }
  // Without a calm the pauses grow up to a limit.
  int skipped = 0;
  for (int i = 0; i < 20; ++i) {
    spin.OnCoreWanted();
    for (skipped = 0; spin.budget() == AdaptiveSpin::Duration(0); ++skipped) spin.OnWaited(microseconds(45));
  }
  CHECK(skipped == AdaptiveSpin::kSkipMost);
}

}  // namespace
}  // namespace weir

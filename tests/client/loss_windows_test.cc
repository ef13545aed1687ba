#include "client/job/loss_windows.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/limits.h"

namespace weir {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Member {
  // Batches of 8 examples with this mean loss.
  void Batches(uint64_t count, double loss) {
    for (uint64_t i = 0; i < count; ++i) {
      progress.batches += 1;
      progress.examples += 8;
      progress.loss_sum += 8 * loss;
      windows.OnProgress(progress, clock++);
    }
  }
  void NotFinite(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      progress.not_finite += 1;
      windows.OnProgress(progress, clock++);
    }
  }
  std::vector<v1::LossWindow> Reported() const {
    v1::WorkerReport report;
    windows.Describe(&report);
    return {report.loss_windows().begin(), report.loss_windows().end()};
  }
  std::vector<double> Means() const {
    std::vector<double> means;
    for (const v1::LossWindow& window : Reported()) {
      means.push_back(window.loss_sum() / static_cast<double>(window.examples()));
    }
    return means;
  }

  Progress progress;
  uint64_t clock = 0;
  LossWindows windows;
};

TEST_CASE("the first window is short, the others are not; an open one is not reported") {
  Member member;
  member.Batches(kFirstLossWindow - 1, 2);
  CHECK(member.Reported().empty());
  CHECK(member.windows.newest() == 0);
  member.Batches(1, 2);
  member.Batches(kLossWindow, 1);
  member.Batches(kLossWindow - 1, 0.5);
  const auto reported = member.Reported();
  REQUIRE(reported.size() == 2);
  CHECK(reported[0].number() == 1);
  CHECK(reported[0].batches() == kFirstLossWindow);
  CHECK(reported[0].examples() == 8 * kFirstLossWindow);
  CHECK(reported[0].loss_sum() == 2 * 8 * kFirstLossWindow);
  CHECK(reported[0].clock() == kFirstLossWindow - 1);
  CHECK(reported[1].number() == 2);
  CHECK(reported[1].batches() == kLossWindow);
  CHECK(reported[1].clock() == kFirstLossWindow + kLossWindow - 1);
  CHECK(member.Means() == std::vector<double>{2, 1});
}

TEST_CASE("a window is reported until it is acknowledged") {
  Member member;
  member.Batches(kFirstLossWindow, 2);
  const uint64_t sent = member.windows.newest();
  member.Batches(kLossWindow, 1);
  CHECK(member.Reported().size() == 2);
  member.windows.OnAcknowledged(sent);
  REQUIRE(member.Reported().size() == 1);
  CHECK(member.Reported()[0].number() == 2);
  member.windows.OnAcknowledged(sent);
  CHECK(member.Reported().size() == 1);
  member.windows.OnAcknowledged(member.windows.newest());
  CHECK(member.Reported().empty());
}

TEST_CASE("losses that are not finite are in no window, and are one if no other comes between") {
  Member member;
  member.NotFinite(kLossWindow - 1);
  member.Batches(kFirstLossWindow, 2);
  member.NotFinite(kLossWindow - 1);
  member.Batches(1, 2);
  REQUIRE(member.Reported().size() == 1);
  CHECK(member.Reported()[0].batches() == kFirstLossWindow);
  CHECK(member.Reported()[0].not_finite() == 0);
  member.NotFinite(kLossWindow);
  REQUIRE(member.Reported().size() == 2);
  CHECK(member.Reported()[1].batches() == 0);
  CHECK(member.Reported()[1].not_finite() == kLossWindow);
  CHECK(member.Reported()[1].clock() == member.clock - 1);
  // The window that was open goes on.
  member.Batches(kLossWindow - 1, 2);
  REQUIRE(member.Reported().size() == 3);
  CHECK(member.Reported()[2].batches() == kLossWindow);
  // A sum that is not finite any more.
  Member other;
  other.progress.loss_sum = kInfinity;
  other.Batches(kLossWindow, 1);
  REQUIRE(other.Reported().size() == 1);
  CHECK(other.Reported()[0].not_finite() == kLossWindow);
}

TEST_CASE("a program that tells its progress now and then has longer windows; one may count anew") {
  Member member;
  member.progress = {8 * 30, 30, 8 * 30 * 2.0};
  member.windows.OnProgress(member.progress, 29);
  member.progress = {8 * 130, 130, 8 * 30 * 2.0 + 8 * 100 * 1.0};
  member.windows.OnProgress(member.progress, 129);
  REQUIRE(member.Reported().size() == 2);
  CHECK(member.Reported()[0].batches() == 30);
  CHECK(member.Reported()[1].batches() == 100);
  CHECK(member.Means() == std::vector<double>{2, 1});
  member.progress = {};
  member.Batches(kLossWindow, 3);
  REQUIRE(member.Reported().size() == 3);
  CHECK(member.Reported()[2].batches() == kLossWindow);
  CHECK(member.Means()[2] == 3);
}

TEST_CASE("a report has few windows however long it is awaited, among them the lowest and the highest") {
  Member member;
  member.Batches(kFirstLossWindow, 1);
  for (int window = 0; window < 10000; ++window) {
    member.Batches(kLossWindow, window == 5000 ? 0.25 : window == 5001 ? 64 : 1);
    REQUIRE(member.Reported().size() <= kMaxLossWindows);
  }
  const auto reported = member.Reported();
  for (size_t i = 1; i < reported.size(); ++i) CHECK(reported[i].number() > reported[i - 1].number());
  CHECK(reported.back().number() == member.windows.newest());
  const std::vector<double> means = member.Means();
  const auto lowest = std::find(means.begin(), means.end(), 0.25);
  REQUIRE(lowest != means.end());
  CHECK(std::find(lowest, means.end(), 64) != means.end());
}

TEST_CASE("a run of losses that are not finite is not left out") {
  Member member;
  member.NotFinite(kLossWindow);
  member.Batches(10000 * kLossWindow, 1);
  CHECK(member.Reported()[0].not_finite() == kLossWindow);
}

}  // namespace
}  // namespace weir

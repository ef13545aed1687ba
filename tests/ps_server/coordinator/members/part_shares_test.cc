#include "ps_server/coordinator/members/part_shares.h"

#include <limits>
#include <map>
#include <utility>

#include "catch2/catch.hpp"

namespace weir {
namespace {

using Shares = std::vector<uint32_t>;

// Workers with the incarnations 1, 2, ... whose speeds are known from one sample each.
struct Job {
  explicit Job(const std::vector<double>& seconds_of_part) {
    for (const double seconds : seconds_of_part) {
      workers.push_back({workers.size() + 1, 0});
      Measure(workers.back().incarnation, seconds);
    }
  }
  void Measure(uint64_t incarnation, double seconds_of_part) {
    auto& [seconds, parts] = totals[incarnation];
    shares.OnReport(incarnation, seconds, parts);
    seconds += seconds_of_part * PartShares::kPartsOfSample;
    parts += PartShares::kPartsOfSample;
    shares.OnReport(incarnation, seconds, parts);
  }
  // Whether the shares have changed; if so, the workers have them.
  bool Changes(uint32_t parts) {
    const auto changed = shares.Change(now, parts, workers);
    for (size_t i = 0; changed.has_value() && i < workers.size(); ++i) workers[i].share = (*changed)[i];
    return changed.has_value();
  }
  Shares Now() const {
    Shares all;
    for (const PartShares::Worker& worker : workers) all.push_back(worker.share);
    return all;
  }

  PartShares shares;
  std::vector<PartShares::Worker> workers;
  std::map<uint64_t, std::pair<double, uint64_t>> totals;
  absl::Time now = absl::FromUnixSeconds(1000);
};

TEST_CASE("PartShares gives a slow worker fewer parts, so that all are done at about the same time") {
  Job job({1, 1, 1, 4});
  REQUIRE(job.Changes(16));
  CHECK(job.Now() == Shares{5, 5, 5, 1});
  CHECK_FALSE(job.Changes(16));
}

TEST_CASE("PartShares gives each worker a part, however slow it is") {
  Job job({1, 1000});
  REQUIRE(job.Changes(4));
  CHECK(job.Now() == Shares{3, 1});
}

TEST_CASE("PartShares leaves equal workers, workers of unknown speed, and steps without spare parts alone") {
  Job equal({1, 1.05, 1, 1});
  CHECK_FALSE(equal.Changes(16));
  Job one({1});
  CHECK_FALSE(one.Changes(16));
  Job few({1, 1, 1, 4});
  CHECK_FALSE(few.Changes(4));
  CHECK_FALSE(few.Changes(3));
  Job unknown({1, 4});
  unknown.workers.push_back({3, 0});
  unknown.shares.OnReport(3, 5, 100);
  unknown.shares.OnReport(3, std::numeric_limits<double>::quiet_NaN(), 200);
  unknown.shares.OnReport(3, 6, 100 + PartShares::kPartsOfSample - 1);
  CHECK_FALSE(unknown.Changes(16));
}

TEST_CASE("PartShares changes shares seldom, and only for a clear gain") {
  Job job({1, 1, 1, 4});
  REQUIRE(job.Changes(16));
  for (int i = 0; i < 8; ++i) job.Measure(4, 1);  // it is as fast as the others again
  CHECK_FALSE(job.Changes(16));
  job.now += PartShares::kInterval;
  REQUIRE(job.Changes(16));
  CHECK(job.Now() == Shares{4, 4, 4, 4});
  for (int i = 0; i < 8; ++i) job.Measure(4, 1.2);
  job.now += PartShares::kInterval;
  CHECK_FALSE(job.Changes(16));
}

TEST_CASE("PartShares takes all shares back while the speed of a new worker is not known") {
  Job job({1, 1, 1, 4});
  REQUIRE(job.Changes(16));
  job.workers.push_back({5, 0});
  REQUIRE(job.Changes(16));
  CHECK(job.Now() == Shares{0, 0, 0, 0, 0});
  CHECK_FALSE(job.Changes(16));
  job.Measure(5, 1);
  REQUIRE(job.Changes(16));
  CHECK(job.Now() == Shares{4, 4, 4, 1, 3});
}

TEST_CASE("PartShares shares anew at once when a worker has gone") {
  Job job({1, 1, 1, 4});
  REQUIRE(job.Changes(16));
  job.shares.OnGone(1);
  job.workers.erase(job.workers.begin());
  REQUIRE(job.Changes(16));
  CHECK(job.Now() == Shares{8, 7, 1});
}

}  // namespace
}  // namespace weir

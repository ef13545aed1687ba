#include "client/memberships.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/job_failure.h"
#include "tests/worker/stub_client.h"

namespace weir {
namespace {

using Catch::Contains;

// How a membership ends.
struct Ending {
  absl::Status status;
  bool progressed = false;
};

// A client that can only leave.
class FakeClient final : public StubClient {
 public:
  FakeClient(std::vector<std::string>* leaves, absl::Status answer, uint64_t start_clock)
      : leaves_(leaves), answer_(std::move(answer)), start_clock_(start_clock) {}

  absl::Status End(const Ending& ending) {
    progressed_ = ending.progressed;
    return ending.status;
  }
  absl::Status Leave(const absl::Status& failure) override {
    leaves_->push_back(std::string(failure.message()));
    return answer_;
  }
  uint64_t start_clock() const override { return start_clock_; }
  bool progressed() const override { return progressed_; }

 private:
  std::vector<std::string>* const leaves_;
  const absl::Status answer_;
  const uint64_t start_clock_;
  bool progressed_ = false;
};

constexpr absl::Duration kStartWait = absl::Minutes(5);

// A job that ends in the given way in each membership of a worker; the last way repeats.
struct Story {
  std::vector<Ending> ends;
  // The errors of joins that fail, by the number of the join.
  std::map<size_t, absl::Status> refusals = {};
  // The answers to Leave(), by the number of the join.
  std::map<size_t, absl::Status> answers = {};
  // How long each membership takes.
  absl::Duration membership = absl::Seconds(30);
  // The increase of the join clock with each membership.
  uint64_t clocks_a_membership = 0;

  size_t joins = 0;
  size_t works = 0;
  std::vector<bool> again = {};
  std::vector<std::string> leaves = {};

  absl::Status Run() {
    ClientOptions options;
    options.task = "worker:1";
    ManualClock clock;
    return WorkUntilDone(
        options, kStartWait,
        [this](const ClientOptions& with) -> absl::StatusOr<std::unique_ptr<Client>> {
          CHECK(with.task == "worker:1");
          again.push_back(with.again);
          if (const auto refusal = refusals.find(joins++); refusal != refusals.end()) return refusal->second;
          const auto answer = answers.find(joins - 1);
          return std::make_unique<FakeClient>(&leaves,
                                              answer == answers.end() ? absl::OkStatus() : answer->second,
                                              joins * clocks_a_membership);
        },
        [&](Client* client) {
          clock.Advance(membership);
          return static_cast<FakeClient*>(client)->End(ends[std::min(works++, ends.size() - 1)]);
        },
        /*preemption=*/nullptr, clock);
  }
};

const Ending kDone{absl::OkStatus(), true};
const Ending kFenced{absl::AbortedError("fenced: ps:1 was lost"), true};
const Ending kFruitless{absl::AbortedError("fenced: ps:1 was lost"), false};

TEST_CASE("One membership is enough where nothing happens") {
  Story story{{kDone}};
  CHECK(story.Run().ok());
  CHECK(story.again == std::vector<bool>{false});
  CHECK(story.leaves == std::vector<std::string>{""});
}

TEST_CASE("Who is fenced joins again with a fresh client, as somebody who was there") {
  Story story{{kFenced, kFenced, kDone}};
  CHECK(story.Run().ok());
  CHECK(story.again == std::vector<bool>{false, true, true});
  CHECK(story.leaves == std::vector<std::string>{"fenced: ps:1 was lost", "fenced: ps:1 was lost", ""});
}

TEST_CASE(
    "Who hears from a shard that the job is done has nothing left to do, and takes leave like the others") {
  Story story{{{absl::OutOfRangeError("ps:1 says that the job is done"), false}}};
  CHECK(story.Run().ok());
  CHECK(story.joins == 1);
  CHECK(story.leaves == std::vector<std::string>{""});
}

TEST_CASE("Who had left when the job went back joins again") {
  Story story{{kDone, kDone}};
  story.answers[0] = absl::AbortedError("the job goes back to step 10");
  CHECK(story.Run().ok());
  CHECK(story.joins == 2);
  // Any other error of leaving has no effect.
  Story lost{{kDone}};
  lost.answers[0] = absl::UnavailableError("ps:0 is gone");
  CHECK(lost.Run().ok());
  CHECK(lost.joins == 1);
}

TEST_CASE("Who has done all, which then cannot be saved, does not end well") {
  Story story{{kDone}};
  story.answers[0] = StorageFailure("no room");
  CHECK(story.Run() == story.answers[0]);
  CHECK(story.joins == 1);
}

TEST_CASE("Who fails for another reason does not join again") {
  Story lost{{{absl::UnavailableError("ps:1 was lost"), true}}};
  CHECK(absl::IsUnavailable(lost.Run()));
  CHECK(lost.joins == 1);
  CHECK(lost.leaves == std::vector<std::string>{"ps:1 was lost"});
}

TEST_CASE("Who lost a server, and then ps:0 when it took leave, names both, and each once") {
  Story both{{{absl::UnavailableError("ps:1 was lost"), true}}};
  both.answers[0] = absl::UnavailableError("ps:0 was lost");
  CHECK(both.Run() == absl::UnavailableError("ps:1 was lost; ps:0 was lost"));
  Story one{{{absl::UnavailableError("ps:0 was lost"), true}}};
  one.answers[0] = absl::UnavailableError("ps:0 was lost");
  CHECK(one.Run() == absl::UnavailableError("ps:0 was lost"));
}

TEST_CASE("A join that is refused ends it, well where nothing is left to do") {
  Story done{{kFenced}};
  done.refusals[1] = absl::OutOfRangeError("all examples are done");
  CHECK(done.Run().ok());
  CHECK(done.works == 1);
  // A failed job refuses with the code that a fenced worker gets.
  Story failed{{kFenced}};
  failed.refusals[1] = absl::AbortedError("ps:1 did not come back");
  CHECK(failed.Run().message() == "ps:1 did not come back");
  CHECK(failed.joins == 2);
}

TEST_CASE("Memberships without progress come to an end, and progress in between starts the count anew") {
  Story never{{kFruitless}};
  const absl::Status status = never.Run();
  CHECK(absl::IsAborted(status));
  CHECK_THAT(std::string(status.message()),
             Contains("ps:1 was lost") && Contains("10 times in a row") && Contains("start_seconds = 300"));
  CHECK(never.works == Rejoining::kMostFruitless);

  Story story;
  for (int round = 0; round < 3; ++round) {
    for (int i = 1; i < Rejoining::kMostFruitless; ++i) story.ends.push_back(kFruitless);
    story.ends.push_back(kFenced);
  }
  story.ends.push_back(kDone);
  CHECK(story.Run().ok());
  CHECK(story.works == story.ends.size());
}

TEST_CASE("Memberships that end at once go on for cluster.start_seconds, however many these are") {
  Story quick{{kFruitless}};
  quick.membership = absl::Seconds(1);
  CHECK(absl::IsAborted(quick.Run()));
  CHECK(quick.works == 300);
}

TEST_CASE("A worker without a part to compute stays as long as the job goes on") {
  Story story;
  story.clocks_a_membership = 3;
  for (int i = 0; i < 3 * Rejoining::kMostFruitless; ++i) story.ends.push_back(kFruitless);
  story.ends.push_back(kDone);
  CHECK(story.Run().ok());
  CHECK(story.works == story.ends.size());
}

}  // namespace
}  // namespace weir

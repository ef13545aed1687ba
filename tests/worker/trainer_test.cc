// The training loop with a client without servers: the order of its calls, and its pushes while weights come
// bit by bit, not at all, or too late.
#include "worker/trainer.h"

#include <algorithm>
#include <numeric>

#include "tests/worker/trainer_job.h"

namespace weir {
namespace {

TEST_CASE("Each step's push carries the next pull, and its gradients leave from the last layer on") {
  const size_t replicas = GENERATE(1, 3);
  const std::string micro_batches = GENERATE("train.micro_batches=1", "train.micro_batches=3");
  Job job({micro_batches}, Clocks(3), OnCpu(replicas));
  REQUIRE(job.Run().ok());
  CHECK(job.client.calls() == Calls{"pull 0", "pushpull 0", "pushpull 1", "pushpull 2"});
  job.CheckPushes(3);
  for (const auto& push : job.client.pushes()) {
    CHECK(push.gated);
    std::vector<size_t> sorted = push.ready;
    std::sort(sorted.begin(), sorted.end());
    CHECK(sorted == std::vector<size_t>{0, 1, 2, 3});
    if (replicas == 1) CHECK(push.ready == std::vector<size_t>{3, 2, 1, 0});
  }
  CHECK(job.client.progress().batches == 3);
  CHECK(job.client.progress().examples == 24);
}

TEST_CASE("Weights that come tensor by tensor give the same gradients") {
  Job job({}, Clocks(4), OnCpu(GENERATE(1, 2)));
  job.client.on_pull = [&](const ScriptedClient::PullCall& pull) {
    BringInTurns(&job.client, pull, pull.clock);
  };
  REQUIRE(job.Run().ok());
  job.CheckPushes(4);
}

TEST_CASE("Several parts of a step are pushed apart; the last one pulls") {
  std::deque<Work> work = {
      {0, 0, 0, 0, 8, false}, {0, 1, 1, 8, 8, true}, {0, 2, 2, 16, 8, true}, {1, 0, 3, 24, 8, true}};
  Job job({"consistency.parts=3"}, std::move(work));
  // The last piece is the work of a worker that died.
  job.client.on_pull = [&](ScriptedClient::PullCall pull) { Bring(pull, pull.clock); };
  REQUIRE(job.Run().ok());
  CHECK(job.client.calls() == Calls{"pull 0", "push 0", "pushpull 0", "push 0", "pushpull 1"});
  job.CheckPushes(4);
}

TEST_CASE("A gradient that is clipped is pushed whole") {
  Job job({"train.clip_norm=0.001"}, Clocks(2));
  REQUIRE(job.Run().ok());
  for (const auto& push : job.client.pushes()) {
    CHECK_FALSE(push.gated);
    const double square =
        std::inner_product(push.gradient.begin(), push.gradient.end(), push.gradient.begin(), 0.0);
    CHECK(square == Approx(1e-6));
  }
}

TEST_CASE("A gradient is clipped by value, and then by its norm") {
  const auto pushes = [](const std::vector<std::string>& overrides) {
    Job job(overrides, Clocks(2));
    REQUIRE(job.Run().ok());
    return job.client.pushes();
  };
  const auto plain = pushes({}), by_value = pushes({"train.clip_value=0.01"}),
             by_both = pushes({"train.clip_value=0.01", "train.clip_norm=0.001"});
  std::vector<float> expected = plain[0].gradient;
  ClipValues(0.01f, {absl::MakeSpan(expected)});
  CHECK(expected != plain[0].gradient);
  CHECK(by_value[0].gradient == expected);
  ClipToNorm(0.001f, {absl::MakeSpan(expected)});
  CHECK(by_both[0].gradient == expected);
  CHECK(pushes({"train.clip_norm=0.001", "train.clip=mean"})[0].gradient == plain[0].gradient);
  CHECK(pushes({"train.clip_value=0.01", "train.clip_norm=0.001", "train.clip=mean"})[0].gradient ==
        by_value[0].gradient);
}

TEST_CASE("Where others would overtake it, a push begins when its gradient is whole") {
  const auto early = [](const std::vector<std::string>& overrides) {
    return Trainer::LeavesEarly(Config(overrides));
  };
  CHECK(early({}));
  CHECK_FALSE(early({"train.clip_norm=1"}));
  CHECK_FALSE(early({"train.clip_value=1"}));
  CHECK(early({"train.clip_norm=1", "train.clip=mean"}));
  CHECK_FALSE(early({"train.clip_norm=1", "train.clip=mean", "train.clip_value=1"}));
  CHECK_FALSE(early({"consistency.mode=async"}));
  CHECK(early({"consistency.mode=async", "cluster.workers=1"}));
  CHECK(early({"consistency.mode=async", "server.apply=staged"}));
  Job job({"consistency.mode=async"}, Clocks(2));
  REQUIRE(job.Run().ok());
  for (const auto& push : job.client.pushes()) CHECK_FALSE(push.gated);
  job.CheckPushes(2);
}

TEST_CASE("A gradient that travels in one message is pushed when it is whole") {
  Job job({}, Clocks(2));
  job.client.has_chunks = GENERATE(false, true);
  REQUIRE(job.Run().ok());
  for (const auto& push : job.client.pushes()) CHECK(push.gated == job.client.has_chunks);
  job.CheckPushes(2);
}

TEST_CASE("Weights that were lost on their way are pulled again") {
  Job job({}, Clocks(2));
  int pulls = 0;
  job.client.on_pull = [&](ScriptedClient::PullCall pull) {
    if (++pulls > 3) return Bring(pull, pull.clock);
    // The first layer's weights have come, of a version that is gone.
    Write(pull, 77, 0);
    pull.on_weights(0);
    pull.end(absl::DataLossError("cut short"));
  };
  REQUIRE(job.Run().ok());
  // The second exchange is lost as well, but its push has taken effect.
  CHECK(job.client.calls() == Calls{"pull 0", "pull 0", "pull 0", "pull 0", "pushpull 0", "pushpull 1"});
  job.CheckPushes(2);
}

TEST_CASE("An exchange whose weights were lost has delivered its push") {
  Job job({}, Clocks(2));
  job.client.on_pull = [&, pulls = 0](ScriptedClient::PullCall pull) mutable {
    if (++pulls != 2) return Bring(pull, pull.clock);
    pull.end(absl::DataLossError("cut short"));
  };
  REQUIRE(job.Run().ok());
  CHECK(job.client.calls() == Calls{"pull 0", "pushpull 0", "pull 1", "pushpull 1"});
  job.CheckPushes(2);
}

TEST_CASE("Work of a step that is past is left to the next") {
  Job job({}, {{0, 0, 0, 0, 8, true}, {5, 0, 5, 40, 8, true}});
  job.client.on_pull = [](ScriptedClient::PullCall pull) {
    if (pull.clock == 5) return Bring(pull, 5);
    PullResult past;
    past.past = true;
    pull.end(past);
  };
  REQUIRE(job.Run().ok());
  CHECK(job.client.calls() == Calls{"pull 0", "pull 5", "pushpull 5"});
  job.CheckPushes(1);
}

TEST_CASE("A worker that is fenced ends, with weights or gradients on their way") {
  const bool at_once = GENERATE(true, false);
  Job job({}, Clocks(3));
  job.client.on_pull = [&](ScriptedClient::PullCall pull) {
    if (pull.clock < 2) return Bring(pull, pull.clock);
    if (!at_once) {
      Write(pull, 2, 0);
      pull.on_weights(0);
    }
    pull.end(absl::AbortedError("fenced"));
  };
  CHECK(job.Run() == absl::AbortedError("fenced"));
  job.CheckPushes(2);
}

TEST_CASE("With prefetch the next pull is in the air before a step is computed") {
  Job job({"consistency.mode=bounded", "consistency.staleness=1", "consistency.prefetch=true"}, Clocks(3));
  job.client.on_pull = [&](ScriptedClient::PullCall pull) {
    CHECK_FALSE(pull.on_weights);
    // Answered when the push of the clock before is delivered; the first two at once.
    if (pull.clock < 2) return Bring(pull, pull.clock);
    job.client.threads.emplace_back([pull] { Bring(pull, pull.clock); });
  };
  REQUIRE(job.Run().ok());
  CHECK(job.client.calls() == Calls{"pull 0", "pull 1", "push 0", "pull 2", "push 1", "pull 3", "push 2"});
  job.CheckPushes(3);
}

TEST_CASE("With prefetch a worker that goes on at a later clock pulls anew") {
  Job job({"consistency.mode=bounded", "consistency.staleness=2", "consistency.prefetch=true"},
          {{0, 0, 0, 0, 8, true}, {4, 0, 1, 8, 8, true}});
  REQUIRE(job.Run().ok());
  CHECK(job.client.calls() == Calls{"pull 0", "pull 1", "push 0", "pull 4", "pull 5", "push 4"});
  job.CheckPushes(2);
}

}  // namespace
}  // namespace weir

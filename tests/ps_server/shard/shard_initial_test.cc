// A shard whose initial values a worker uploads.
#include <limits>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/shard/push_whole.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

struct Fixture : ShardFixture {
  explicit Fixture(v1::ConsistencyConfig::Mode mode = kAsync) : ShardFixture(mode) {
    for (TensorSpec& tensor : model.tensors) tensor.init = Initializer::Uploaded();
  }

  // Tells the shard of members 0 and 1 under this epoch, and of the uploader, or of the member whose values
  // are the job's, by incarnation.
  void Tell(uint64_t epoch, uint64_t uploader, uint64_t values_of = 0,
            const std::vector<TestMember>& members = {{0}, {1}}) {
    v1::ControlMessage message;
    v1::SetMembership& set = *message.mutable_membership();
    set.mutable_membership()->set_epoch(epoch);
    for (const TestMember& member : members) {
      v1::Member* const added = set.mutable_membership()->add_members();
      added->set_worker(member.worker);
      added->set_incarnation(100 + member.worker);
      added->set_task("worker:" + std::to_string(member.worker));
    }
    set.mutable_membership()->set_uploader(uploader);
    set.set_values_of(values_of);
    Control(message);
  }
  // Installs the model, and lets member 0 upload.
  void Begin() {
    Create();
    REQUIRE(Install() == "");
    Tell(1, 100);
  }

  v1::PushRequest Upload(uint32_t worker, uint64_t epoch = 1) {
    v1::PushRequest header;
    *header.mutable_caller() = CallerOf(worker, epoch);
    header.set_elements(40);
    header.set_initial_values(true);
    return header;
  }
  PushReplyPtr Send(const v1::PushRequest& header, std::vector<float> values) {
    return PushGradient(header, std::move(values));
  }
  std::vector<uint64_t> Staged() {
    std::vector<uint64_t> by;
    for (const v1::ShardReport& report : Reports(v1::ShardReport::kValues)) {
      by.push_back(report.values().uploader());
    }
    return by;
  }
};

TEST_CASE("Nobody reads or pushes before the values are there, and then they are version 0") {
  Fixture f(GENERATE(kSync, kAsync));
  f.Begin();
  CHECK(f.Pull(0, 0)->status().code() == absl::StatusCode::kUnavailable);
  CHECK_THAT(std::string(f.Pull(1, 0)->status().message()), Contains("no initial values yet"));
  CHECK(f.Push({0})->status().code() == absl::StatusCode::kUnavailable);

  const auto upload = f.Send(f.Upload(0), All(3));
  CHECK_FALSE(upload->there());
  CHECK(f.Staged() == std::vector<uint64_t>{100});
  CHECK(f.Pull(0, 0)->status().code() == absl::StatusCode::kUnavailable);
  REQUIRE(f.Stats().waits_size() == 1);
  CHECK_THAT(f.Stats().waits(0).reason(), Contains("the other servers"));

  f.Tell(2, 0, 100);
  CHECK(upload->reply().outcome() == v1::OK);
  CHECK(upload->reply().version().count() == 0);
  CHECK(f.Weights() == All(3));
  CHECK(f.Pull(1, 0)->reply().header.version().count() == 0);
  CHECK(f.Stats().waits_size() == 0);
}

TEST_CASE("A later upload has no effect, and a repeat gets the first one's answer") {
  Fixture f;
  f.Begin();
  const auto first = f.Send(f.Upload(0), All(3));
  // The connection broke, and the client sends it again, whole or not.
  const auto again = f.TryBegin(f.Upload(0));
  CHECK(first->status().code() == absl::StatusCode::kCancelled);
  CHECK_FALSE(again->there());
  CHECK(f.Staged().size() == 1);
  f.Tell(2, 0, 100);
  CHECK(absl::get<PushAnswer>(again->reply()).reply.outcome() == v1::OK);
  CHECK(f.Send(f.Upload(0, 2), All(4))->reply().outcome() == v1::OK);
  CHECK(f.Send(f.Upload(1, 2), All(5))->reply().outcome() == v1::REFUSED);
  CHECK(f.Weights() == All(3));
  f.Push({0});
  CHECK(f.Send(f.Upload(0, 2), All(4))->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(4));  // 3, and a gradient of ones
}

TEST_CASE("If the uploader leaves, what it uploaded is void, whole or not, and the next one uploads all") {
  Fixture f;
  f.Begin();
  auto half = f.ArrivalOf(f.TryBegin(f.Upload(0)));
  const auto whole = f.Send(f.Upload(0), All(3));
  f.Tell(2, 101, 0, {{1}});
  CHECK(whole->reply().outcome() == v1::FENCED);
  REQUIRE(TakeAll(*half, All(4)).ok());
  CHECK(f.Finish(std::move(half))->reply().reply.outcome() == v1::FENCED);
  CHECK(f.Send(f.Upload(0), All(3))->reply().outcome() == v1::FENCED);
  // Without a whole upload of that member the shard cannot begin.
  f.Tell(3, 0, 101, {{1}});
  CHECK(f.Pull(1, 0, 3)->status().code() == absl::StatusCode::kUnavailable);

  const auto second = f.Send(f.Upload(1, 3), All(7));
  CHECK(f.Staged() == std::vector<uint64_t>{100, 101});
  f.Tell(4, 0, 101, {{1}});
  CHECK(second->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(7));
}

TEST_CASE("An upload that is wrong, or another member's, is refused and changes nothing") {
  Fixture f;
  f.Begin();
  const auto refused = [&](const v1::PushRequest& header, std::vector<float> values, const char* why) {
    const absl::Status status = f.Send(header, std::move(values))->status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(status.message()), Contains(why));
  };
  std::vector<float> bad = All(3);
  bad[7] = std::numeric_limits<float>::quiet_NaN();
  refused(f.Upload(0), bad, "the initial value of w[7] is NaN");
  refused(f.Upload(1), All(3), "worker:1 (incarnation 101) is not the member that uploads them");
  v1::PushRequest header = f.Upload(0);
  header.set_elements(41);
  refused(header, All(3), "the push has 41 values; this shard has 40");
  header = f.Upload(0);
  header.set_dtype(v1::BF16);
  refused(header, All(3), "initial values are float32");
  header = f.Upload(0);
  header.set_refused("a NaN");
  refused(header, All(3), "refused");
  header = f.Upload(0);
  header.mutable_caller()->set_model_hash(1);
  refused(header, All(3), "model_hash");
  // This caller may know more than the shard.
  CHECK(f.Send(f.Upload(1, 2), All(3))->status().code() == absl::StatusCode::kUnavailable);
  CHECK(f.Staged().empty());

  const auto upload = f.Send(f.Upload(0), All(3));
  f.Tell(2, 0, 100);
  CHECK(upload->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(3));
}

TEST_CASE("An upload that waits for the others ends with its connection, its time, or the job") {
  Fixture f;
  f.config.mutable_cluster()->set_wait_seconds(20);
  f.Begin();
  const auto first = f.Send(f.Upload(0), All(3));
  f.shard->End(ShardFixture::kSession);
  CHECK(first->status().code() == absl::StatusCode::kCancelled);
  const auto second = f.TryBegin(f.Upload(0));
  f.clock.Advance(absl::Seconds(21));
  f.shard->Tick();
  CHECK(second->status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(std::string(second->status().message()),
             Contains("the upload of the initial values waited 21s"));
  const auto third = f.TryBegin(f.Upload(0));
  f.Shutdown("the end");
  CHECK(absl::get<PushAnswer>(third->reply()).reply.outcome() == v1::JOB_OVER);
  CHECK(f.Send(f.Upload(0), All(3))->reply().outcome() == v1::JOB_OVER);
}

TEST_CASE("A shard whose values are awaited is of no use to another coordinator") {
  Fixture f;
  f.Begin();
  f.Send(f.Upload(0), All(3));
  v1::ControlMessage hello;
  hello.mutable_hello()->set_coordinator_incarnation(2);
  f.Control(hello);
  CHECK(f.Reports(v1::ShardReport::kAttached).back().attached().incarnation() == 0);
  f.Tell(2, 0, 100);
  f.Control(hello);
  CHECK(f.Reports(v1::ShardReport::kAttached).back().attached().incarnation() == f.incarnation());

  // The shard is installed anew, without values.
  REQUIRE(f.Install() == "");
  f.Tell(3, 101);
  CHECK(f.Pull(0, 0, 3)->status().code() == absl::StatusCode::kUnavailable);
  f.Send(f.Upload(1, 3), All(5));
  f.Tell(4, 0, 101);
  CHECK(f.Weights() == All(5));
}

TEST_CASE("A checkpoint holds the values before clients see them, and a shard that has it awaits none") {
  Fixture f(GENERATE(kSync, kAsync));
  f.Begin();
  f.Send(f.Upload(0), All(3));
  f.TakeCheckpoint(0);
  const v1::Restore restore = ShardFixture::Complete(0, {&f});
  REQUIRE(f.Install(&restore) == "");
  f.Tell(2, 0, 100);
  CHECK(f.Weights() == All(3));
  CHECK(f.Pull(0, 0, 2)->reply().header.outcome() == v1::OK);
}

}  // namespace
}  // namespace weir

// Initial values that a worker uploads, as the coordinator sees them.
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kBounded = v1::ConsistencyConfig::MODE_BOUNDED;

struct Upload : CoordinatorFixture {
  explicit Upload(v1::ConsistencyConfig::Mode mode = kSync) : CoordinatorFixture(mode) {
    for (TensorSpec& tensor : model.tensors) tensor.init = Initializer::Uploaded();
  }

  void Staged(uint32_t shard, uint64_t uploader) {
    v1::ShardReport report;
    report.mutable_values()->set_uploader(uploader);
    shards[shard]->events.report(report);
  }
  void StagedByAll(uint64_t uploader) {
    for (uint32_t shard = 0; shard < shards.size(); ++shard) Staged(shard, uploader);
  }
  // The incarnation whose values are the job's, as this shard was told last.
  uint64_t ValuesOf(uint32_t shard = 0) const {
    return shards[shard]->Sent(v1::ControlMessage::kMembership).back().membership().values_of();
  }
  uint64_t Uploader(const v1::JoinReply& member) {
    return Heartbeat(member)->reply().membership().uploader();
  }
};

TEST_CASE("The worker of the lowest rank is asked to upload, and the job begins once all shards have all") {
  Upload f(GENERATE(kSync, kBounded));
  f.StartJob();
  const uint64_t leader = f.members[0].incarnation();
  CHECK(f.Status().state() == v1::STARTING);
  for (const v1::JoinReply& member : f.members) {
    CHECK(member.membership().uploader() == leader);
    CHECK(f.Uploader(member) == leader);
  }
  for (const auto& shard : f.shards) CHECK(shard->Membership().uploader() == leader);
  REQUIRE(f.Status().waiting_for_size() == 1);
  CHECK(f.Status().waiting_for(0) == "the initial values, which worker:0 uploads");
  CHECK(f.PinOf(f.members[0])->status().code() == absl::StatusCode::kUnavailable);

  const auto parked = f.Heartbeat(f.members[1], f.Heartbeat(f.members[1])->reply().revision());
  f.Staged(0, leader);
  f.Staged(0, leader);
  f.Staged(1, f.members[1].incarnation());
  CHECK(f.ValuesOf() == 0);
  CHECK_FALSE(parked->there());
  f.Staged(1, leader);
  CHECK(f.ValuesOf(0) == leader);
  CHECK(f.ValuesOf(1) == leader);
  CHECK(f.shards[0]->Membership().uploader() == 0);
  CHECK(f.Status().state() == v1::RUNNING);
  REQUIRE(parked->there());
  CHECK(parked->reply().membership().uploader() == 0);
  CHECK(f.Uploader(f.members[0]) == 0);
}

TEST_CASE("Members hear of the values only when every shard knows") {
  Upload f;
  f.StartJob();
  f.shards[1]->acknowledges = false;
  f.StagedByAll(f.members[0].incarnation());
  CHECK(f.ValuesOf() == f.members[0].incarnation());
  CHECK(f.Status().state() == v1::STARTING);
  CHECK(f.Uploader(f.members[1]) == f.members[0].incarnation());
  f.shards[1]->Acknowledge(f.shards[1]->Membership().epoch());
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.Uploader(f.members[1]) == 0);
}

TEST_CASE("A job with checkpoints saves the values before it begins, and tries again") {
  Upload f(GENERATE(kSync, kBounded));
  f.disk = std::make_shared<FakeDisk>();
  f.StartJob();
  f.shards[1]->write_error = "no space left";
  f.StagedByAll(f.members[0].incarnation());
  CHECK(f.ValuesOf() == 0);
  CHECK(f.Status().state() == v1::STARTING);
  CHECK_THAT(f.Status().waiting_for(0),
             Contains("the initial values to be saved") && Contains("no space left"));
  // From now on no other member is asked, even if the uploader leaves.
  f.Leave(f.members[0], /*done=*/false, "asked to");
  CHECK(f.shards[0]->Membership().uploader() == f.members[0].incarnation());
  f.shards[1]->write_error = "";
  f.Run(absl::Seconds(2), {f.members[1]});
  CHECK(f.ValuesOf() == f.members[0].incarnation());
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK_FALSE(f.Status().checkpoint().empty());
}

TEST_CASE("If the uploader dies, the next one is asked, and only its upload counts") {
  Upload f;
  f.StartJob();
  f.Staged(0, f.members[0].incarnation());
  f.Leave(f.members[0], /*done=*/false, "it broke");
  const uint64_t next = f.members[1].incarnation();
  CHECK(f.Uploader(f.members[1]) == next);
  CHECK(f.shards[0]->Membership().uploader() == next);
  f.Staged(1, f.members[0].incarnation());
  f.Staged(1, next);
  CHECK(f.ValuesOf() == 0);
  // If a worker of a lower rank comes, nothing changes.
  const auto again = f.Join(0, 77);
  CHECK(f.Uploader(f.members[1]) == next);
  f.Staged(0, next);
  CHECK(f.ValuesOf() == next);
  CHECK(again->reply().membership().uploader() == next);
}

TEST_CASE("A shard that is lost before the values are there takes all back, and the upload begins anew") {
  Upload f(GENERATE(kSync, kBounded));
  f.disk = std::make_shared<FakeDisk>();
  const bool saving = GENERATE(false, true);
  f.StartJob();
  if (saving) f.shards[1]->writes = false;
  f.Staged(0, f.members[0].incarnation());
  if (saving) f.Staged(1, f.members[0].incarnation());
  f.shards[1]->Kill();
  for (const v1::JoinReply& member : f.members) CHECK(f.Heartbeat(member)->reply().fenced());
  f.shards[1]->writes = true;
  const auto first = f.Join(0, 501), second = f.Join(1, 502);
  f.Run(absl::Seconds(2));
  for (const auto& shard : f.shards) {
    CHECK(shard->Sent(v1::ControlMessage::kInstall).size() == 2);
    CHECK_FALSE(shard->LastInstall().has_restore());
  }
  CHECK(f.Status().state() == v1::STARTING);
  const uint64_t leader = first->reply().incarnation();
  CHECK(second->reply().membership().uploader() == leader);
  CHECK(f.ValuesOf() == 0);
  f.StagedByAll(leader);
  CHECK(f.ValuesOf() == leader);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("Values are saved although an earlier checkpoint of others has yet to come to nothing") {
  Upload f;
  f.disk = std::make_shared<FakeDisk>();
  f.StartJob();
  f.disk->holds = true;
  f.StagedByAll(f.members[0].incarnation());
  f.shards[1]->Kill();
  const auto again = f.Join(0, 501);
  f.Join(1, 502);
  f.Run(absl::Seconds(1));
  f.StagedByAll(again->reply().incarnation());
  CHECK(f.ValuesOf() == 0);
  f.disk->holds = false;
  f.disk->Answer();
  f.Run(absl::Seconds(1));
  CHECK(f.ValuesOf() == again->reply().incarnation());
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("Once the values are saved, a shard that is lost has them from the checkpoint") {
  Upload f(GENERATE(kSync, kBounded));
  f.disk = std::make_shared<FakeDisk>();
  f.StartJob();
  f.shards[1]->acknowledges = false;
  f.StagedByAll(f.members[0].incarnation());
  CHECK(f.Status().state() == v1::STARTING);
  f.shards[1]->acknowledges = true;
  f.shards[1]->Kill();
  f.Run(absl::Seconds(1), f.members);
  REQUIRE(f.shards[1]->Sent(v1::ControlMessage::kInstall).size() == 2);
  CHECK(f.shards[1]->LastInstall().restore().step() == 0);
  CHECK_FALSE(f.shards[1]->LastInstall().restore().weights_only());
  CHECK(f.shards[0]->Sent(v1::ControlMessage::kInstall).size() == 1);
  CHECK(f.Status().state() == v1::RUNNING);

  f.Restart();
  const auto again = f.Join(0, 501);
  f.Join(1, 502);
  f.Run(absl::Seconds(1));
  CHECK(again->reply().membership().uploader() == 0);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("A job whose leader never uploads says so, and ends") {
  Upload f;
  f.config.mutable_cluster()->set_start_seconds(60);
  f.StartJob();
  f.Run(absl::Seconds(61), f.members);
  CHECK(f.ends == 1);
  CHECK(f.failure ==
        "the job did not start within cluster.start_seconds = 60; missing: the initial values, "
        "which worker:0 uploads");
}

TEST_CASE("If every worker gives up on its upload, the job ends with the last one's reason") {
  Upload f;
  f.StartJob();
  f.Leave(f.members[0], /*done=*/false, "the initial value w[0] is NaN");
  CHECK(f.ends == 0);
  f.Leave(f.members[1], /*done=*/false, "the initial value w[0] is NaN");
  CHECK_THAT(f.failure, Contains("every worker gave up, worker:1 as the last one: the initial value w[0]"));
}

TEST_CASE("checkpoint.init_from comes before an upload") {
  Upload f;
  f.init_from = 7;
  f.StartJob();
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.members[0].membership().uploader() == 0);
  CHECK(f.shards[0]->LastInstall().restore().init_from());
}

TEST_CASE("Workers agree whether the values are uploaded; who only reads need not know") {
  Upload f;
  f.Start();
  const auto reader = f.JoinReader();
  f.Join(0);
  v1::JoinRequest made = f.JoinRequest(1);
  v1::Model model;
  REQUIRE(model.ParseFromString(made.model()));
  for (v1::Tensor& tensor : *model.mutable_tensors()) tensor.set_init(v1::Tensor::CONSTANT);
  made.set_model(model.SerializeAsString());
  const auto refused = f.Join(made);
  CHECK(refused->status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(refused->status().message()),
             Contains("the model of worker:1 differs from that of worker:0") &&
                 Contains("expected initial values that a worker uploads, got such that the servers make"));
  const auto second = f.Join(1);
  f.StagedByAll(second->reply().membership().uploader());
  CHECK(reader->there());
}

}  // namespace
}  // namespace weir

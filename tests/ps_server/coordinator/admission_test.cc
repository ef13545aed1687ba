#include "ps_server/coordinator/admission.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/model/model_spec.h"
#include "common/model/wire_model.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/system/clock.h"
#include "ps_server/coordinator/recovery.h"

namespace weir {
namespace {

// The parts of a job of one worker and one shard, without a coordinator. The test calls for the coordinator.
struct Fixture {
  struct Link : ShardLink {
    explicit Link(std::vector<v1::ControlMessage>* messages) : sent(messages) {}
    void Send(const v1::ControlMessage& message) override { sent->push_back(message); }
    std::vector<v1::ControlMessage>* sent;
  };

  JobParts::Options Options() {
    config.mutable_consistency()->set_mode(v1::ConsistencyConfig::MODE_BOUNDED);
    config.mutable_data()->set_batch_size(8);
    config.mutable_train()->set_epochs(1);
    config.mutable_cluster()->set_lease_seconds(10);
    config.mutable_cluster()->set_grace_seconds(1);
    JobParts::Options options;
    options.config = config;
    options.shard_addresses = {"10.0.0.0:2222"};
    options.clock = &clock;
    options.open_link = [this](uint32_t, const std::string&, ShardLinkEvents events) {
      events.connected();
      link = std::move(events);
      return std::make_unique<Link>(&sent);
    };
    return options;
  }
  JobParts::Events Events() {
    JobParts::Events events;
    events.post = [](const std::function<void()>& function) { function(); };
    events.fail = [this](const absl::Status& status) { failure = status; };
    events.shard_report = [this](uint32_t, const v1::ShardReport& report) {
      if (report.has_membership()) admission.OnConfirmed();
    };
    events.may_install = [this] { recovery.MaybeInstall(); };
    events.may_serve = [this] { ++serves; };
    events.may_continue = [this] { ++continues; };
    events.may_finish = [] {};
    return events;
  }

  void Join() {
    ModelSpec model;
    model.tensors = {{"w", {40}, TensorKind::kParameter, Initializer::Zeros()}};
    v1::JoinRequest request;
    request.set_role(v1::WORKER);
    request.set_task("worker:0");
    request.set_instance(1000);
    *request.mutable_protocol() = OwnProtocol();
    request.set_model(ToProto(model).SerializeAsString());
    request.set_job_config(config.SerializeAsString());
    request.set_train_examples(64);
    request.add_ps_addresses("10.0.0.0:2222");
    admission.Join(
        std::move(request), [this](absl::StatusOr<v1::JoinReply> reply) { joined = std::move(reply); }, 1);
  }
  // The shard is attached, and has installed its part.
  void Install() {
    recovery.OnAttached(0, {});
    v1::Installed installed;
    installed.set_incarnation(700);
    recovery.OnInstalled(0, installed);
  }
  // The shard has acknowledged the newest membership, and its slowest worker is at this clock.
  void Acknowledge(uint64_t floor) {
    v1::ShardReport report;
    report.mutable_membership()->set_epoch(job.numbers.epoch());
    report.mutable_membership()->set_floor(floor);
    link.report(report);
  }
  std::vector<v1::Membership> memberships() const {
    std::vector<v1::Membership> found;
    for (const v1::ControlMessage& message : sent) {
      if (message.has_membership()) found.push_back(message.membership().membership());
    }
    return found;
  }

  ManualClock clock;
  v1::JobConfig config;
  std::vector<v1::ControlMessage> sent;
  ShardLinkEvents link;
  absl::Status failure;
  int serves = 0, continues = 0;
  std::optional<absl::StatusOr<v1::JoinReply>> joined;
  JobParts job{Options(), Events(), nullptr};
  Admission admission{job};
  Recovery recovery{job, admission};
};

TEST_CASE("A worker is admitted in two rounds, and begins at the highest floor") {
  Fixture f;
  f.Join();
  CHECK(f.memberships().empty());
  f.Install();
  REQUIRE(f.memberships().size() == 1);
  CHECK(f.memberships()[0].members(0).joining());
  f.Acknowledge(5);
  REQUIRE(f.memberships().size() == 2);
  CHECK_FALSE(f.memberships()[1].members(0).joining());
  CHECK(f.memberships()[1].epoch() > f.memberships()[0].epoch());
  CHECK_FALSE(f.joined.has_value());
  CHECK(f.job.state == v1::STARTING);
  f.Acknowledge(5);
  REQUIRE(f.joined.has_value());
  REQUIRE(f.joined->ok());
  CHECK((*f.joined)->start_clock() == 5);
  CHECK(f.job.state == v1::RUNNING);
  CHECK(f.serves == 1);
}

TEST_CASE("A worker that falls silent is taken out, and shards and the coordinator are told") {
  Fixture f;
  f.Join();
  f.Install();
  f.Acknowledge(0);
  f.Acknowledge(0);
  f.clock.Advance(absl::Seconds(11));
  f.admission.Tick(/*stood_still=*/false);
  CHECK(f.job.members.workers().empty());
  REQUIRE(f.memberships().size() == 3);
  CHECK(f.memberships()[2].members().empty());
  CHECK(f.continues == 1);
  CHECK(f.failure.ok());
}

TEST_CASE("A shard that is lost ends a job without a store") {
  Fixture f;
  f.Join();
  f.Install();
  f.recovery.OnLinkEnded(0, absl::UnavailableError("its stream ended"));
  CHECK(KindOf(f.failure) == v1::FAILURE_LOST_PEER);
  CHECK_FALSE(f.job.shards[0].installed);
}

}  // namespace
}  // namespace weir

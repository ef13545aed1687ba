#include "tests/ps_server/coordinator/coordinator_fixture.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/wire_model.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"

namespace weir {
namespace {

class FakeLink final : public ShardLink {
 public:
  explicit FakeLink(FakeShard* shard) : shard_(shard) { shard_->open = true; }
  ~FakeLink() override { shard_->open = false; }
  void Send(const v1::ControlMessage& message) override { shard_->Handle(message); }

 private:
  FakeShard* const shard_;
};

}  // namespace

void FakeShard::Handle(const v1::ControlMessage& message) {
  if (dead_link) return;
  sent.push_back(message);
  if (message.has_hello() && attaches) {
    v1::ShardReport report;
    *report.mutable_attached() = holds;
    report.mutable_attached()->set_instance(instance);
    report.mutable_attached()->set_measures_steps(measures_steps);
    events.report(report);
  }
  if (message.has_install()) {
    if (holds.incarnation() != 0) incarnation += 10;
    num_shards = message.install().num_shards();
    holds.set_incarnation(incarnation);
    holds.set_epoch(0);
    holds.set_model_hash(model_hash);
    *holds.mutable_batches() = message.install().has_restore() ? restored_batches : Intervals();
  }
  if (message.has_install()) {
    const v1::Restore& restore = message.install().restore();
    stats.mutable_version()->set_count(restore.weights_only() ? 0 : restore.step());
  }
  if (message.has_commit() && publishes) stats.mutable_version()->set_count(message.commit().step() + 1);
  if (message.has_membership()) holds.set_epoch(message.membership().membership().epoch());
  if (message.has_checkpoint() && writes) Written(message.checkpoint().step());
  if (message.has_install() && installs) Installed();
  if (message.has_membership() && acknowledges) Acknowledge(message.membership().membership().epoch());
  if (message.has_ping() && answers_pings) AnswerPing(message.ping().sequence());
  if (message.has_pin() && answers_pins) Pinned(message.pin().pin(), 40 + incarnation);
  if (message.has_shutdown() && confirms_end) events.ended(absl::OkStatus());
}

void FakeShard::Installed() {
  v1::ShardReport report;
  report.mutable_installed()->set_error(install_error);
  if (const v1::Install install = LastInstall();
      install.has_restore() && finds_damaged == install.restore().step()) {
    report.mutable_installed()->set_error("a tensor is damaged");
    report.mutable_installed()->set_damaged(true);
  }
  report.mutable_installed()->set_permanent(install_error_permanent);
  report.mutable_installed()->set_incarnation(incarnation);
  *report.mutable_installed()->mutable_batches() = holds.batches();
  events.report(report);
}

void FakeShard::Written(uint64_t step) {
  const std::vector<v1::ControlMessage> asked = Sent(v1::ControlMessage::kCheckpoint);
  Written(step, asked.empty() ? 0 : asked.back().checkpoint().attempt());
}

void FakeShard::Written(uint64_t step, uint64_t attempt) {
  v1::ShardReport report;
  report.mutable_checkpoint()->set_step(step);
  report.mutable_checkpoint()->set_attempt(attempt);
  report.mutable_checkpoint()->set_error(write_error);
  report.mutable_checkpoint()->mutable_record()->set_step(step);
  report.mutable_checkpoint()->mutable_record()->set_bytes(100);
  report.mutable_checkpoint()->mutable_record()->set_num_shards(num_shards);
  if (writes_deltas && Sent(v1::ControlMessage::kFreeze).back().freeze().follows() > 0) {
    report.mutable_checkpoint()->mutable_record()->add_tables()->set_delta_since(1);
  }
  events.report(report);
}

void FakeShard::Kill(const std::string& why) {
  holds.Clear();
  incarnation += 1000;
  events.ended(absl::UnavailableError(why));
}

void FakeShard::Break(const std::string& why) { events.ended(absl::UnavailableError(why)); }

void FakeShard::Acknowledge(uint64_t epoch) {
  v1::ShardReport report;
  report.mutable_membership()->set_epoch(epoch);
  report.mutable_membership()->set_floor(floor);
  events.report(report);
}

void FakeShard::Staged(uint64_t step, const std::vector<uint32_t>& refused, const std::string& reason) {
  v1::ShardReport report;
  report.mutable_staged()->set_step(step);
  for (uint32_t part = 0; part < parts; ++part) report.mutable_staged()->add_parts(part);
  for (uint32_t part : refused) report.mutable_staged()->add_refused_parts(part);
  report.mutable_staged()->set_reason(reason);
  events.report(report);
}

void FakeShard::StagedParts(uint64_t step, const std::vector<uint32_t>& parts,
                            const std::vector<uint32_t>& refused) {
  v1::ShardReport report;
  report.mutable_staged()->set_step(step);
  for (uint32_t part : parts) report.mutable_staged()->add_parts(part);
  for (uint32_t part : refused) report.mutable_staged()->add_refused_parts(part);
  events.report(report);
}

void FakeShard::Pinned(uint64_t pin, uint64_t count) {
  v1::ShardReport report;
  report.mutable_pinned()->set_pin(pin);
  report.mutable_pinned()->mutable_version()->set_incarnation(incarnation);
  report.mutable_pinned()->mutable_version()->set_count(count);
  events.report(report);
}

void FakeShard::AnswerPing(uint64_t sequence) {
  v1::ShardReport report;
  *report.mutable_stats() = stats;
  report.mutable_stats()->set_sequence(sequence);
  events.report(report);
}

std::vector<v1::ControlMessage> FakeShard::Sent(v1::ControlMessage::MessageCase kind) const {
  std::vector<v1::ControlMessage> out;
  for (const v1::ControlMessage& message : sent) {
    if (message.message_case() == kind) out.push_back(message);
  }
  return out;
}

v1::Membership FakeShard::Membership() const {
  const auto messages = Sent(v1::ControlMessage::kMembership);
  return messages.empty() ? v1::Membership() : messages.back().membership().membership();
}

CoordinatorFixture::CoordinatorFixture(v1::ConsistencyConfig::Mode mode, uint32_t workers, uint32_t shards)
    : workers(workers) {
  config.set_name("test");
  config.mutable_consistency()->set_mode(mode);
  if (mode == v1::ConsistencyConfig::MODE_BOUNDED) config.mutable_consistency()->set_staleness(2);
  config.mutable_data()->set_batch_size(8);
  config.mutable_train()->set_epochs(1);
  config.mutable_cluster()->set_lease_seconds(10);
  config.mutable_cluster()->set_grace_seconds(1);
  config.mutable_cluster()->set_start_seconds(60);
  config.mutable_cluster()->set_server_wait_seconds(5);
  // Without this the model would be too small for a part on each server.
  config.mutable_server()->set_min_shard_kib(0);
  model.tensors = {{"w", {40}, TensorKind::kParameter, Initializer::Zeros()}};
  for (uint32_t i = 0; i < shards; ++i) {
    this->shards.push_back(std::make_unique<FakeShard>());
    this->shards[i]->incarnation = 700 + i;
    this->shards[i]->address = absl::StrCat("10.0.0.", i, ":2222");
    this->shards[i]->model_hash = model.Hash();
    addresses.push_back(this->shards[i]->address);
  }
}

void CoordinatorFixture::Start() {
  Coordinator::Options options;
  options.config = config;
  options.workers = workers;
  options.job = job;
  options.shard_addresses = known_addresses.value_or(addresses);
  options.init_from = init_from;
  if (init_from_before.has_value()) {
    options.init_from_before = [this](uint64_t, const std::function<void(absl::StatusOr<uint64_t>)>& found) {
      found(*init_from_before);
    };
  }
  options.memory_bytes = memory_bytes;
  options.clock = &clock;
  options.open_link = [this](uint32_t index, const std::string& address,
                             ShardLinkEvents events) -> std::unique_ptr<ShardLink> {
    const auto there = elsewhere.find(address);
    FakeShard* shard = there == elsewhere.end() ? shards.at(index).get() : there->second.get();
    shard->address = address;
    shard->events = std::move(events);
    if (shard->connects) shard->events.connected();
    return std::make_unique<FakeLink>(shard);
  };
  options.on_end = [this](const v1::ClusterStatus& status, const absl::Status& why) {
    ++ends;
    failure = std::string(why.message());
    failure_kind = KindOf(why);
    final_status = status;
  };
  const auto& consistency = config.consistency();
  for (auto& shard : shards) shard->parts = consistency.has_parts() ? consistency.parts() : workers;
  std::unique_ptr<JobStore> store;
  if (disk != nullptr) {
    store = disk->Open();
    config.mutable_checkpoint()->set_directory("/runs/7");
    options.config = config;
  }
  coordinator = std::make_unique<Coordinator>(std::move(options), std::move(store));
}

void CoordinatorFixture::Restart() {
  // A killed coordinator sends nothing.
  for (auto& shard : shards) shard->dead_link = true;
  if (disk != nullptr) disk->held.clear();
  coordinator.reset();
  ends = 0;
  failure = "";
  for (auto& shard : shards) shard->dead_link = false;
  shards[0]->holds.Clear();
  shards[0]->incarnation += 1000;
  Start();
}

void CoordinatorFixture::StartJob() {
  Start();
  std::vector<AnswerPtr<v1::JoinReply>> joins;
  for (uint32_t rank = 0; rank < workers; ++rank) joins.push_back(Join(rank));
  for (const auto& join : joins) members.push_back(join->reply());
  for (const auto& member : members) Heartbeat(member);
}

v1::JoinRequest CoordinatorFixture::JoinRequest(uint32_t rank, uint64_t instance) const {
  v1::JoinRequest request;
  request.set_role(v1::WORKER);
  request.set_task(absl::StrCat("worker:", rank));
  request.set_rank(rank);
  request.set_instance(instance == 0 ? own_protocol_from.value_or(1000) + rank : instance);
  if (own_protocol_from.has_value()) *request.mutable_protocol() = OwnProtocol();
  request.set_model(ToProto(model).SerializeAsString());
  request.set_job_config(config.SerializeAsString());
  request.set_train_examples(train_examples);
  for (const std::string& address : addresses) request.add_ps_addresses(address);
  return request;
}

AnswerPtr<v1::JoinReply> CoordinatorFixture::Join(const v1::JoinRequest& request, uint64_t call) {
  auto answer = std::make_shared<Answer<v1::JoinReply>>();
  coordinator->Join(request, Keep(answer), call);
  return answer;
}

AnswerPtr<v1::JoinReply> CoordinatorFixture::JoinReader(uint64_t instance) {
  v1::JoinRequest request = JoinRequest(0, instance);
  request.set_role(v1::READER);
  request.set_task("evaluator:0");
  request.set_train_examples(0);
  return Join(request);
}

v1::Caller CoordinatorFixture::CallerOf(const v1::JoinReply& reply) const {
  v1::Caller caller;
  caller.set_worker(reply.worker());
  caller.set_incarnation(reply.incarnation());
  caller.set_epoch(reply.membership().epoch());
  caller.set_model_hash(reply.model_hash());
  if (own_protocol_from.has_value()) caller.set_instance(*own_protocol_from + reply.worker());
  return caller;
}

AnswerPtr<v1::HeartbeatReply> CoordinatorFixture::Heartbeat(const v1::JoinReply& member,
                                                            uint64_t known_revision, bool only_news) {
  v1::HeartbeatRequest request;
  *request.mutable_caller() = CallerOf(member);
  request.set_known_revision(known_revision);
  request.set_only_news(only_news);
  auto answer = std::make_shared<Answer<v1::HeartbeatReply>>();
  coordinator->Heartbeat(request, Keep(answer));
  return answer;
}

void CoordinatorFixture::Leave(const v1::JoinReply& member, bool done, const std::string& reason,
                               v1::FailureKind kind) {
  StartLeave(member, done, reason, kind)->reply();
}

FakeShard& CoordinatorFixture::StartElsewhere(uint32_t index, const std::string& address, uint64_t instance) {
  std::unique_ptr<FakeShard>& shard = elsewhere[address];
  shard = std::make_unique<FakeShard>();
  shard->incarnation = 5000 + index;
  shard->model_hash = model.Hash();
  shard->instance = instance;
  shard->parts = shards[index]->parts;
  return *shard;
}

AnswerPtr<v1::AnnounceReply> CoordinatorFixture::Announce(uint32_t shard, const std::string& address,
                                                          uint64_t instance) {
  v1::AnnounceRequest request;
  request.set_shard(shard);
  request.set_address(address);
  request.set_instance(instance);
  auto answer = std::make_shared<Answer<v1::AnnounceReply>>();
  coordinator->Announce(request, Keep(answer));
  return answer;
}

AnswerPtr<v1::CheckpointReply> CoordinatorFixture::Checkpoint() {
  auto answer = std::make_shared<Answer<v1::CheckpointReply>>();
  coordinator->Checkpoint({}, Keep(answer));
  return answer;
}

void CoordinatorFixture::Steps(int count) {
  for (int i = 0; i < count; ++i, ++open_step) {
    for (auto& shard : shards) shard->Staged(open_step);
  }
}

void CoordinatorFixture::Beat(const v1::JoinReply& member) {
  const auto answer = Heartbeat(member);
  if (!answer->there() || !answer->status().ok() || answer->reply().state() != v1::FAILED) return;
  Leave(member, false, answer->reply().failure());
}

void CoordinatorFixture::HeartbeatAll() {
  for (const v1::JoinReply& member : members) Beat(member);
}

AnswerPtr<v1::LeaveReply> CoordinatorFixture::StartLeave(const v1::JoinReply& member, bool done,
                                                         const std::string& reason, v1::FailureKind kind) {
  v1::LeaveRequest request;
  *request.mutable_caller() = CallerOf(member);
  request.set_done(done);
  request.set_reason(reason);
  request.set_failure_kind(kind);
  auto answer = std::make_shared<Answer<v1::LeaveReply>>();
  coordinator->Leave(request, Keep(answer));
  return answer;
}

AnswerPtr<v1::NextRangeReply> CoordinatorFixture::NextRange(const v1::JoinReply& member,
                                                            const std::vector<uint64_t>& completed) {
  v1::NextRangeRequest request;
  *request.mutable_caller() = CallerOf(member);
  for (uint64_t id : completed) request.add_completed_ranges(id);
  auto answer = std::make_shared<Answer<v1::NextRangeReply>>();
  coordinator->NextRange(request, Keep(answer));
  return answer;
}

AnswerPtr<v1::PinReply> CoordinatorFixture::Pin(double lease_seconds) {
  return PinOf(members.at(0), lease_seconds);
}

void CoordinatorFixture::Unpin(const v1::JoinReply& caller, uint64_t pin) {
  v1::UnpinRequest request;
  *request.mutable_caller() = CallerOf(caller);
  request.set_pin(pin);
  coordinator->Unpin(request, [](const absl::StatusOr<v1::UnpinReply>&) {});
}

AnswerPtr<v1::PinReply> CoordinatorFixture::PinOf(const v1::JoinReply& caller, double lease_seconds) {
  v1::PinRequest request;
  *request.mutable_caller() = CallerOf(caller);
  request.set_lease_seconds(lease_seconds);
  auto answer = std::make_shared<Answer<v1::PinReply>>();
  coordinator->Pin(request, Keep(answer));
  return answer;
}

v1::ClusterStatus CoordinatorFixture::Status() {
  auto answer = std::make_shared<Answer<v1::ClusterStatus>>();
  coordinator->Status(Keep(answer));
  return answer->reply();
}

v1::TaskStatus CoordinatorFixture::Task(const std::string& name) {
  const v1::ClusterStatus status = Status();
  for (const v1::TaskStatus& task : status.tasks()) {
    if (task.task() == name) return task;
  }
  return {};
}

void CoordinatorFixture::Run(absl::Duration time, const std::vector<v1::JoinReply>& alive) {
  constexpr absl::Duration kStep = absl::Milliseconds(250);
  for (absl::Duration gone; gone < time; gone += kStep) {
    clock.Advance(kStep);
    for (const v1::JoinReply& member : alive) Beat(member);
    coordinator->Tick();
  }
}

}  // namespace weir

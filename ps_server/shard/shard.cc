#include "ps_server/shard/shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/planted_bug.h"
#include "common/codec/wire_dtype.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/shard/samples.h"

namespace weir {
std::unique_ptr<ConsistencyPolicy> Shard::PolicyFromConfig(const v1::JobConfig& config,
                                                           const v1::Install& install) {
  switch (config.consistency().mode()) {
    case v1::ConsistencyConfig::MODE_BOUNDED:
      return MakeBoundedPolicy(config.consistency().staleness(), config.consistency().prefetch());
    case v1::ConsistencyConfig::MODE_ASYNC:
      return MakeAsyncPolicy();
    default:
      return MakeSyncPolicy(install.parts(), install.total_batches(), config.consistency().backup_workers());
  }
}

Shard::Shard(Options options)
    : options_(std::move(options)), mode_(TraitsOf(options_.config)), reporter_([](v1::ShardReport) {}) {}

Shard::~Shard() {
  queue_.Post([this] {
    v1::Shutdown shutdown;
    shutdown.set_failure("the server stops");
    HandleShutdown(shutdown);
  });
}

void Shard::SetReporter(std::function<void(v1::ShardReport)> reporter) {
  queue_.Post([this, reporter = std::move(reporter)] { reporter_ = reporter; });
}

void Shard::Control(v1::ControlMessage message) {
  queue_.Post([this, message = std::move(message)]() mutable {
    // These change nothing, and a ping's answer keeps a lease.
    const bool settled = writes_ == 0 && logging_.empty();
    const bool reads = message.has_pin() || message.has_unpin();
    if (message.has_ping() || (deferred_.empty() && (settled || reads))) return Handle(message);
    deferred_.push_back(std::move(message));
  });
}

void Shard::Handle(const v1::ControlMessage& message) {
  switch (message.message_case()) {
    case v1::ControlMessage::kInstall:
      return HandleInstall(message.install());
    case v1::ControlMessage::kMembership:
      return HandleMembership(message.membership().membership());
    case v1::ControlMessage::kCommit:
      return HandleCommit(message.commit());
    case v1::ControlMessage::kPin:
      return HandlePin(message.pin());
    case v1::ControlMessage::kUnpin:
      pins_.erase(message.unpin().pin());
      return;
    case v1::ControlMessage::kHello:
      return HandleHello();
    case v1::ControlMessage::kCheckpoint:
      return HandleCheckpoint(message.checkpoint());
    case v1::ControlMessage::kPing:
      return HandlePing(message.ping());
    case v1::ControlMessage::kShutdown:
      return HandleShutdown(message.shutdown());
    case v1::ControlMessage::MESSAGE_NOT_SET:
      return;
  }
}

void Shard::Begin(Session session, v1::PushRequest header, BeginDone done) {
  queue_.Post([this, session, header = std::move(header), done = std::move(done)]() mutable {
    HandleBegin({session, std::move(header), std::move(done), options_.clock->Now()});
  });
}

void Shard::Push(Session session, std::unique_ptr<PushArrival> arrival, PushDone done) {
  const v1::PushRequest& header = arrival->header();
  counters_.bytes_pushed += header.elements() * static_cast<uint64_t>(BytesPerValue(header.dtype()));
  // std::function wants what can be copied.
  auto shared = std::make_shared<std::unique_ptr<PushArrival>>(std::move(arrival));
  queue_.Post([this, session, shared, done = std::move(done)]() mutable {
    HandlePush(session, std::move(*shared), std::move(done), /*waited=*/false);
  });
}

void Shard::Pull(Session session, v1::PullRequest request, PullDone done) {
  queue_.Post([this, session, request = std::move(request), done = std::move(done)]() mutable {
    HandlePull({session, std::move(request), std::move(done), options_.clock->Now()});
  });
}

void Shard::End(Session session) {
  queue_.Post([this, session] { HandleEnd(session); });
}

void Shard::Tick() {
  queue_.Post([this] { HandleTick(); });
}

void Shard::Quiesce() {
  queue_.Run([] {});
}

// ---- control

void Shard::HandleMembership(const v1::Membership& membership) {
  if (store_ == nullptr || over_ || membership.epoch() <= epoch_) return;
  epoch_ = membership.epoch();
  if (log_ != nullptr) {
    // So that a restored shard knows whose clocks the pushes behind it complete. Nothing is acknowledged with
    // it: it takes effect at once.
    v1::LoggedPush record;
    *record.mutable_membership() = membership;
    log_->Append(std::move(record), nullptr, 0, WhenLogged([] {}));
  }
  v1::ShardReport report;
  report.mutable_membership()->set_epoch(epoch_);
  report.mutable_membership()->set_floor(InstallMembers(membership));
  Report(std::move(report));
  Wake();
}

uint64_t Shard::InstallMembers(const v1::Membership& membership) {
  const uint64_t floor = policy_->JoinClock();
  std::map<uint32_t, const v1::Member*> now;
  for (const v1::Member& member : membership.members()) now[member.worker()] = &member;
  for (auto it = members_.begin(); it != members_.end();) {
    const auto found = now.find(it->first);
    if (found != now.end() && found->second->incarnation() == it->second.incarnation) {
      ++it;
      continue;
    }
    const uint32_t gone = it->first;
    policy_->Remove(gone);
    FailWaiting(
        [gone](uint32_t worker) { return worker == gone; }, v1::FENCED,
        absl::StrCat(it->second.task, " was taken out of the job by membership epoch ", membership.epoch()));
    arriving_.erase(arriving_.lower_bound({gone, 0, 0}), arriving_.lower_bound({gone + 1, 0, 0}));
    it = members_.erase(it);
  }
  for (const v1::Member& member : membership.members()) {
    MemberState& state = members_[member.worker()];
    state.task = member.task();
    if (state.incarnation != member.incarnation()) {
      state.incarnation = member.incarnation();
      policy_->Forget(member.worker());
      if (mode_.keeps_clocks && member.first_clock_plus_one() > 0) {
        state.unheard = true;
        policy_->Skip(member.worker(), member.first_clock_plus_one() - 1);
      }
    }
    if (member.idle()) {
      policy_->Remove(member.worker());
      continue;
    }
    const uint64_t start = member.joining() ? floor : member.start_clock();
    if (state.unheard) {
      const uint64_t known = policy_->Skip(member.worker(), start);
      if (known < start) state.passed.Insert(known, start);
    }
    policy_->Admit(member.worker(), start);
  }
  return floor;
}

void Shard::HandleCommit(const v1::CommitStep& commit) {
  const std::optional<uint64_t> open = policy_ == nullptr ? std::nullopt : policy_->CompleteStep();
  if (over_ || open != commit.step()) return;  // a repeat
  std::vector<WeightedGradient> gradients;
  for (uint32_t part : commit.parts()) {
    const auto staged = staged_.find(part);
    if (staged == staged_.end()) {
      LogError("ignored a commit of step ", commit.step(), " with part ", part, ", which is not staged here");
      return;
    }
    if (!staged->second.refusal.empty()) {
      LogError("ignored a commit of step ", commit.step(), " with part ", part, ", which is refused here");
      return;
    }
    const uint64_t examples = Planted("unweighted mean") ? 1 : staged->second.examples;
    gradients.push_back({staged->second.gradient.get(), examples});
  }
  if (!MakeRoom()) {
    late_commit_ = commit;
    late_since_ = options_.clock->Now();
    short_of_memory_ = true;
    return;
  }
  store_->Update(gradients);
  policy_->Commit();
  counters_.version = commit.step() + 1;
  MarkProgress();
  commits_[commit.step()].assign(commit.parts().begin(), commit.parts().end());
  if (commits_.size() > kRecorded) commits_.erase(commits_.begin());

  std::map<uint32_t, StagedPart> staged;
  staged.swap(staged_);
  for (auto& [part, entry] : staged) {
    const bool applied = std::count(commit.parts().begin(), commit.parts().end(), part) > 0;
    ++(applied ? counters_.pushes_applied : counters_.pushes_refused);
    if (applied) {
      staleness_.Add(0);
      lead_.Add(0);
    }
    for (const StagedPart::Waiter& waiter : entry.waiters) {
      const std::string why = entry.refusal.empty() ? CommittedWithout(commit.step(), part) : entry.refusal;
      waiter.done(PushAnswer{applied ? NewReply(v1::OK) : NewReply(v1::REFUSED, why), {}});
    }
  }
  for (const v1::PinVersion& pin : std::exchange(late_pins_, {})) HandlePin(pin);
  if (late_checkpoint_.has_value()) {
    const v1::TakeCheckpoint take = *std::move(late_checkpoint_);
    late_checkpoint_.reset();
    HandleCheckpoint(take);
  }
  Wake();
}

void Shard::HandlePin(const v1::PinVersion& pin) {
  if (store_ == nullptr) return;
  if (late_commit_.has_value()) {
    late_pins_.push_back(pin);
    return;
  }
  Pin& entry = pins_[pin.pin()];
  if (entry.version == nullptr) entry.version = store_->Lend({0, absl::nullopt, pin.pin()});
  entry.deadline = options_.clock->Now() + absl::Seconds(pin.lease_seconds());
  v1::ShardReport report;
  report.mutable_pinned()->set_pin(pin.pin());
  report.mutable_pinned()->mutable_version()->set_incarnation(incarnation_);
  report.mutable_pinned()->mutable_version()->set_count(entry.version->count);
  Report(std::move(report));
}

void Shard::HandlePing(const v1::Ping& ping) {
  v1::ShardReport report;
  v1::ShardStats& stats = *report.mutable_stats();
  stats.set_sequence(ping.sequence());
  stats.mutable_version()->set_incarnation(incarnation_);
  stats.mutable_version()->set_count(counters_.version);
  stats.set_pushes_applied(counters_.pushes_applied);
  stats.set_pushes_refused(counters_.pushes_refused);
  stats.set_pushes_lost(counters_.pushes_lost);
  stats.set_batches_settled(batches_.size() + stale_batches_.SizeWithout(batches_));
  stats.set_bytes_pushed(counters_.bytes_pushed);
  stats.set_bytes_pulled(counters_.bytes_pulled);
  *stats.mutable_version_staleness() = ToSamples(staleness_);
  *stats.mutable_lead() = ToSamples(lead_);
  if (policy_ != nullptr) {
    for (const WorkerClockValue& value : policy_->Clocks()) {
      v1::WorkerClock* clock = stats.add_clocks();
      clock->set_worker(value.worker);
      clock->set_clock(value.clock);
    }
  }
  for (v1::Wait& wait : Waits()) *stats.add_waits() = std::move(wait);
  stats.set_seconds_since_update(absl::ToDoubleSeconds(options_.clock->Now() - last_progress_));
  Report(std::move(report));
}

void Shard::HandleShutdown(const v1::Shutdown& shutdown) {
  if (over_) return;
  over_ = true;
  ++era_;
  failure_ = JobFailure(shutdown.failure_kind(), shutdown.failure());
  FailAll(v1::JOB_OVER, std::string(failure_.message()));
}

}  // namespace weir

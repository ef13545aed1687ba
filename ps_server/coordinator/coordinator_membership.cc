// The part of Coordinator that says who is in: joining, leases, leaving, and the ranges of batches that
// members work on.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/job_config.h"
#include "common/status_macros.h"
#include "common/telemetry/logging.h"
#include "common/wire_model.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {
namespace {

constexpr uint32_t kFirstReader = 1u << 31;
// Workers that are gone and still shown in the status.
constexpr size_t kDepartedShown = 100;
// A parked heartbeat or range call is answered after so long even if nothing happened, so that reports stay
// fresh.
constexpr absl::Duration kLongestPark = absl::Milliseconds(500);

}  // namespace

// ---- joining

void Coordinator::HandleJoin(v1::JoinRequest request, Done<v1::JoinReply> done, uint64_t call) {
  if (state_ == v1::FAILED) return done(absl::AbortedError(failure_));
  if (over() || (state_ == v1::DRAINING && request.role() == v1::WORKER)) {
    return done(absl::OutOfRangeError("the job's examples are done; there is nothing left to do"));
  }
  // The same Join again?
  for (WaitingJoin& join : waiting_) {
    if (join.request.instance() != request.instance()) continue;
    join.done(absl::CancelledError("the same process called again"));
    join.done = std::move(done);
    join.call = call;
    return;
  }
  for (auto& [rank, member] : members_) {
    if (member.instance != request.instance()) continue;
    if (member.phase == Phase::kLive || member.phase == Phase::kIdle) {
      return done(MakeJoinReply(rank, member.incarnation, member.start_clock));
    }
    if (member.join) member.join(absl::CancelledError("the same process called again"));
    member.join = std::move(done);
    return;
  }
  for (const auto& [id, reader] : readers_) {
    if (reader.instance == request.instance()) return done(MakeJoinReply(id, reader.incarnation, 0));
  }
  if (absl::Status status = CheckJoin(request); !status.ok()) {
    LogWarning("refused ", request.task(), ": ", status.message());
    return done(status);
  }
  waiting_.push_back({std::move(request), std::move(done), call, now()});
  OpenLinks();
  MaybeInstall();
  MaybeAdmit();
}

absl::Status Coordinator::CheckJoin(const v1::JoinRequest& request) {
  if (request.role() != v1::WORKER && request.role() != v1::READER) {
    return absl::InvalidArgumentError(
        absl::StrCat("role: ", request.role(), " is not one of WORKER, READER"));
  }
  const bool worker = request.role() == v1::WORKER;
  if (worker && request.rank() >= options_.workers) {
    return absl::InvalidArgumentError(absl::StrCat("rank: ", request.task(), " has rank ", request.rank(),
                                                   "; the job has ", options_.workers,
                                                   " workers (cluster.workers, or the cluster spec)"));
  }
  v1::JobConfig config;
  if (!config.ParseFromString(request.job_config()))
    return absl::InvalidArgumentError("job_config does not parse");
  if (std::string difference = FirstDifference(options_.config, config); !difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the config of ", request.task(), " differs from that of ps:0: ", difference));
  }
  WEIR_ASSIGN_OR_RETURN(ModelSpec model, FromProto(request.model()));
  if (model_.has_value()) {
    if (std::string difference = model_->FirstDifference(model); !difference.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the model of ", request.task(), " differs from the job's: ", difference));
    }
  }
  if (worker && request.train_examples() == 0) {
    return absl::InvalidArgumentError("train_examples: a worker needs at least one");
  }
  if (worker && train_examples_ != 0 && request.train_examples() != train_examples_) {
    return absl::FailedPreconditionError(absl::StrCat("the training set of ", request.task(), " has ",
                                                      request.train_examples(),
                                                      " examples; that of the job has ", train_examples_));
  }
  const uint64_t shards = std::max<uint64_t>(addresses_.size(), 1);
  if (!shards_.empty() && request.ps_addresses_size() != static_cast<int>(shards)) {
    return absl::FailedPreconditionError(absl::StrCat("the cluster spec of ", request.task(), " lists ",
                                                      request.ps_addresses_size(), " servers; the job has ",
                                                      shards));
  }
  if (request.ps_addresses_size() == 0) return absl::InvalidArgumentError("ps_addresses: needs at least one");

  model_ = std::move(model);
  if (shards_.empty()) addresses_.assign(request.ps_addresses().begin(), request.ps_addresses().end());
  if (worker && train_examples_ == 0) {
    const v1::TrainConfig& train = options_.config.train();
    train_examples_ = request.train_examples();
    total_examples_ = train.has_examples()
                          ? train.examples()
                          : static_cast<uint64_t>(std::max(
                                1.0, std::round(train.epochs() * static_cast<double>(train_examples_))));
    const uint64_t batch = options_.config.data().batch_size();
    total_batches_ = (total_examples_ + batch - 1) / batch;
    const auto& consistency = options_.config.consistency();
    parts_ = consistency.has_parts() ? consistency.parts() : options_.workers;
    const uint64_t per_step = sync() ? parts_ : options_.workers;
    total_steps_ = (total_batches_ + per_step - 1) / per_step;
    if (!sync()) ranges_.emplace(total_batches_, options_.workers);
    progress_.emplace(train_examples_);
  }
  return absl::OkStatus();
}

void Coordinator::MaybeAdmit() {
  if (over() || shards_.empty()) return;
  for (const ShardInfo& shard : shards_) {
    if (!shard.installed) return;
  }
  if (state_ == v1::RUNNING || state_ == v1::DRAINING) {
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->request.role() != v1::READER) {
        ++it;
        continue;
      }
      const uint32_t id = kFirstReader + last_reader_++;
      ReaderInfo& reader = readers_[id];
      reader.task = it->request.task();
      reader.instance = it->request.instance();
      reader.incarnation = ++last_incarnation_;
      reader.last_heard = now();
      reader.lease_end = now() + lease();
      LogInfo(reader.task, " joined as a reader");
      it->done(MakeJoinReply(id, reader.incarnation, 0));
      it = waiting_.erase(it);
    }
  }
  // One change of the membership at a time.
  for (const auto& [rank, member] : members_) {
    if (member.phase == Phase::kJoining || member.phase == Phase::kActivating) return;
  }
  bool changed = false;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const uint32_t rank = it->request.rank();
    if (it->request.role() != v1::WORKER || members_.count(rank) > 0) {
      ++it;
      continue;
    }
    MemberInfo& member = members_[rank];
    gave_up_.erase(rank);
    member.phase = Phase::kJoining;
    member.task = it->request.task();
    member.instance = it->request.instance();
    member.incarnation = ++last_incarnation_;
    member.last_heard = now();
    member.lease_end = now() + lease();
    member.join = std::move(it->done);
    it = waiting_.erase(it);
    changed = true;
  }
  if (ranges_.has_value() && ranges_->Available()) {
    for (auto& [rank, member] : members_) {
      if (member.phase != Phase::kIdle || !member.next_range) continue;
      member.phase = Phase::kJoining;
      changed = true;
    }
  }
  if (changed) BroadcastMembership();
}

void Coordinator::BroadcastMembership() {
  ++epoch_;
  v1::ControlMessage message;
  v1::Membership& membership = *message.mutable_membership()->mutable_membership();
  membership.set_epoch(epoch_);
  for (const auto& [rank, info] : members_) {
    v1::Member* member = membership.add_members();
    member->set_worker(rank);
    member->set_incarnation(info.incarnation);
    member->set_task(info.task);
    member->set_start_clock(info.start_clock);
    member->set_joining(info.phase == Phase::kJoining);
    member->set_idle(info.phase == Phase::kIdle);
  }
  Broadcast(message);
}

void Coordinator::OnAllAcked() {
  uint64_t start_clock = 0;
  for (const ShardInfo& shard : shards_) start_clock = std::max(start_clock, shard.floor);
  bool joining = false, live = false;
  for (auto& [rank, member] : members_) {
    if (member.phase != Phase::kJoining) continue;
    member.phase = Phase::kActivating;
    member.start_clock = std::max(member.start_clock, start_clock);
    joining = true;
  }
  if (joining) return BroadcastMembership();

  if (state_ == v1::STARTING && !members_.empty()) {
    state_ = v1::RUNNING;
    started_ = now();
    LogInfo("training starts with ", members_.size(), " workers on ", shards_.size(),
            " shards: ", total_steps_, " steps, ", total_examples_, " examples");
  }
  for (auto& [rank, member] : members_) {
    if (member.phase != Phase::kActivating) continue;
    member.phase = Phase::kLive;
    live = true;
  }
  if (!live) return MaybeAdmit();
  for (auto& [rank, member] : members_) {
    if (!member.join) continue;
    member.lease_end = now() + lease();
    LogInfo(member.task, " joined as rank ", rank, ", incarnation ", member.incarnation, ", at clock ",
            member.start_clock);
    std::exchange(member.join, nullptr)(MakeJoinReply(rank, member.incarnation, member.start_clock));
  }
  Changed();
  ServeRanges();
  MaybeAdmit();
}

v1::Membership Coordinator::MembershipNow() const {
  v1::Membership membership;
  membership.set_epoch(epoch_);
  for (const auto& [rank, info] : members_) {
    if (info.phase != Phase::kLive && info.phase != Phase::kIdle) continue;
    v1::Member* member = membership.add_members();
    member->set_worker(rank);
    member->set_incarnation(info.incarnation);
    member->set_task(info.task);
    member->set_start_clock(info.start_clock);
    member->set_idle(info.phase == Phase::kIdle);
  }
  return membership;
}

v1::JoinReply Coordinator::MakeJoinReply(uint32_t worker, uint64_t incarnation, uint64_t start_clock) const {
  v1::JoinReply reply;
  reply.set_worker(worker);
  reply.set_incarnation(incarnation);
  *reply.mutable_membership() = MembershipNow();
  reply.set_start_clock(start_clock);
  reply.set_num_shards(shards_.size());
  reply.mutable_ps_addresses()->Add(addresses_.begin(), addresses_.end());
  reply.set_total_batches(total_batches_);
  reply.set_total_examples(total_examples_);
  reply.set_parts(parts_);
  reply.set_total_steps(total_steps_);
  reply.set_model_hash(model_->Hash());
  reply.set_lease_seconds(options_.config.cluster().lease_seconds());
  return reply;
}

// ---- leases

void Coordinator::HandleHeartbeat(const v1::HeartbeatRequest& request, Done<v1::HeartbeatReply> done) {
  const v1::Caller& caller = request.caller();
  Done<v1::HeartbeatReply>* parked = nullptr;
  absl::Time* until = nullptr;
  if (const auto it = members_.find(caller.worker());
      it != members_.end() && it->second.incarnation == caller.incarnation()) {
    it->second.last_heard = now();
    it->second.lease_end = now() + lease();
    parked = &it->second.heartbeat;
    until = &it->second.heartbeat_until;
    if (progress_.has_value()) progress_->OnReport(caller.incarnation(), request.report());
  } else if (const auto reader = readers_.find(caller.worker());
             reader != readers_.end() && reader->second.incarnation == caller.incarnation()) {
    reader->second.last_heard = now();
    reader->second.lease_end = now() + lease();
    parked = &reader->second.heartbeat;
    until = &reader->second.heartbeat_until;
  }
  if (parked == nullptr) return AnswerHeartbeat(done, !over());
  if (*parked) AnswerHeartbeat(*parked, false);
  if (request.known_revision() != revision_ || over()) return AnswerHeartbeat(done, false);
  *parked = std::move(done);
  *until = now() + std::min(lease() / 3, kLongestPark);
}

void Coordinator::HandleLeave(const v1::LeaveRequest& request) {
  const v1::Caller& caller = request.caller();
  const auto member = members_.find(caller.worker());
  if (member != members_.end() && member->second.incarnation == caller.incarnation()) {
    if (progress_.has_value()) progress_->OnReport(caller.incarnation(), request.report());
    const std::string task = member->second.task;
    if (!request.done()) gave_up_.insert(member->first);
    RemoveMember(caller.worker(), request.done() ? "" : absl::StrCat("it gave up: ", request.reason()));
    // One that was lost may be started again; when all have given up, they would do so again.
    if (!request.done() && state_ == v1::RUNNING && gave_up_.size() == options_.workers) {
      FailJob(absl::StrCat("every worker gave up, ", task, " as the last one: ", request.reason()));
    }
    return;
  }
  const auto reader = readers_.find(caller.worker());
  if (reader != readers_.end() && reader->second.incarnation == caller.incarnation())
    RemoveReader(caller.worker());
}

void Coordinator::RemoveMember(uint32_t rank, const std::string& why) {
  const auto it = members_.find(rank);
  MemberInfo member = std::move(it->second);
  members_.erase(it);
  v1::TaskStatus departed;
  departed.set_task(member.task);
  departed.set_state(why.empty() ? "left" : "lost");
  departed.set_incarnation(member.incarnation);
  departed_.push_back(departed);
  if (departed_.size() > kDepartedShown) departed_.erase(departed_.begin());
  if (why.empty()) {
    LogInfo(member.task, " left");
  } else {
    LogWarning(member.task, " (rank ", rank, ", incarnation ", member.incarnation, ") is taken out: ", why);
  }
  if (member.join) member.join(absl::AbortedError("taken out before it was admitted"));
  if (member.heartbeat) AnswerHeartbeat(member.heartbeat, true);
  if (member.next_range) {
    v1::NextRangeReply reply;
    reply.set_fenced(true);
    member.next_range(std::move(reply));
  }
  if (ranges_.has_value()) ranges_->Release(rank);
  if (over()) return;
  BroadcastMembership();
  Changed();
  ServeRanges();
  MaybeAdmit();
  MaybeFinish();
}

void Coordinator::RemoveReader(uint32_t id) {
  const auto it = readers_.find(id);
  LogInfo(it->second.task, " (reader) left");
  if (it->second.heartbeat) AnswerHeartbeat(it->second.heartbeat, true);
  readers_.erase(it);
  MaybeFinish();
}

// ---- ranges

void Coordinator::HandleNextRange(const v1::NextRangeRequest& request, Done<v1::NextRangeReply> done) {
  if (over()) return done(absl::UnavailableError(failure_.empty() ? "the job is done" : failure_));
  if (!ranges_.has_value()) {
    return done(absl::FailedPreconditionError(
        "NextRange is for bounded and async; in sync the parts follow from the membership"));
  }
  const auto it = members_.find(request.caller().worker());
  if (it == members_.end() || it->second.incarnation != request.caller().incarnation()) {
    v1::NextRangeReply reply;
    reply.set_fenced(true);
    return done(std::move(reply));
  }
  MemberInfo& member = it->second;
  member.last_heard = now();
  member.lease_end = std::max(member.lease_end, now() + lease());
  for (uint64_t id : request.completed_ranges()) ranges_->Complete(id, it->first);
  if (member.next_range) std::exchange(member.next_range, nullptr)(v1::NextRangeReply());
  member.next_range = std::move(done);
  member.next_range_until = now() + std::min(lease() / 3, kLongestPark);
  if (ranges_->done()) StartDraining();
  ServeRanges();
  MaybeAdmit();  // an idle one may have something to do again
}

void Coordinator::ServeRanges() {
  if (!ranges_.has_value()) return;
  bool idle = false;
  for (auto& [rank, member] : members_) {
    if (!member.next_range) continue;
    v1::NextRangeReply reply;
    if (ranges_->done()) {
      reply.set_done(true);
    } else if (member.phase != Phase::kLive) {
      continue;
    } else if (std::optional<v1::Range> range = ranges_->Take(rank)) {
      *reply.mutable_range() = *range;
      reply.set_clock(member.start_clock);
    } else {
      // Nobody may wait for the clock of a worker that has nothing to do.
      member.phase = Phase::kIdle;
      idle = true;
      continue;
    }
    std::exchange(member.next_range, nullptr)(std::move(reply));
  }
  if (idle) BroadcastMembership();
}

}  // namespace weir

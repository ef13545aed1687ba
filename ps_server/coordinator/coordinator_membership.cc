// The part of Coordinator for membership: admission, leases, leaving, and members' ranges of batches.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {
namespace {

// One NextRange may report at most this many ranges.
constexpr int kMaxCompleted = 1024;

}  // namespace

// ---- joining

void Coordinator::HandleJoin(v1::JoinRequest request, Done<v1::JoinReply> done, uint64_t call) {
  if (absl::Status same = members_.CheckJob(request.job().id()); !same.ok()) return done(same);
  if (state_ == v1::FAILED) return done(ending_.ForJoin());
  const bool worker = request.role() == v1::WORKER;
  // The job waits for its readers to leave. If it waits for no other process, no further reader may come.
  const bool nothing_left = state_ == v1::DRAINING && ending_.saved() && !AwaitsEvaluation() &&
                            (worker || members_.workers().empty());
  if (over() || nothing_left) return done(NothingLeftFor(request));
  // The call may be a repeat of a Join.
  for (WaitingJoin& join : members_.waiting()) {
    if (join.request.instance() != request.instance()) continue;
    join.done(absl::CancelledError("the same process called again"));
    join.done = std::move(done);
    join.call = call;
    return;
  }
  for (auto& [rank, member] : members_.workers()) {
    if (member.instance != request.instance()) continue;
    if (member.admitted()) {
      return done(MakeJoinReply(rank, member.incarnation, member.start_clock));
    }
    if (member.join.has_value()) member.join->done(absl::CancelledError("the same process called again"));
    // These are the fields of the Join that was checked; the repeat's fields were not.
    v1::JoinRequest same;
    same.set_role(v1::WORKER);
    same.set_task(member.task);
    same.set_rank(rank);
    same.set_instance(member.instance);
    same.set_evaluates(member.evaluates);
    member.join = WaitingJoin{std::move(same), std::move(done), call, now()};
    return;
  }
  for (const auto& [id, reader] : members_.readers()) {
    if (reader.instance == request.instance()) return done(MakeJoinReply(id, reader.incarnation, 0));
  }
  if (members_.Refuses(request.instance())) {
    return done(absl::AbortedError("the membership that this Join began has ended"));
  }
  if (absl::Status status = declared_.Join(request); !status.ok()) return done(status);
  const uint32_t rank = request.rank();
  // These fields are checked and noted.
  request.clear_model();
  request.clear_job_config();
  request.clear_ps_addresses();
  request.clear_fingerprints();
  members_.waiting().push_back({std::move(request), std::move(done), call, now()});
  if (worker) ReplaceIfGone(rank);
  MaybeInstall();
  MaybeAdmit();
}

v1::JoinReply Coordinator::MakeJoinReply(uint32_t worker, uint64_t incarnation, uint64_t start_clock) const {
  v1::JoinReply reply;
  reply.set_worker(worker);
  reply.set_incarnation(incarnation);
  *reply.mutable_membership() = MembershipNow();
  reply.set_start_clock(start_clock);
  reply.set_num_shards(shards_.size());
  for (const ShardFleet::Shard& shard : shards_) reply.add_ps_addresses(shard.address);
  *reply.mutable_moved() = shards_.Moved();
  declared_.Describe(&reply);
  reply.set_lease_seconds(options_.config.cluster().lease_seconds());
  *reply.mutable_protocol() = OwnProtocol();
  *reply.mutable_job() = job_;
  if (evaluations_.work_end().has_value()) reply.set_work_end(*evaluations_.work_end());
  return reply;
}

// ---- admitting

void Coordinator::MaybeAdmit() {
  if (over() || !shards_.AllInstalled() || ending_.drained() || upload_.precedes_members()) return;
  // A due change of the membership goes first.
  if (pending_.due || !numbers_.Need(members_.waiting().size() + 1)) return;
  if (state_ == v1::RUNNING || state_ == v1::DRAINING) {
    for (WaitingJoin& join : members_.TakeWaiting(v1::READER)) {
      const auto [id, reader] = members_.AdmitReader(join.request, numbers_.NextIncarnation());
      LogInfo(reader->task, " joined as a reader");
      join.done(MakeJoinReply(id, reader->incarnation, 0));
    }
  }
  // The membership changes once at a time.
  if (members_.Admitting()) return;
  bool changed = false;
  for (auto it = members_.waiting().begin(); it != members_.waiting().end();) {
    const uint32_t rank = it->request.rank();
    const bool no_work = state_ == v1::DRAINING && !AwaitsEvaluation();
    if (!it->worker() || members_.workers().count(rank) > 0 || no_work) {
      ++it;
      continue;
    }
    ending_.OnMember(rank);
    declared_.OnAdmitted();
    members_.Admit(std::move(*it), numbers_.NextIncarnation());
    it = members_.waiting().erase(it);
    changed = true;
  }
  if (progress_.ranges().has_value() && progress_.ranges()->Available()) {
    for (auto& [rank, member] : members_.workers()) {
      if (member.phase != Phase::kIdle || !member.next_range) continue;
      member.phase = Phase::kJoining;
      changed = true;
    }
  }
  if (changed) BroadcastMembership();
}

void Coordinator::BroadcastMembership() {
  if (over()) return;
  pending_.due = !numbers_.Need(1);
  if (pending_.due) return;
  numbers_.NextEpoch();
  pending_.idle = false;
  if (!members_.workers().empty()) progress_.Touch();
  v1::ControlMessage message;
  v1::SetMembership& set = *message.mutable_membership();
  *set.mutable_membership() = members_.ForShards(numbers_.epoch());
  upload_.Ask(members_.workers());
  if (upload_.awaited()) set.mutable_membership()->set_uploader(upload_.uploader());
  set.set_values_of(upload_.values_of());
  shards_.Broadcast(message);
}

void Coordinator::OnAllAcked() {
  uint64_t start_clock = 0;
  for (const ShardFleet::Shard& shard : shards_) start_clock = std::max(start_clock, shard.floor);
  bool joining = false, live = false;
  for (auto& [rank, member] : members_.workers()) {
    if (member.phase != Phase::kJoining) continue;
    member.phase = Phase::kActivating;
    member.start_clock = std::max(member.start_clock, start_clock);
    if (!member.first_clock.has_value()) member.first_clock = member.start_clock;
    joining = true;
  }
  if (joining) return BroadcastMembership();

  const bool waits = state_ == v1::STARTING || state_ == v1::RECOVERING;
  const bool starts = waits && !members_.workers().empty() && !upload_.awaited();
  if (starts) {
    LogInfo("training ", state_ == v1::STARTING ? "starts" : "goes on", " with ", members_.workers().size(),
            members_.workers().size() == 1 ? " worker on " : " workers on ", shards_.size(),
            shards_.size() == 1 ? " shard" : " shards",
            shards_.stands_by(shards_.servers().size() - 1)
                ? absl::StrCat(" (of ", shards_.servers().size(), " servers, since the model is small: ",
                               "server.min_shard_kib = ", options_.config.server().min_shard_kib(), ")")
                : "",
            ": step ", progress_.steps_done(), " of ", size().steps, ", ", size().examples, " examples",
            size().dropped > 0 ? absl::StrCat("; data.drop_last leaves out ", size().dropped) : "");
    state_ = v1::RUNNING;
    TrainingStarts();
  }
  for (auto& [rank, member] : members_.workers()) {
    if (member.phase != Phase::kActivating) continue;
    member.phase = Phase::kLive;
    live = true;
  }
  if (!live) {
    if (starts) members_.Changed();  // members wait for the initial values
    return MaybeAdmit();
  }
  if (!members_.Evaluators().empty()) evaluations_.SetKnown();
  for (auto& [rank, member] : members_.workers()) {
    if (!member.join.has_value()) continue;
    if (!member.disconnected) {
      // Before its first heartbeat the worker has no call here whose end would show that its process is gone.
      member.lease_end = now() + std::min(lease(), context_.grace() + kFirstHeartbeat +
                                                       kFirstHeartbeatOfMany * options_.workers);
    }
    member.live_since = now();
    LogInfo(member.task, " joined as rank ", rank, ", incarnation ", member.incarnation, ", at clock ",
            member.start_clock);
    std::exchange(member.join, std::nullopt)
        ->done(MakeJoinReply(rank, member.incarnation, member.start_clock));
  }
  members_.Changed();
  ServeRanges();
  MaybeAdmit();
}

v1::Membership Coordinator::MembershipNow() const {
  v1::Membership membership = members_.ForMembers(numbers_.epoch());
  for (const ShardFleet::Shard& shard : shards_) membership.add_shard_incarnations(shard.incarnation);
  // The uploader is named until the shards have confirmed that they have their values.
  if (state_ == v1::STARTING) membership.set_uploader(upload_.uploader());
  return membership;
}

// ---- leases

void Coordinator::HandleHeartbeat(const v1::HeartbeatRequest& request, Done<v1::HeartbeatReply> done) {
  const v1::Caller& caller = request.caller();
  if (absl::Status same = members_.CheckJob(caller.job()); !same.ok()) {
    v1::HeartbeatReply reply;
    reply.set_fenced(true);
    reply.set_failure(std::string(same.message()));
    return done(std::move(reply));
  }
  if (absl::Status who = members_.CheckCaller(caller); absl::IsPermissionDenied(who)) return done(who);
  const bool at_once = members_.Renew(request);
  if (members_.FindWorker(caller) != nullptr) HandleWorkerReport(caller, request.report());
  members_.Park(request, at_once, std::move(done));
}

void Coordinator::HandleLeave(const v1::LeaveRequest& request, Done<v1::LeaveReply> done) {
  const v1::Caller& caller = request.caller();
  if (absl::Status same = members_.CheckJob(caller.job()); !same.ok()) return done(same);
  if (absl::Status who = members_.CheckCaller(caller); absl::IsPermissionDenied(who)) return done(who);
  if (state_ == v1::FAILED) {
    done(v1::LeaveReply());
    return ending_.OnLeft(caller.incarnation());
  }
  if (Worker* const member = members_.FindWorker(caller); member != nullptr) {
    HandleWorkerReport(caller, request.report());
    if (state_ == v1::FAILED) {
      request.done() ? done(ending_.failure()) : done(v1::LeaveReply());
      return ending_.OnLeft(caller.incarnation());
    }
    const std::string task = member->task;
    member->heard = true;
    // The process was asked to end, and a new one may come in its place.
    const bool preempted = !request.done() && request.failure_kind() == v1::FAILURE_DRAINED;
    if (request.done()) {
      ending_.OnTold(caller.worker(), member->instance);
    } else if (preempted) {
      ending_.OnLost(caller.worker(), task, /*disconnected=*/true, members_.Waiting(caller.worker()));
    } else {
      ending_.OnGaveUp(caller.worker());
    }
    if (request.done() && AwaitsEvaluation()) {
      evaluations_.ExpectNoFinal();
      TellNothingLeft();
    }
    if (!request.done() && request.failure_kind() == v1::FAILURE_DIVERGED) {
      HandleDivergence(caller.worker(), JobFailure(v1::FAILURE_DIVERGED, request.reason()));
      return done(v1::LeaveReply());
    }
    RemoveMember(caller.worker(),
                 request.done()
                     ? ""
                     : absl::StrCat(preempted ? "it was asked to end: " : "it gave up: ", request.reason()));
    // A lost worker may be started again. But if all workers have given up, they would give up again.
    if (!request.done() && !preempted && (state_ == v1::RUNNING || state_ == v1::STARTING) &&
        ending_.gave_up().size() == options_.workers) {
      EndJob(LostPeer(absl::StrCat("every worker gave up",
                                   state_ == v1::RUNNING ? " after " + progress_.Text() : "", ", ", task,
                                   " as the last one: ", request.reason())));
    }
  } else if (const MemberTable::Reader* const reader = members_.FindReader(caller); reader != nullptr) {
    members_.Refuse(reader->instance);
    RemoveReader(caller.worker());
  } else if (request.done() && (checkpoints_.enabled() || AwaitsEvaluation()) && !over() &&
             !members_.Left(caller.incarnation())) {
    // The worker takes work for done that was undone, or is the last one that could evaluate the weights.
    const std::string why = members_.WhyOut(caller.incarnation());
    return done(
        absl::AbortedError(absl::StrCat("this worker is out of the job", why.empty() ? "" : ": ", why)));
  }
  // No worker leaves before the work is saved, because the work might have to be done again.
  if (request.done() && state_ == v1::DRAINING && !ending_.saved()) {
    ending_.Wait(std::move(done));
  } else {
    done(v1::LeaveReply());
  }
}

void Coordinator::RemoveMember(uint32_t rank, const std::string& why) {
  Worker member = members_.Remove(rank, /*left=*/why.empty());
  if (why.empty()) {
    LogInfo(member.task, " left");
  } else {
    LogWarning(member.task, " (rank ", rank, ", incarnation ", member.incarnation, ") is taken out: ", why);
  }
  if (member.join.has_value()) member.join->done(absl::AbortedError("taken out before it was admitted"));
  TakeOut(rank, member);
  if (over()) return ending_.OnLeft(member.incarnation);
  if (why.empty() && state_ == v1::DRAINING && ending_.saved()) {
    // No remaining work depends on the membership, and all workers leave at once. If the others were told of
    // each worker that leaves, the work would grow with the cube of the workers.
    pending_.left = true;
  } else {
    TellMembership();
  }
  ServeRanges();
  MaybeEvaluate();
  MaybeCommit();  // the step may have waited for this member to read
  MaybeAdmit();
  MaybeFinish();
}

void Coordinator::TakeOut(uint32_t rank, Worker& member, const std::string& why) {
  if (member.heard) members_.Refuse(member.instance);
  losses_.OnGone(member.incarnation);
  members_.AnswerFenced(member, why);
  if (member.next_range) {
    v1::NextRangeReply reply;
    reply.set_fenced(true);
    member.next_range(std::move(reply));
  }
  if (progress_.ranges().has_value()) progress_.ranges()->Release(rank);
  if (!over()) evaluations_.OnGone(member.incarnation);
  pins_.DropCaller(rank, now());
}

void Coordinator::TellMembership() {
  pending_.left = false;
  BroadcastMembership();
  members_.Changed();
}

void Coordinator::ReplaceIfGone(uint32_t rank) {
  const auto member = members_.workers().find(rank);
  if (member == members_.workers().end() || !member->second.disconnected) return;
  if (!members_.Waits(rank)) return;
  ending_.OnLost(rank, member->second.task, /*disconnected=*/true, members_.Waiting(rank));
  RemoveMember(rank, "its connection broke, and another process called in its place");
}

void Coordinator::HandleWorkerReport(const v1::Caller& caller, const v1::WorkerReport& report) {
  meter_.OnReport(caller.incarnation(), report);
  if (over()) return;
  const std::optional<std::string> diverges = losses_.OnReport(caller.incarnation(), report);
  // All workers train the same weights, so no other worker can do better.
  if (diverges.has_value()) EndJob(GrownLoss(absl::StrCat("worker ", caller.worker(), ": ", *diverges)));
}

void Coordinator::HandleDivergence(uint32_t rank, const absl::Status& why) {
  // With "reject" no worker leaves because of a gradient. But a worker of an earlier version leaves because
  // of its loss, and so would the others.
  if (options_.config.consistency().on_nonfinite() != v1::ConsistencyConfig::ON_NONFINITE_SKIP_WORKER)
    EndJob(why);
  RemoveMember(rank, std::string(why.message()));
  if (state_ == v1::RUNNING && members_.workers().empty() && !members_.AnyWorkerWaits()) {
    EndJob(Reworded(why, absl::StrCat(why.message(), "; that was the last worker")));
  }
}

void Coordinator::FenceAll(const std::string& why) {
  members_.Fence(numbers_.incarnation(), why);
  for (auto& [rank, member] : std::exchange(members_.workers(), {})) {
    ending_.OnLost(rank, member.task, member.disconnected, members_.Waiting(rank));
    if (member.join.has_value()) members_.waiting().push_back(std::move(*member.join));
    TakeOut(rank, member, why);
  }
  BroadcastMembership();
  members_.Changed();
}

void Coordinator::RemoveReader(uint32_t id) {
  const auto it = members_.readers().find(id);
  LogInfo(it->second.task, " (reader) left");
  members_.AnswerFenced(it->second);
  evaluations_.OnGone(it->second.incarnation);
  members_.readers().erase(it);
  pins_.DropCaller(id, now());
  MaybeEvaluate();
  MaybeCommit();  // the step may have waited for this member to read
  MaybeFinish();
}

// ---- ranges

void Coordinator::HandleNextRange(const v1::NextRangeRequest& request, Done<v1::NextRangeReply> done) {
  if (absl::Status same = members_.CheckJob(request.caller().job()); !same.ok()) return done(same);
  if (over()) return done(ending_.ForCall());
  if (mode_.works_on_parts) {
    return done(absl::FailedPreconditionError(
        "NextRange is for bounded and async; in sync the parts follow from the membership"));
  }
  if (absl::Status who = members_.CheckCaller(request.caller()); absl::IsPermissionDenied(who))
    return done(who);
  Worker* const member = members_.FindWorker(request.caller());
  // Without ranges this incarnation of the coordinator has not given any worker work, so the caller is a
  // member of an earlier incarnation.
  if (!progress_.ranges().has_value() || member == nullptr) {
    v1::NextRangeReply reply;
    reply.set_fenced(true);
    return done(std::move(reply));
  }
  if (request.completed_ranges_size() > kMaxCompleted) {
    return done(absl::InvalidArgumentError(absl::StrCat("completed_ranges: ", request.completed_ranges_size(),
                                                        " ranges; at most ", kMaxCompleted,
                                                        " are allowed: a worker has one at a time")));
  }
  // This call renews no lease: it may have been on its way when the caller's connections broke.
  member->last_heard = now();
  for (uint64_t id : request.completed_ranges()) progress_.ranges()->Complete(id, request.caller().worker());
  if (member->next_range) std::exchange(member->next_range, nullptr)(v1::NextRangeReply());
  member->next_range = std::move(done);
  member->next_range_until = members_.ParkUntil();
  // This call comes often, so it asks for an evaluation only at an epoch's end, or if the job waits.
  if (evaluations_.waits() || (!progress_.ranges()->done() && evaluations_.Ends(progress_.done())))
    MaybeEvaluate();
  if (progress_.ranges()->done() && !evaluations_.waits()) StartDraining();
  // Only this worker is served, because its call frees no range for others.
  if (ServeRange(request.caller().worker(), *member)) TellIdle();
  if (member->phase == Phase::kIdle) MaybeAdmit();  // it may have work again
}

void Coordinator::ServeRanges() {
  if (!progress_.ranges().has_value()) return;
  bool idle = false;
  for (auto& [rank, member] : members_.workers()) idle |= ServeRange(rank, member);
  if (idle) TellIdle();
}

void Coordinator::TellIdle() {
  pending_.idle = true;
  if (shards_.AllAcknowledged(numbers_.epoch()) && !pending_.due) BroadcastMembership();
}

bool Coordinator::ServeRange(uint32_t rank, Worker& member) {
  if (!member.next_range) return false;
  v1::NextRangeReply reply;
  if (progress_.ranges()->done() && state_ == v1::DRAINING) {
    reply.set_done(true);
  } else if (member.phase != Phase::kLive) {
    return false;
  } else if (std::optional<v1::Range> range = progress_.ranges()->Take(rank)) {
    *reply.mutable_range() = *range;
    reply.set_clock(member.start_clock);
  } else {
    // No worker may wait for the clock of a worker that has nothing to do.
    member.phase = Phase::kIdle;
    return true;
  }
  std::exchange(member.next_range, nullptr)(std::move(reply));
  return false;
}

}  // namespace weir

#include "ps_server/coordinator/admission.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// After the answer to its Join, a worker's first heartbeat must come within the grace plus kFirstHeartbeat,
// plus kFirstHeartbeatOfMany for each worker of the job, because all may be answered together.
constexpr absl::Duration kFirstHeartbeat = absl::Milliseconds(1500);
constexpr absl::Duration kFirstHeartbeatOfMany = absl::Milliseconds(20);

using Phase = MemberTable::Phase;
using Worker = MemberTable::Worker;
using WaitingJoin = MemberTable::WaitingJoin;

}  // namespace

// ---- joining

void Admission::Join(v1::JoinRequest request, Done<v1::JoinReply> done, uint64_t call) {
  if (absl::Status same = job_.members.CheckJob(request.job().id()); !same.ok()) return done(same);
  if (job_.state == v1::FAILED) return done(job_.ending.ForJoin());
  const bool worker = request.role() == v1::WORKER;
  // The job waits for its readers to leave. If it waits for no other process, no further reader may come.
  const bool nothing_left = job_.state == v1::DRAINING && job_.ending.saved() && !job_.AwaitsEvaluation() &&
                            (worker || job_.members.workers().empty());
  if (job_.over() || nothing_left) return done(NothingLeftFor(request));
  const auto reply = [this](uint32_t id, uint64_t incarnation, uint64_t start_clock) {
    return job_.JoinReply(id, incarnation, start_clock);
  };
  if (job_.members.Repeat(request, call, done, reply)) return;
  if (job_.members.Refuses(request.instance())) {
    return done(absl::AbortedError("the membership that this Join began has ended"));
  }
  if (absl::Status status = job_.declared.Join(request); !status.ok()) return done(status);
  const uint32_t rank = request.rank();
  // These fields are checked and noted.
  request.clear_model();
  request.clear_job_config();
  request.clear_ps_addresses();
  request.clear_fingerprints();
  job_.members.Wait({std::move(request), std::move(done), call, job_.now()});
  if (worker) ReplaceIfGone(rank);
  job_.events.may_install();
  MaybeAdmit();
}

void Admission::OnJoinCancelled(uint64_t instance, uint64_t call) {
  if (const std::optional<v1::JoinRequest> join = job_.members.Cancel(instance, call); join.has_value()) {
    if (join->role() == v1::WORKER) job_.ending.OnJoinBroken(join->rank(), join->task());
    return job_.declared.Forget();
  }
  // The process was admitted meanwhile, and may never learn that.
  for (auto& [rank, member] : job_.members.workers()) {
    if (member.instance != instance || (member.join.has_value() && member.join->call != call)) continue;
    job_.members.Disconnect(member);
    return ReplaceIfGone(rank);
  }
}

// ---- admitting

void Admission::MaybeAdmit() {
  if (job_.over() || !job_.shards.AllInstalled() || job_.ending.drained() || job_.upload.precedes_members())
    return;
  // A due change of the membership goes first.
  if (due_ || !job_.numbers.Need(job_.members.waiting().size() + 1)) return;
  if (job_.started()) {
    for (WaitingJoin& join : job_.members.TakeWaiting(v1::READER)) {
      const auto [id, reader] = job_.members.AdmitReader(join.request, job_.numbers.NextIncarnation());
      LogInfo(reader->task, " joined as a reader");
      join.done(job_.JoinReply(id, reader->incarnation, 0));
    }
  }
  // The membership changes once at a time.
  if (job_.members.Admitting()) return;
  bool changed = false;
  if (job_.state != v1::DRAINING || job_.AwaitsEvaluation()) {
    for (WaitingJoin& join : job_.members.TakeForFreeRanks()) {
      job_.ending.OnMember(join.request.rank());
      job_.declared.OnAdmitted();
      job_.members.Admit(std::move(join), job_.numbers.NextIncarnation());
      changed = true;
    }
  }
  if (job_.progress.ranges().has_value() && job_.progress.ranges()->Available()) {
    for (auto& [rank, member] : job_.members.workers()) {
      if (member.phase != Phase::kIdle || !member.next_range) continue;
      member.phase = Phase::kJoining;
      changed = true;
    }
  }
  if (changed) Broadcast();
}

void Admission::Broadcast() {
  if (job_.over()) return;
  due_ = !job_.numbers.Need(1);
  if (due_) return;
  job_.numbers.NextEpoch();
  idle_ = false;
  if (!job_.members.workers().empty()) job_.progress.Touch();
  v1::ControlMessage message;
  v1::SetMembership& set = *message.mutable_membership();
  *set.mutable_membership() = job_.members.ForShards(job_.numbers.epoch());
  job_.upload.Ask(set.membership());
  if (job_.upload.awaited()) set.mutable_membership()->set_uploader(job_.upload.uploader());
  set.set_values_of(job_.upload.values_of());
  job_.shards.Broadcast(message);
}

void Admission::OnReserved(bool needed) {
  if (std::exchange(due_, false)) Broadcast();
  if (needed) MaybeAdmit();
}

void Admission::TellIdle() {
  idle_ = true;
  if (job_.shards.AllAcknowledged(job_.numbers.epoch()) && !due_) Broadcast();
}

void Admission::OnConfirmed() {
  if (job_.shards.AllAcknowledged(job_.numbers.epoch()) && !due_) OnAllConfirmed();
  if (idle_) TellIdle();
}

void Admission::OnAllConfirmed() {
  uint64_t start_clock = 0;
  for (const ShardFleet::Shard& shard : job_.shards) start_clock = std::max(start_clock, shard.floor);
  bool joining = false, live = false;
  for (auto& [rank, member] : job_.members.workers()) {
    if (member.phase != Phase::kJoining) continue;
    member.phase = Phase::kActivating;
    member.start_clock = std::max(member.start_clock, start_clock);
    if (!member.first_clock.has_value()) member.first_clock = member.start_clock;
    joining = true;
  }
  if (joining) return Broadcast();

  const bool starts = job_.waits() && !job_.members.workers().empty() && !job_.upload.awaited();
  if (starts) {
    LogInfo("training ", job_.state == v1::STARTING ? "starts" : "goes on", " with ",
            job_.members.workers().size(),
            job_.members.workers().size() == 1 ? " worker on " : " workers on ", job_.shards.size(),
            job_.shards.size() == 1 ? " shard" : " shards",
            job_.shards.stands_by(job_.shards.servers().size() - 1)
                ? absl::StrCat(" (of ", job_.shards.servers().size(), " servers, since the model is small: ",
                               "server.min_shard_kib = ", job_.config().server().min_shard_kib(), ")")
                : "",
            ": step ", job_.progress.steps_done(), " of ", job_.size().steps, ", ", job_.size().examples,
            " examples",
            job_.size().dropped > 0 ? absl::StrCat("; data.drop_last leaves out ", job_.size().dropped) : "");
    job_.state = v1::RUNNING;
    job_.OnTrainingStarts();
  }
  for (auto& [rank, member] : job_.members.workers()) {
    if (member.phase != Phase::kActivating) continue;
    member.phase = Phase::kLive;
    live = true;
  }
  if (!live) {
    if (starts) job_.members.Changed();  // members wait for the initial values
    return MaybeAdmit();
  }
  if (!job_.members.Evaluators().empty()) job_.evaluations.SetKnown();
  for (auto& [rank, member] : job_.members.workers()) {
    if (!member.join.has_value()) continue;
    if (!member.disconnected) {
      // Before its first heartbeat the worker has no call here whose end would show that its process is gone.
      member.lease_end =
          job_.now() + std::min(job_.lease(), job_.context.grace() + kFirstHeartbeat +
                                                  kFirstHeartbeatOfMany * job_.options.workers);
    }
    member.live_since = job_.now();
    LogInfo(member.task, " joined as rank ", rank, ", incarnation ", member.incarnation, ", at clock ",
            member.start_clock);
    std::exchange(member.join, std::nullopt)
        ->done(job_.JoinReply(rank, member.incarnation, member.start_clock));
  }
  job_.members.Changed();
  job_.events.may_serve();
  MaybeAdmit();
}

// ---- leases

void Admission::OnDisconnect(const v1::Caller& caller) {
  if (!job_.members.CheckCaller(caller).ok()) return;
  job_.members.Disconnect(*job_.members.FindProcess(caller));
  ReplaceIfGone(caller.worker());
}

void Admission::Tick(bool stood_still) {
  job_.members.Tick(job_.shards.AllInstalled(), stood_still);
  for (const uint32_t rank : job_.members.ExpiredWorkers()) {
    const Worker& member = job_.members.workers().at(rank);
    job_.ending.OnLost(rank, member.task, member.disconnected || !member.heard, job_.members.Waiting(rank));
    Remove(rank, absl::StrCat("nothing was heard of it for ",
                              absl::FormatDuration(job_.now() - member.last_heard)));
  }
  for (const uint32_t id : job_.members.ExpiredReaders()) RemoveReader(id);
  job_.members.RefuseSecond();
  ShareParts();
}

void Admission::ShareParts() {
  if (!job_.mode.works_on_parts || job_.state != v1::RUNNING || job_.members.Admitting() || due_) return;
  std::vector<PartShares::Worker> workers;
  for (const auto& [rank, member] : job_.members.workers()) {
    // No speed is known of incarnation 0.
    workers.push_back({member.knows_shares ? member.incarnation : 0, member.share});
  }
  const auto shares = shares_.Change(job_.now(), job_.size().parts, workers);
  if (!shares.has_value()) return;
  std::string text;
  auto share = shares->begin();
  for (auto& [rank, member] : job_.members.workers()) {
    member.share = *share++;
    if (member.share > 0) absl::StrAppend(&text, text.empty() ? "" : ", ", member.task, " ", member.share);
  }
  LogInfo("the workers compute ",
          text.empty() ? "equally many parts of a step" : absl::StrCat("so many parts of a step: ", text));
  TellMembership();
}

void Admission::Heartbeat(const v1::HeartbeatRequest& request, Done<v1::HeartbeatReply> done) {
  const v1::Caller& caller = request.caller();
  if (absl::Status same = job_.members.CheckJob(caller.job()); !same.ok()) {
    v1::HeartbeatReply reply;
    reply.set_fenced(true);
    reply.set_failure(std::string(same.message()));
    return done(std::move(reply));
  }
  if (absl::Status who = job_.members.CheckCaller(caller); absl::IsPermissionDenied(who)) return done(who);
  const bool at_once = job_.members.Renew(request);
  if (job_.members.FindWorker(caller) != nullptr) HandleWorkerReport(caller, request.report());
  // The job's last step may have waited until this member knows of it.
  if (job_.progress.end().has_value()) job_.events.may_continue();
  job_.members.Park(request, at_once, std::move(done));
}

void Admission::Leave(const v1::LeaveRequest& request, Done<v1::LeaveReply> done) {
  const v1::Caller& caller = request.caller();
  if (absl::Status same = job_.members.CheckJob(caller.job()); !same.ok()) return done(same);
  if (absl::Status who = job_.members.CheckCaller(caller); absl::IsPermissionDenied(who)) return done(who);
  if (job_.state == v1::FAILED) {
    done(v1::LeaveReply());
    return job_.ending.OnLeft(caller.incarnation());
  }
  if (Worker* const member = job_.members.FindWorker(caller); member != nullptr) {
    HandleWorkerReport(caller, request.report());
    if (job_.state == v1::FAILED) {
      request.done() ? done(job_.ending.failure()) : done(v1::LeaveReply());
      return job_.ending.OnLeft(caller.incarnation());
    }
    const std::string task = member->task;
    member->heard = true;
    job_.members.OnReport(request.report(), member);
    // The process was asked to end, and a new one may come in its place.
    const bool preempted = !request.done() && request.failure_kind() == v1::FAILURE_DRAINED;
    if (request.done()) {
      job_.ending.OnTold(caller.worker(), member->instance);
    } else if (preempted) {
      job_.ending.OnLost(caller.worker(), task, /*disconnected=*/true, job_.members.Waiting(caller.worker()));
    } else {
      job_.ending.OnGaveUp(caller.worker());
    }
    if (request.done() && job_.AwaitsEvaluation()) {
      job_.evaluations.ExpectNoFinal();
      TellNothingLeft();
    }
    if (!request.done() && request.failure_kind() == v1::FAILURE_DIVERGED) {
      HandleDivergence(caller.worker(), JobFailure(v1::FAILURE_DIVERGED, request.reason()));
      return done(v1::LeaveReply());
    }
    Remove(caller.worker(),
           request.done()
               ? ""
               : absl::StrCat(preempted ? "it was asked to end: " : "it gave up: ", request.reason()));
    // A lost worker may be started again. But if all workers have given up, they would give up again.
    if (!request.done() && !preempted && (job_.state == v1::RUNNING || job_.state == v1::STARTING) &&
        job_.ending.gave_up().size() == job_.options.workers) {
      job_.context.fail(LostPeer(absl::StrCat(
          "every worker gave up", job_.state == v1::RUNNING ? " after " + job_.progress.Text() : "", ", ",
          task, " as the last one: ", request.reason())));
    }
  } else if (const MemberTable::Reader* const reader = job_.members.FindReader(caller); reader != nullptr) {
    job_.members.Refuse(reader->instance);
    RemoveReader(caller.worker());
  } else if (request.done() && (job_.checkpoints.enabled() || job_.AwaitsEvaluation()) && !job_.over() &&
             !job_.members.Left(caller.incarnation())) {
    // The worker takes work for done that was undone, or is the last one that could evaluate the weights.
    const std::string why = job_.members.WhyOut(caller.incarnation());
    return done(
        absl::AbortedError(absl::StrCat("this worker is out of the job", why.empty() ? "" : ": ", why)));
  }
  // No worker leaves before the work is saved, because the work might have to be done again.
  if (request.done() && job_.state == v1::DRAINING && !job_.ending.saved()) {
    job_.ending.Wait(std::move(done));
  } else {
    done(v1::LeaveReply());
  }
}

void Admission::Remove(uint32_t rank, const std::string& why) {
  Worker member = job_.members.Remove(rank, /*left=*/why.empty());
  if (why.empty()) {
    LogInfo(member.task, " left");
  } else {
    LogWarning(member.task, " (rank ", rank, ", incarnation ", member.incarnation, ") is taken out: ", why);
  }
  if (member.join.has_value()) member.join->done(absl::AbortedError("taken out before it was admitted"));
  TakeOut(rank, member);
  if (job_.over()) return job_.ending.OnLeft(member.incarnation);
  if (why.empty() && job_.state == v1::DRAINING && job_.ending.saved()) {
    // No remaining work depends on the membership, and all workers leave at once. If the others were told of
    // each worker that leaves, the work would grow with the cube of the workers.
    left_ = true;
  } else {
    TellMembership();
  }
  job_.events.may_serve();
  job_.events.may_continue();  // the step may have waited for this member to read
  MaybeAdmit();
  job_.events.may_finish();
}

void Admission::TakeOut(uint32_t rank, Worker& member, const std::string& why) {
  if (member.heard) job_.members.Refuse(member.instance);
  shares_.OnGone(member.incarnation);
  job_.losses.OnGone(member.incarnation);
  job_.logged.OnGone(member.incarnation);
  job_.members.AnswerFenced(member, why);
  if (member.next_range) {
    v1::NextRangeReply reply;
    reply.set_fenced(true);
    member.next_range(std::move(reply));
  }
  if (job_.progress.ranges().has_value()) job_.progress.ranges()->Release(rank);
  if (!job_.over()) job_.evaluations.OnGone(member.incarnation);
  job_.pins.DropCaller(rank);
}

void Admission::TellMembership() {
  left_ = false;
  Broadcast();
  job_.members.Changed();
}

void Admission::TellLeft() {
  if (left_) TellMembership();
}

void Admission::ReplaceIfGone(uint32_t rank) {
  const auto member = job_.members.workers().find(rank);
  if (member == job_.members.workers().end() || !member->second.disconnected) return;
  const std::set<uint64_t> others = job_.members.Waiting(rank);
  if (others.empty()) return;
  job_.ending.OnLost(rank, member->second.task, /*disconnected=*/true, others);
  Remove(rank, "its connection broke, and another process called in its place");
}

void Admission::HandleWorkerReport(const v1::Caller& caller, const v1::WorkerReport& report) {
  job_.meter.OnReport(caller.incarnation(), report);
  if (report.has_compute_seconds())
    shares_.OnReport(caller.incarnation(), report.compute_seconds(), report.batches());
  job_.logged.OnReport(job_.now(), caller.incarnation(), report, job_.progress.examples(),
                       job_.size().train_examples);
  if (job_.over()) return;
  const std::optional<std::string> diverges = job_.losses.OnReport(caller.incarnation(), report);
  // All workers train the same weights, so no other worker can do better.
  if (diverges.has_value())
    job_.context.fail(GrownLoss(absl::StrCat("worker ", caller.worker(), ": ", *diverges)));
}

void Admission::HandleDivergence(uint32_t rank, const absl::Status& why) {
  // With "reject" no worker leaves because of a gradient. But a worker of an earlier version leaves because
  // of its loss, and so would the others.
  if (job_.config().consistency().on_nonfinite() != v1::ConsistencyConfig::ON_NONFINITE_SKIP_WORKER)
    job_.context.fail(why);
  Remove(rank, std::string(why.message()));
  if (job_.state == v1::RUNNING && job_.members.workers().empty() && !job_.members.AnyWorkerWaits()) {
    job_.context.fail(Reworded(why, absl::StrCat(why.message(), "; that was the last worker")));
  }
}

void Admission::FenceAll(const std::string& why) {
  job_.members.Fence(job_.numbers.incarnation(), why);
  for (auto& [rank, member] : std::exchange(job_.members.workers(), {})) {
    job_.ending.OnLost(rank, member.task, member.disconnected, job_.members.Waiting(rank));
    if (member.join.has_value()) job_.members.Wait(std::move(*member.join));
    TakeOut(rank, member, why);
  }
  Broadcast();
  job_.members.Changed();
}

void Admission::RemoveReader(uint32_t id) {
  MemberTable::Reader reader = job_.members.RemoveReader(id);
  LogInfo(reader.task, " (reader) left");
  job_.members.AnswerFenced(reader);
  job_.evaluations.OnGone(reader.incarnation);
  job_.pins.DropCaller(id);
  job_.events.may_continue();  // the step may have waited for this member to read
  job_.events.may_finish();
}

void Admission::FailIfDeserted() {
  const absl::Time time = job_.now();
  // Workers cannot join while shards are away.
  const bool ready = job_.state == v1::RUNNING || (job_.AwaitsEvaluation() && job_.ending.saved()) ||
                     (job_.state == v1::RECOVERING && job_.shards.AllAttached());
  if (!ready || !job_.members.workers().empty()) return deserted_.reset();
  if (!deserted_.has_value()) deserted_ = time;
  const double limit = job_.config().cluster().start_seconds();
  if (time - *deserted_ > absl::Seconds(limit)) {
    const std::string what = absl::StrCat("no worker was live for cluster.start_seconds = ", limit);
    if (job_.state != v1::DRAINING) return job_.ending.FailUnlessReplaced(LostPeer(what));
    return job_.ending.FailUnlessReplaced(LostPeer(absl::StrCat(
        "all ", job_.size().examples, " examples are done, but no worker has evaluated the weights: ", what,
        job_.checkpoints.enabled() ? "; they are in " + job_.checkpoints.newest_folder() : "")));
  }
  if (job_.complaints.Due(time)) {
    LogWarning("no worker is live; waiting for one to join");
  }
}

// ---- the end

absl::Status Admission::NothingLeftFor(const v1::JoinRequest& request) {
  // The request was not checked before.
  if (job_.ending.ends_again())
    job_.shards.OnNamed(std::min(request.ps_addresses_size(), JobDeclaration::kMaxServers));
  // If the instance is refused, this Join is a late repeat, whose process does not hear the answer.
  if (request.role() == v1::WORKER && request.rank() < job_.options.workers &&
      !job_.members.Refuses(request.instance())) {
    job_.ending.OnTold(request.rank(), request.instance());
  }
  return job_.ending.ForJoin();
}

void Admission::TellNothingLeft() {
  if (job_.state != v1::DRAINING || !job_.ending.saved() || job_.AwaitsEvaluation()) return;
  for (WaitingJoin& join : job_.members.TakeWaiting(v1::WORKER)) join.done(NothingLeftFor(join.request));
}

}  // namespace weir

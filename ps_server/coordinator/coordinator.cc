#include "ps_server/coordinator/coordinator.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/bounded.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/part_assignment.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/job_status.h"

namespace weir {
namespace {

// The length of a SHA-256 in hex digits.
constexpr size_t kSha256 = 64;

// One NextRange may report at most this many ranges.
constexpr int kMaxCompleted = 1024;

}  // namespace

Coordinator::Coordinator(Options options, std::unique_ptr<JobStore> store)
    : job_(std::move(options),
           {[this](std::function<void()> function) { queue_.Post(std::move(function)); },
            [this](const absl::Status& failure) { completion_.End(failure); },
            [this](const std::string& why) { completion_.StepAside(why); },
            [this](bool needed) { admission_.OnReserved(needed); },
            [this](uint32_t shard, const v1::ShardReport& report) { HandleShardReport(shard, report); },
            [this](uint32_t shard, const absl::Status& status) { recovery_.OnLinkEnded(shard, status); },
            /*saved=*/
            [this] {
              admission_.TellNothingLeft();
              completion_.MaybeFinish();
            },
            /*values_there=*/
            [this](bool uploaded) {
              if (!uploaded) return admission_.MaybeAdmit();
              LogInfo("all shards have the initial values");
              // Members are told once all shards know.
              admission_.Broadcast();
            },
            [this] { recovery_.MaybeInstall(); }, [this] { ServeRanges(); },
            /*may_continue=*/
            [this] {
              MaybeEvaluate();
              MaybeCommit();
            },
            [this] { completion_.MaybeFinish(); },
            /*work_done=*/
            [this](const std::string& stopped) {
              stopped.empty() ? completion_.OnWorkDone() : completion_.StopEarly(stopped);
            }},
           std::move(store)),
      admission_(job_),
      recovery_(job_, admission_),
      completion_(job_, admission_),
      created_(job_.now()),
      last_tick_(created_) {
  job_.complaints.Begin(created_);
  queue_.Post([this] {
    if (job_.checkpoints.any()) {
      const absl::Status status = CanGoOn(job_.config(), *job_.checkpoints.newest());
      if (!status.ok()) return completion_.End(Misfit(status.message()));
    }
    if (job_.declared.DoneBefore()) return completion_.EndAgain();
    if (job_.shards.addresses().size() > 1) job_.shards.Open();
  });
}

Coordinator::~Coordinator() {
  std::vector<std::unique_ptr<ShardLink>> links;
  std::unique_ptr<JobStore> store;
  queue_.Run([&] {
    completion_.End(LostPeer("the coordinator stops"), /*asked=*/true);
    links = job_.shards.Close();
    store = job_.checkpoints.Close(absl::UnavailableError("the coordinator stops"));
  });
  // Destroyed outside of the queue: the destructors wait for events, which may post to the queue.
  links.clear();
  store.reset();
}

// ---- calls: each posts its turn

void Coordinator::NextRange(v1::NextRangeRequest request, Done<v1::NextRangeReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
    if (absl::Status same = job_.members.CheckJob(request.caller().job()); !same.ok()) return done(same);
    if (job_.over()) return done(job_.ending.ForCall());
    if (job_.mode.works_on_parts) {
      return done(absl::FailedPreconditionError(
          "NextRange is for bounded and async; in sync the parts follow from the membership"));
    }
    if (absl::Status who = job_.members.CheckCaller(request.caller()); absl::IsPermissionDenied(who))
      return done(who);
    MemberTable::Worker* const member = job_.members.FindWorker(request.caller());
    // Without ranges this incarnation of the coordinator has not given any worker work, so the caller is a
    // member of an earlier incarnation.
    if (!job_.progress.ranges().has_value() || member == nullptr) {
      v1::NextRangeReply reply;
      reply.set_fenced(true);
      return done(std::move(reply));
    }
    if (request.completed_ranges_size() > kMaxCompleted) {
      return done(absl::InvalidArgumentError(
          absl::StrCat("completed_ranges: ", request.completed_ranges_size(), " ranges; at most ",
                       kMaxCompleted, " are allowed: a worker has one at a time")));
    }
    // This call renews no lease: it may have been on its way when the caller's connections broke.
    member->last_heard = job_.now();
    for (uint64_t id : request.completed_ranges())
      job_.progress.ranges()->Complete(id, request.caller().worker());
    if (member->next_range) std::exchange(member->next_range, nullptr)(v1::NextRangeReply());
    member->next_range = std::move(done);
    member->next_range_until = job_.members.ParkUntil();
    // This call comes often, so it asks for an evaluation only at an epoch's end, or if the job waits.
    if (job_.evaluations.waits() ||
        (!job_.progress.ranges()->done() && job_.evaluations.Ends(job_.progress.done())))
      MaybeEvaluate();
    if (job_.progress.ranges()->done() && !job_.evaluations.waits()) completion_.OnWorkDone();
    // Only this worker is served, because its call frees no range for others.
    if (ServeRange(request.caller().worker(), *member)) admission_.TellIdle();
    if (member->phase == MemberTable::Phase::kIdle) admission_.MaybeAdmit();  // it may have work again
  });
}

void Coordinator::Pin(v1::PinRequest request, Done<v1::PinReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
    if (absl::Status same = job_.members.CheckJob(request.caller().job()); !same.ok()) return done(same);
    if (!job_.started()) {
      return done(absl::UnavailableError(
          absl::StrCat("the job is ", v1::JobState_Name(job_.state), "; there is nothing to pin")));
    }
    if (absl::Status caller = job_.members.CheckCaller(request.caller()); !caller.ok()) return done(caller);
    job_.pins.Ask(request, job_.members.TaskOf(request.caller().incarnation()), std::move(done));
  });
}

void Coordinator::Unpin(v1::UnpinRequest request, Done<v1::UnpinReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)] {
    if (absl::Status caller = job_.members.CheckCaller(request.caller()); !caller.ok()) return done(caller);
    if (const std::optional<std::vector<uint64_t>> read = job_.pins.Release(request); read.has_value()) {
      job_.evaluations.OnRead(request.caller().incarnation(), *read);
      MaybeCommit();
    }
    done(v1::UnpinReply());
  });
}

void Coordinator::Report(v1::ReportRequest request, Done<v1::ReportReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)] {
    if (absl::Status caller = job_.members.CheckCaller(request.caller()); !caller.ok()) return done(caller);
    const v1::Evaluation& evaluation = request.evaluation();
    if (evaluation.weights_sha256().size() > kSha256) {
      return done(absl::InvalidArgumentError(
          absl::StrCat("evaluation.weights_sha256: must be ", kSha256, " digits in hex, or empty")));
    }
    done(v1::ReportReply());
    if (job_.over()) return;
    if (evaluation.order() == 0) {
      // The member may have read the weights for its final evaluation before the job went back to a
      // checkpoint.
      const bool of_end = evaluation.final() || !evaluation.weights_sha256().empty();
      if (of_end && job_.state != v1::DRAINING) return;
      if (!job_.evaluations.OnUnasked(evaluation, job_.size().steps)) return;
      admission_.TellNothingLeft();
      return job_.members.Changed();
    }
    job_.evaluations.OnReport(request.caller().incarnation(), evaluation,
                              job_.progress.StepOf(evaluation.version()));
    MaybeEvaluate();
    MaybeCommit();
  });
}

void Coordinator::Checkpoint(v1::CheckpointRequest, Done<v1::CheckpointReply> done) {
  queue_.Post([this, done = std::move(done)]() mutable {
    if (!job_.checkpoints.enabled()) {
      return done(absl::FailedPreconditionError("the job's config has no checkpoint.directory"));
    }
    if (job_.over()) return done(job_.ending.ForCall());
    job_.checkpoints.Request(/*of_now=*/false, std::move(done));
  });
}

void Coordinator::Announce(v1::AnnounceRequest request, Done<v1::AnnounceReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)]() mutable {
    if (job_.over()) return done(job_.ending.ForCall());
    job_.shards.Announce(std::move(request), std::move(done));
  });
}

void Coordinator::Status(Done<v1::ClusterStatus> done, bool with_loss_curve) {
  queue_.Post([this, done = std::move(done), with_loss_curve] {
    v1::ClusterStatus status = StatusOf(job_);
    if (with_loss_curve) {
      for (v1::LossPoint& point : job_.meter.LossCurve()) *status.add_loss_curve() = std::move(point);
    }
    done(std::move(status));
  });
}

void Coordinator::Tick() {
  queue_.Post([this] {
    if (job_.over()) {
      for (const uint32_t server : job_.ending.awaited_servers()) job_.shards.Reopen(server);
    }
    job_.ending.Tick();
    if (job_.over()) return;
    const absl::Time time = job_.now();
    if (job_.state == v1::STARTING) {
      const double limit = job_.config().cluster().start_seconds();
      if (time - created_ > absl::Seconds(limit)) {
        return job_.ending.FailUnlessReplaced(
            LostPeer(absl::StrCat("the job did not start within cluster.start_seconds = ", limit,
                                  "; missing: ", ShortList(WaitingFor(job_)))));
      }
    }
    if (job_.waits() && job_.complaints.Due(time)) {
      LogWarning("still waiting for ", ShortList(WaitingFor(job_)));
    }
    // If this process stood still, others may have called meanwhile.
    const bool stood_still = time - last_tick_ > job_.lease() / 2;
    last_tick_ = time;
    if (stood_still) job_.shards.HearAll();
    admission_.Tick(stood_still);
    if (job_.evaluations.OnTick(time)) {
      LogWarning("the evaluation of an epoch took longer than cluster.wait_seconds = ",
                 job_.config().cluster().wait_seconds(), ", and is left out");
      MaybeCommit();
    }
    MaybeEvaluate();
    completion_.Tick();
    job_.pins.Tick();
    recovery_.Tick();
    if (job_.over()) return;

    // Pings begin at once, because a shard also takes silence for loss, and workers may take long to come.
    job_.shards.PingIfDue();
    if (job_.checkpoints.enabled()) {
      job_.checkpoints.Tick();
      const bool saves = job_.state == v1::RUNNING || job_.upload.saving();
      // If the job waits for an evaluation at an epoch's end, a checkpoint now would lack its result.
      if (saves && !job_.ending.drained() && !job_.evaluations.awaited())
        job_.checkpoints.TakeIfDue(job_.progress.steps_done());
      job_.ending.TickSave();
      job_.upload.Tick();
      job_.numbers.Tick();
    }
    admission_.TellLeft();
    completion_.MaybeFinish();
    admission_.FailIfDeserted();
  });
}

void Coordinator::Fail(const std::string& reason) {
  queue_.Post([this, failure = LostPeer(reason)] { completion_.End(failure, /*asked=*/true); });
}

// ---- shards

void Coordinator::HandleShardReport(uint32_t index, const v1::ShardReport& report) {
  const ShardFleet::Shard& shard = job_.shards[index];
  switch (report.report_case()) {
    case v1::ShardReport::kAttached:
      return recovery_.OnAttached(index, report.attached());
    case v1::ShardReport::kInstalled:
      return recovery_.OnInstalled(index, report.installed());
    case v1::ShardReport::kMembership:
      if (!shard.installed) return;  // the report is about the shard's earlier state
      return admission_.OnConfirmed();
    case v1::ShardReport::kStaged:
      if (!shard.installed) return;
      job_.progress.steps().OnStaged(index, report.staged());
      return MaybeCommit();
    case v1::ShardReport::kPinned:
      return job_.pins.OnPinned(index, report.pinned(), job_.shards.size());
    case v1::ShardReport::kStats:
      if (index == 0) {
        job_.progress.steps().OnApplied(shard.stats.version().count());
        // Only now is the count up to date; between reports it is old.
        job_.meter.Sample(job_.now(), job_.progress.examples(), job_.state == v1::RUNNING);
      }
      // A committed step may still wait for memory on a shard, which publishes the step anyway.
      if (std::all_of(job_.shards.begin(), job_.shards.end(), [&](const ShardFleet::Shard& s) {
            return job_.shards.AnsweredFinalPing(s) &&
                   (!job_.mode.commits_steps ||
                    s.stats.version().count() >= job_.progress.steps().committed());
          })) {
        completion_.End(absl::OkStatus());
      }
      return;
    case v1::ShardReport::kCheckpoint:
      if (job_.checkpoints.enabled() && shard.installed)
        job_.checkpoints.OnWritten(index, report.checkpoint());
      return;
    case v1::ShardReport::kValues:
      if (shard.installed) job_.upload.OnStaged(index, report.values().uploader(), job_.shards.size());
      return;
    case v1::ShardReport::kFailed: {
      const std::string why = absl::StrCat(job_.shards.name(index), ": ", report.failed().error());
      if (!report.failed().replaced()) {
        const v1::FailureKind kind = report.failed().kind();
        const bool storage = kind == v1::FAILURE_UNSPECIFIED || kind == v1::FAILURE_RESOURCE;
        return completion_.End(storage ? StorageFailure(why) : JobFailure(kind, why));
      }
      // No other coordinator installs the shard of this process. So if another coordinator has taken the
      // shard's log, it has the job, too.
      return index == 0 ? completion_.StepAside(why) : completion_.End(LostPeer(why));
    }
    case v1::ShardReport::kMeasured:
      if (shard.installed) OnMeasured(index, report.measured());
      return;
    case v1::ShardReport::REPORT_NOT_SET:
      return;
  }
}

// ---- the steps of sync

bool Coordinator::MayLeaveOut(const std::string& parts, const std::string& why) {
  if (job_.config().consistency().on_nonfinite() == v1::ConsistencyConfig::ON_NONFINITE_STOP) {
    completion_.End(Divergence(why));
    return false;
  }
  LogWarning("step ", job_.progress.steps().committed(), " is committed without ", parts, ": ", why);
  return true;
}

void Coordinator::MaybeCommit() {
  if (job_.state != v1::RUNNING || job_.ending.drained()) return;
  if (job_.evaluations.Holds()) return;  // an evaluator needs this step's weights
  // After the job's last step a worker must not begin another one, which would never be committed.
  if (job_.progress.end().has_value() && !completion_.MembersKnow()) return;
  StepCommitter& steps = job_.progress.steps();
  if (!steps.norms().begun()) {
    const uint32_t parts = PartsOf(steps.committed(), job_.size().parts, job_.size().batches);
    const std::optional<StepCommitter::Commit> decided = steps.Ready(parts, job_.shards.size());
    if (!decided.has_value()) return;
    if (!decided->refused.empty() &&
        !MayLeaveOut(absl::StrCat("part(s) ", ShortList(decided->refused)), decided->reason))
      return;
    steps.norms().Begin(decided->step, job_.shards.size(), job_.declared.model()->tensors.size());
  }
  v1::ControlMessage message;
  if (const std::optional<v1::MeasureStep> round = steps.norms().NextRound(); round.has_value()) {
    *message.mutable_measure() = *round;
    return job_.shards.Broadcast(message);
  }
  const std::optional<StepNorms::Commit> commit = steps.norms().Ready(*job_.declared.model());
  if (!commit.has_value()) return;
  if (!commit->not_finite.empty() && !MayLeaveOut("its parts", commit->not_finite)) return;
  steps.Committed(commit->step);
  *message.mutable_commit() = commit->step;
  job_.shards.Broadcast(message);
  if (job_.progress.all_done() && !job_.evaluations.waits()) return completion_.OnWorkDone();
  MaybeEvaluate();
}

void Coordinator::OnMeasured(uint32_t shard, const v1::StepMeasured& measured) {
  StepNorms& norms = job_.progress.steps().norms();
  if (!norms.begun()) return;
  if (const absl::Status status = norms.OnMeasured(shard, measured); !status.ok()) {
    return completion_.End(
        JobFailure(v1::FAILURE_INTERNAL, absl::StrCat(job_.shards.name(shard), ": ", status.message())));
  }
  MaybeCommit();
}

// ---- evaluations

void Coordinator::MaybeEvaluate() {
  if (job_.state != v1::RUNNING || job_.ending.drained()) return;
  job_.evaluations.Advance(job_.progress.done());
  if (job_.evaluations.AskOneOf([this] { return job_.members.Evaluators(); }, !job_.members.workers().empty(),
                                job_.now()))
    job_.members.Changed();
  if (!job_.evaluations.waits()) return;
  if (!job_.evaluations.busy()) {
    if (job_.progress.all_done()) return completion_.OnWorkDone();
    if (const std::string why = job_.evaluations.WhyItStopsHere(); !why.empty())
      return completion_.StopEarly(why);
  }
  const bool changed = job_.evaluations.SetWorkEnd(job_.progress.done());
  job_.progress.SetWorkEnd(job_.evaluations.work_end());
  if (!changed) return;
  job_.members.Changed();
  ServeRanges();
  admission_.MaybeAdmit();  // idle workers may have work again
}

// ---- ranges

void Coordinator::ServeRanges() {
  if (!job_.progress.ranges().has_value()) return;
  bool idle = false;
  for (auto& [rank, member] : job_.members.workers()) idle |= ServeRange(rank, member);
  if (idle) admission_.TellIdle();
}

bool Coordinator::ServeRange(uint32_t rank, MemberTable::Worker& member) {
  if (!member.next_range) return false;
  v1::NextRangeReply reply;
  if (job_.progress.ranges()->done() && job_.state == v1::DRAINING) {
    reply.set_done(true);
  } else if (member.phase != MemberTable::Phase::kLive) {
    return false;
  } else if (std::optional<v1::Range> range = job_.progress.ranges()->Take(rank)) {
    *reply.mutable_range() = *range;
    reply.set_clock(member.start_clock);
  } else {
    // No worker may wait for the clock of a worker that has nothing to do.
    member.phase = MemberTable::Phase::kIdle;
    return true;
  }
  std::exchange(member.next_range, nullptr)(std::move(reply));
  return false;
}

}  // namespace weir

#include "ps_server/coordinator/completion.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/part_assignment.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

constexpr size_t kLongestReason = 1000;  // bytes

}  // namespace

// ---- before all examples are done

void Completion::Stop(const v1::StopRequest& request, const Done<v1::StopReply>& done) {
  if (absl::Status caller = job_.members.CheckCaller(request.caller()); !caller.ok()) return done(caller);
  const MemberTable::Worker* const worker = job_.members.FindWorker(request.caller());
  if (worker == nullptr) return done(absl::FailedPreconditionError("a reader cannot stop the job"));
  if (request.reason().empty() || request.reason().size() > kLongestReason) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("reason: must be 1 to ", kLongestReason, " bytes; got ", request.reason().size())));
  }
  if (job_.waits()) {
    return done(absl::UnavailableError(
        absl::StrCat("the job is ", v1::JobState_Name(job_.state), "; there is nothing to stop")));
  }
  done(v1::StopReply());
  StopSoon(absl::StrCat("since ", worker->task, " asked for it: ", request.reason()));
}

void Completion::StopSoon(const std::string& why) {
  if (job_.state != v1::RUNNING || !job_.evaluations.stopped_early().empty() || !job_.progress.EndSoon())
    return;
  job_.evaluations.StopSoon(why);
  LogInfo("training stops soon, ", why);
  job_.members.Changed();
  stop_revision_ = job_.members.revision();
  Tick();
}

void Completion::StopEarly(const std::string& why) {
  job_.evaluations.StopEarly(why);
  LogInfo("training stops ", why);
  if (job_.progress.ranges().has_value()) job_.progress.ranges()->EndHere();
  OnWorkDone();
}

void Completion::Tick() {
  if (job_.state != v1::RUNNING) return;
  const double limit = job_.config().train().max_seconds();
  if (limit > 0 && job_.evaluations.stopped_early().empty() &&
      job_.meter.trained(job_.now()) >= absl::Seconds(limit)) {
    return StopSoon(absl::StrCat("since it has taken train.max_seconds = ", limit));
  }
  // Nobody may be left who would ask for the next range.
  if (!job_.evaluations.stopped_early().empty() && job_.progress.all_done() && !job_.evaluations.awaited())
    OnWorkDone();
}

void Completion::Shorten() {
  job_.evaluations.Advance(job_.progress.done());
  const uint64_t batches = job_.mode.commits_steps ? job_.progress.batches() : job_.progress.done();
  job_.declared.Shorten(std::min(job_.size().examples, batches * ExamplesOfBatch(job_.config())), batches);
}

void Completion::Drain(const std::string& reason) {
  if (job_.over() || job_.ending.drained()) return;
  if (!job_.checkpoints.enabled()) return End(LostPeer(reason));
  job_.ending.Drain();
  const auto end = [this, reason] {
    End(Drained(
        absl::StrCat(reason, "; started again, the job goes on from ", job_.checkpoints.newest_folder())));
  };
  if (!job_.started()) {
    // The shards hold nothing more than the newest checkpoint, or have lost it already.
    return job_.checkpoints.any() ? end() : End(LostPeer(reason));
  }
  // From here on nothing is acknowledged that the checkpoint would not save.
  LogInfo("saving the job, since ", reason);
  admission_.FenceAll(absl::StrCat("the job is being saved and ends, since ", reason));
  job_.checkpoints.Request(
      /*of_now=*/true, [this, reason, end](const absl::StatusOr<v1::CheckpointReply>& reply) {
        if (job_.over()) return;
        if (reply.ok()) return end();
        End(LostPeer(absl::StrCat(reason, "; it could not be saved: ", reply.status().message())));
      });
}

// ---- all examples are done

void Completion::OnWorkDone() {
  if (job_.state != v1::RUNNING) return;
  if (!job_.evaluations.stopped_early().empty()) Shorten();
  job_.state = v1::DRAINING;
  job_.meter.OnEnd(job_.now());
  LogInfo("all ", job_.size().examples, " examples are done");
  job_.ending.Save(job_.size().examples);
  job_.members.Changed();
  job_.events.may_serve();
  MaybeFinish();
}

void Completion::EndAgain() {
  const v1::CoordinatorState& job = job_.checkpoints.newest()->job();
  if (job.total_batches() < job_.size().batches) {
    job_.evaluations.StoppedBefore(job);
    job_.declared.Shorten(job.total_examples(), job.total_batches());
  }
  LogInfo("all ", job_.size().examples, " examples were done before; the result is ",
          job_.checkpoints.newest_folder());
  job_.ending.EndAgain();
  job_.state = v1::DRAINING;
  job_.OnTrainingStarts();
  job_.meter.EndAtStart();
  job_.shards.Open();
}

void Completion::MaybeFinish() {
  if (job_.state != v1::DRAINING || job_.shards.final_ping_sent() || !job_.members.workers().empty() ||
      !job_.members.readers().empty())
    return;
  if (!job_.ending.saved() || job_.ending.drained() || job_.AwaitsEvaluation() || job_.ending.AwaitsWorkers())
    return;
  if (job_.ending.ends_again()) return End(absl::OkStatus());
  job_.shards.SendFinalPing(job_.config().tables_size());
}

// ---- the job is over

void Completion::End(const absl::Status& failure, bool asked) {
  if (job_.over()) return asked ? job_.ending.WaitNoLonger() : void();
  const bool done = failure.ok();
  job_.state = done ? v1::DONE : v1::FAILED;
  job_.ending.End(failure);
  job_.meter.OnEnd(job_.now());
  if (asked || KindOf(failure) == v1::FAILURE_DRAINED) {
    LogInfo("the job ends: ", failure.message());
  } else if (!done) {
    LogError(failure.message());
  }
  v1::ControlMessage message;
  SetFailure(failure, message.mutable_shutdown());
  std::set<uint32_t> told = job_.shards.TellEnd(std::move(message));
  job_.members.Changed();
  AnswerParked(job_.ending.ForJoin(), done ? absl::FailedPreconditionError("the job is done") : failure);
  // An end that a caller asked for waits for no process. A server that is cut off waits for ps:0 for
  // cluster.server_wait_seconds, too.
  const absl::Duration limit = asked  ? absl::ZeroDuration()
                               : done ? absl::Seconds(job_.config().cluster().server_wait_seconds())
                                      : JobEnding::kTellFailure;
  job_.ending.Await(std::move(told), limit, asked || done ? std::set<uint64_t>() : job_.members.Connected());
}

void Completion::StepAside(const std::string& why) {
  if (job_.over()) return;
  job_.state = v1::FAILED;
  job_.ending.End(Replaced(why));
  job_.meter.OnEnd(job_.now());
  LogError(job_.ending.failure().message());
  // Callers may find the other coordinator at this address, so they get the error that they retry.
  AnswerParked(job_.ending.ForCall(), job_.ending.ForCall());
  job_.ending.Await({}, absl::ZeroDuration(), {});
}

void Completion::AnswerParked(const absl::Status& joins, const absl::Status& others) {
  job_.members.AnswerAll(joins, others);
  job_.shards.RefuseAnnounces(absl::UnavailableError(others.message()));
  job_.pins.DropAll(others);
  job_.ending.Refuse(others);
}

}  // namespace weir

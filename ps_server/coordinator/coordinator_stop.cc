// How a job ends before all of its examples are done.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {
namespace {

constexpr size_t kLongestReason = 1000;  // bytes

}  // namespace

void Coordinator::Stop(v1::StopRequest request, Done<v1::StopReply> done) {
  queue_.Post([this, request = std::move(request), done = std::move(done)] {
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
  });
}

void Coordinator::StopSoon(const std::string& why) {
  if (job_.state != v1::RUNNING || !job_.evaluations.stopped_early().empty() || !job_.progress.EndSoon())
    return;
  job_.evaluations.StopSoon(why);
  LogInfo("training stops soon, ", why);
  job_.members.Changed();
  stop_revision_ = job_.members.revision();
  TickStop();
}

void Coordinator::TickStop() {
  if (job_.state != v1::RUNNING) return;
  const double limit = job_.config().train().max_seconds();
  if (limit > 0 && job_.evaluations.stopped_early().empty() &&
      job_.meter.trained(job_.now()) >= absl::Seconds(limit)) {
    return StopSoon(absl::StrCat("since it has taken train.max_seconds = ", limit));
  }
  // Nobody may be left who would ask for the next range.
  if (!job_.evaluations.stopped_early().empty() && job_.progress.all_done() && !job_.evaluations.awaited())
    StartDraining();
}

void Coordinator::StopEarly(const std::string& why) {
  job_.evaluations.StopEarly(why);
  LogInfo("training stops ", why);
  if (job_.progress.ranges().has_value()) job_.progress.ranges()->EndHere();
  StartDraining();
}

void Coordinator::Shorten() {
  job_.evaluations.Advance(job_.progress.done());
  const uint64_t batches = job_.mode.commits_steps ? job_.progress.batches() : job_.progress.done();
  job_.declared.Shorten(std::min(job_.size().examples, batches * job_.config().data().batch_size()), batches);
}

}  // namespace weir

#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "ps_server/coordinator/admission.h"
#include "ps_server/coordinator/job_parts.h"

namespace weir {

// Decides when and how a job ends: all examples are done, a worker or train.max_seconds stops it early, the
// job is saved for a later start, or it has failed. JobEnding has the state of the end.
//
// Belongs to the coordinator's queue.
class Completion {
 public:
  template <typename Reply>
  using Done = std::function<void(absl::StatusOr<Reply>)>;

  // Both outlive the object.
  Completion(JobParts& job, Admission& admission) : job_(job), admission_(admission) {}

  // ---- before all examples are done

  // As Coordinator.
  void Stop(const v1::StopRequest& request, const Done<v1::StopReply>& done);
  void Drain(const std::string& reason);
  // Training has ended early, for this reason.
  void StopEarly(const std::string& why);
  // Whether each member knows that the job was asked to stop, and so begins no step after the last one.
  bool MembersKnow() const { return job_.members.AllKnow(stop_revision_); }
  // Stops a job that has trained for train.max_seconds, and ends a job that lacks no more work. Call it from
  // time to time.
  void Tick();

  // ---- all examples are done

  // Saves the end, and tells the members.
  void OnWorkDone();
  // The job was done before this coordinator began, which then only answers the processes that still ask.
  void EndAgain();
  // Asks the servers for their last report, once the end is saved and no member is left.
  void MaybeFinish();

  // ---- the job is over

  // The job is done if `failure` is OK. `asked`: a caller asked for the end, which is not logged as an error
  // and does not wait for the members.
  void End(const absl::Status& failure, bool asked = false);
  // Another coordinator has the job.
  void StepAside(const std::string& why);

 private:
  // Training ends early, with the work that has begun: in sync the open step, otherwise the ranges that
  // workers hold. The first reason stays.
  void StopSoon(const std::string& why);
  // The job is as long as what it has done.
  void Shorten();
  // Answers waiting Joins with `joins`, and waiting NextRange, Announce, Pin and Leave calls with `others`.
  void AnswerParked(const absl::Status& joins, const absl::Status& others);

  JobParts& job_;
  Admission& admission_;
  // StopSoon(): the revision with which members know that the job ends.
  uint64_t stop_revision_ = 0;
};

}  // namespace weir

#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/failure.pb.h"

// Why a job, or a task of it, failed: a text for people, and a kind by which programs decide. In a process
// both are an absl::Status with the kind as its payload. Between processes they are two adjacent fields
// (HeartbeatReply, LeaveRequest, Shutdown, answers with JOB_OVER) or, if a call fails, the call's status.
namespace weir {

// OK if `text` is empty and `kind` is FAILURE_UNSPECIFIED. Else a status of this kind, which has some text,
// and whose code is
//   Internal            FAILURE_DIVERGED, FAILURE_INTERNAL
//   FailedPrecondition  FAILURE_CONFIG
//   ResourceExhausted   FAILURE_RESOURCE
//   Aborted             FAILURE_FENCED
//   Unavailable         FAILURE_LOST_PEER, FAILURE_DRAINED, and any other
absl::Status JobFailure(v1::FailureKind kind, absl::string_view text);

// For messages with the fields `failure` and `failure_kind`.
template <typename Message>
void SetFailure(const absl::Status& failure, Message* message);
template <typename Message>
absl::Status FailureIn(const Message& message) {
  return JobFailure(message.failure_kind(), message.failure());
}

// The kind that `status` was made with; for any other status, the kind that its code stands for.
// FAILURE_UNSPECIFIED: OK.
v1::FailureKind KindOf(const absl::Status& status);

// `status` with another text; its code and its kind stay.
absl::Status Reworded(const absl::Status& status, absl::string_view text);

// The v1.StatusDetails, serialized, that a call which failed with `status` sends beside code and text. Empty:
// nothing.
std::string DetailsOf(const absl::Status& status);
// The status of a call that failed, which has some text. `details` that cannot be read are ignored.
absl::Status FromDetails(absl::StatusCode code, absl::string_view text, absl::string_view details);

// "WHAT is NaN", "Inf" or "-Inf"; "WHAT is not finite" if `value` is finite, and so has changed since it was
// found.
std::string NonFiniteValue(absl::string_view what, float value);
// "worker 1 (worker:1): FOUND at clock 7, batch 12 (examples 96 to 103 in the job's order)"; found: "the
// gradient of dense_0/weight[12] is NaN". examples: 0 if the push names no batch.
std::string NonFinitePush(uint32_t worker, absl::string_view task, absl::string_view found, uint64_t clock,
                          uint64_t batch, uint64_t first_example, uint64_t examples);
// FAILURE_DIVERGED: the failure of a job, or of a worker, that ends with such a push.
absl::Status Divergence(absl::string_view push);
// Training diverged, since losses have grown or are not finite (train.divergence): `found` says which.
absl::Status GrownLoss(absl::string_view found);

// FAILURE_CONFIG: servers with another token or version, a config with another checkpoint.
absl::Status Misfit(absl::string_view why);

// FAILURE_RESOURCE: the last checkpoint, or the log, could not be written.
absl::Status StorageFailure(absl::string_view why);

// FAILURE_LOST_PEER.
absl::Status LostPeer(absl::string_view why);

// FAILURE_DRAINED: all that was done is saved, and the job continues from there when it is started again.
absl::Status Drained(absl::string_view why);

// `answer`, with what KindOf() needs to find FAILURE_DRAINED in it.
absl::Status MarkDrained(absl::Status answer);

// FAILURE_FENCED: another ps:0 has the job.
absl::Status Replaced(absl::string_view why);

template <typename Message>
void SetFailure(const absl::Status& failure, Message* message) {
  message->set_failure(std::string(failure.message()));
  message->set_failure_kind(KindOf(failure));
}

}  // namespace weir

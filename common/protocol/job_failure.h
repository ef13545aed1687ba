#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

// Why a job failed, as its tasks tell each other: in words, that are shown to people as they are
// (HeartbeatReply.failure, Shutdown.failure, LeaveRequest.reason, the reason of JOB_OVER). Those that begin
// with "training diverged", "the job cannot run as it was started" or "storage failed" say that starting
// again would end the same way.
namespace weir {

// "WHAT is NaN", "Inf" or "-Inf"; "WHAT is not finite" if `value` is: it has changed since it was found.
std::string NonFiniteValue(absl::string_view what, float value);
// "worker 1 (worker:1): FOUND at clock 7"; found: "the gradient of dense_0/weight[12] is NaN".
std::string NonFinitePush(uint32_t worker, absl::string_view task, absl::string_view found, uint64_t clock);
// The failure of a job, or of a worker, that ends with such a push.
std::string Divergence(absl::string_view push);
bool IsDivergence(absl::string_view failure);

// The failure of a job whose parts were not started to fit together: servers with another token or version, a
// config with another checkpoint.
std::string Misfit(absl::string_view why);

// The failure of a job, or of a task, that cannot write what it has to leave: its last checkpoint, its log.
std::string StorageFailure(absl::string_view why);
// Whether a task ends with such a failure. Calls that were answered with it put the name of the peer before
// it.
bool IsStorageFailure(const absl::Status& status);

// What a task of the failed job ends with. Internal: training diverged. FailedPrecondition: a misfit.
// ResourceExhausted: storage failed. Unavailable: a peer was lost.
absl::Status JobFailure(absl::string_view failure);

}  // namespace weir

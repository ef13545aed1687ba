#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/job/transport.h"
#include "client/types.h"
#include "common/model/model_spec.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"

namespace weir {

// Makes this process a member of the job, and waits until the job may start, at most cluster.start_seconds.
// Logs what it waits for after 10 seconds, and every 10 seconds from then on. `again`, `job`: used instead of
// those in `options`. `instance`: of this process, for the request.
//
// Errors are the coordinator's. Unavailable, DeadlineExceeded: the time has passed. FailedPrecondition,
// Internal: this client cannot work with the coordinator's reply.
//
// Not on the transport's loop.
absl::StatusOr<v1::JoinReply> JoinJob(const ClientOptions& options, bool again, uint64_t job,
                                      uint64_t instance, const ModelSpec& model, const v1::JobConfig& config,
                                      Transport& transport);

}  // namespace weir

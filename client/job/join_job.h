#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "client/exchange/event_loop.h"
#include "client/job/coordinator_channel.h"
#include "proto/coordinator.pb.h"

namespace weir {

struct JoinOptions {
  // Opens a way to the coordinator, which need not be there yet; an attempt to connect may take so long. Each
  // try to join has a way of its own: gRPC would ask for a name that does not resolve yet more and more
  // seldom.
  std::function<std::unique_ptr<CoordinatorChannel>(std::chrono::nanoseconds attempt)> open;
  // The job is waited for so long (cluster.start_seconds).
  std::chrono::nanoseconds start{};
  // This process was in the job before, so that a coordinator that is not there at all is waited for
  // `server_wait` alone.
  bool again = false;
  std::chrono::nanoseconds server_wait{};
};

// Enters the job, and waits until it may start. What it waits for is logged after 10 seconds, and every 10
// seconds from then on. Errors are the coordinator's; Unavailable or DeadlineExceeded: the time has passed.
// Not on the loop.
absl::StatusOr<v1::JoinReply> JoinJob(const v1::JoinRequest& request, const JoinOptions& options,
                                      EventLoop& loop);

}  // namespace weir

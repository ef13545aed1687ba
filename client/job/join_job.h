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
  // Opens a channel to the coordinator, which need not be there yet. `attempt`: how long an attempt to
  // connect may take. Each try to join has a channel of its own: on one channel, gRPC would look up a name
  // that does not resolve yet less and less often.
  std::function<std::unique_ptr<CoordinatorChannel>(std::chrono::nanoseconds attempt)> open;
  // How long to wait for the job (cluster.start_seconds).
  std::chrono::nanoseconds start{};
  // This process was in the job before, so it waits only `server_wait` for a coordinator that is not there at
  // all.
  bool again = false;
  std::chrono::nanoseconds server_wait{};
};

// Enters the job, and waits until the job may start. Logs what it waits for after 10 seconds, and every 10
// seconds from then on. Errors are the coordinator's; Unavailable or DeadlineExceeded: the time has passed.
// Not on the loop.
absl::StatusOr<v1::JoinReply> JoinJob(const v1::JoinRequest& request, const JoinOptions& options,
                                      EventLoop& loop);

}  // namespace weir

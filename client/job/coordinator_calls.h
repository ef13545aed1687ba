#pragma once

#include "absl/status/status.h"
#include "client/call/call_group.h"
#include "client/exchange/event_loop.h"
#include "client/job/coordinator_channel.h"
#include "common/threads/future.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The calls that a member of the job makes to the coordinator, each retried under its own key until its
// limits are reached (client/call/call_retry.h). The heartbeat is separate (client/job/heartbeat.h).
// Thread-safe. Outlives its calls, as do channel, loop and group.
class CoordinatorCalls {
 public:
  CoordinatorCalls(CoordinatorChannel& channel, EventLoop& loop, CallGroup& group)
      : channel_(channel), loop_(loop), group_(group) {}

  Future<v1::NextRangeReply> NextRange(const v1::NextRangeRequest& request, const CallLimits& limits);
  Future<v1::PinReply> Pin(const v1::PinRequest& request, const CallLimits& limits);
  Future<v1::UnpinReply> Unpin(const v1::UnpinRequest& request, const CallLimits& limits);
  Future<v1::ReportReply> Report(const v1::ReportRequest& request, const CallLimits& limits);
  // Waits for the answer. The call is not in the group, because it is sent when all other calls have been
  // ended.
  absl::Status Leave(const v1::LeaveRequest& request, const CallLimits& limits);

 private:
  CoordinatorChannel& channel_;
  EventLoop& loop_;
  CallGroup& group_;
};

}  // namespace weir

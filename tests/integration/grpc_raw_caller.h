#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"

// Calls a server with messages as given, as a program in another language might, with none of the checks of
// Weir's own client and no retries.
namespace weir {

absl::StatusOr<v1::JoinReply> RawJoin(const std::string& address, const v1::JoinRequest& request);
absl::Status RawLeave(const std::string& address, const v1::LeaveRequest& request);
// The chunks of one push.
absl::StatusOr<v1::PushReply> RawPush(const std::string& address, const std::vector<v1::PushRequest>& chunks);

}  // namespace weir

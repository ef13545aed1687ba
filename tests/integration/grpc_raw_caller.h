#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"

// Calls a server with messages as given, as a program in another language might, without the checks of Weir's
// own client and without retries.
namespace weir {

absl::StatusOr<v1::JoinReply> RawJoin(const std::string& address, const v1::JoinRequest& request);
absl::Status RawLeave(const std::string& address, const v1::LeaveRequest& request);
// A push, whose gradient comes in one chunk that begins at `first`.
absl::StatusOr<v1::PushReply> RawPush(const std::string& address, const v1::PushRequest& header,
                                      const std::string& gradient, uint64_t first = 0);

}  // namespace weir

#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "common/system/unique_fd.h"

namespace weir::bench {

// Move all bytes over a connected socket, or return false.
bool Receive(int fd, void* to, size_t bytes);
bool Send(int fd, const void* from, size_t bytes);

void SetNoDelay(int fd);

// Connects to "host:port". Calls `tune` with the socket before it connects.
absl::StatusOr<UniqueFd> DialTcp(const std::string& address, const std::function<void(int)>& tune);
// Waits for the next connection of a listener, which may be non-blocking.
UniqueFd Accept(const UniqueFd& listener);

}  // namespace weir::bench

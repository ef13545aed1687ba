#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace weir::bench {

// Moves all bytes over a connected socket, or returns false.
bool Receive(int fd, void* to, size_t bytes);
bool Send(int fd, const void* from, size_t bytes);

// Connects to "host:port". `tune` sees the socket before.
absl::StatusOr<int> DialTcp(const std::string& address, const std::function<void(int)>& tune);

}  // namespace weir::bench

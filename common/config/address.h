#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// Where a task listens: "host:2222", "10.0.0.1:2222", "[::1]:2222" or "unix:/run/weir.sock".
struct Address {
  std::string host;   // without brackets; empty for unix
  uint16_t port = 0;  // 0: any free one
  std::string path;   // unix: the socket's; else empty

  bool is_unix() const { return !path.empty(); }
  // The address as it was parsed, with the host in lower case.
  std::string ToString() const;
};

// InvalidArgument says what is wrong; the caller adds the place.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

}  // namespace weir

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weir {

// The limits of docs/security.md, of one client or of all clients together, that a client reaches by what it
// has open or has asked for already.
enum class Limit {
  kConnections,
  kConnectionsOfHost,
  kJoins,
  kWaitingJoins,
  kReaders,
  kPins,
  kExchanges,
  kWaitingPushes,
  kWaitingCalls,
  kRowBytes,
  kRequestBytes,
};
inline constexpr size_t kLimits = 11;

// As in the label of weir_limit_reached_total: "connections_of_host".
absl::string_view NameOf(Limit limit);

// A status that says which limit was reached. Unavailable: the client may try again. ResourceExhausted: the
// client must give something back first.
absl::Status LimitReached(Limit limit, absl::StatusCode code, absl::string_view message);
// The limit of such a status. It does not travel: another process sees code and message alone.
std::optional<Limit> LimitOf(const absl::Status& status);

// How often each limit was reached. Thread-safe.
class LimitCounters {
 public:
  void Count(Limit limit) { ++counts_[static_cast<size_t>(limit)]; }
  // Counts the status if it says that a limit was reached.
  void CountIfLimit(const absl::Status& status) {
    if (const std::optional<Limit> limit = LimitOf(status); limit.has_value()) Count(*limit);
  }
  const std::atomic<uint64_t>& of(Limit limit) const { return counts_[static_cast<size_t>(limit)]; }

 private:
  std::array<std::atomic<uint64_t>, kLimits> counts_{};
};

}  // namespace weir

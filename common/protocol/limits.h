#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace weir {

// Limits that one end of the protocol keeps and the other checks. The limits of chunks stand in
// common/codec/wire_codec.h, those of a model in common/model/model_spec.h.

// The largest message (proto/parameter_server.proto). Chunks hold at most 1 MiB, and a model's description
// must fit too; no message that a job needs is larger.
inline constexpr int kMaxMessageBytes = 4 << 20;
// The largest request other than a Join, whose model may be as large as a message: a request that names 1024
// ranges which a worker has completed. Also the largest message of an exchange, without its payload.
inline constexpr size_t kMaxRequestBytes = 64 << 10;
// The longest PushRequest.refused, which the shard keeps with its answer.
inline constexpr size_t kMaxRefusalBytes = 1000;

// The rows of one exchange with one shard, each way (common/protocol/exchange_layout.h).
inline constexpr uint64_t kMaxRowBytes = uint64_t{512} << 20;

// The ids of readers begin here; below are the ranks of workers (proto/model.proto, Caller).
inline constexpr uint32_t kFirstReader = 1u << 31;

// ps:0 hears of each task at least twice a second. A task of which it has heard nothing for so long stands
// still, or is cut off: ps:0 names it, long before its lease ends.
inline constexpr double kSilentSeconds = 3;

// train.divergence compares the mean losses of windows of batches (v1.LossWindow). The batches of a window,
// and of a worker's first window: training that diverges often does so from the start.
inline constexpr uint64_t kLossWindow = 50, kFirstLossWindow = 5;
// The most windows that one report has.
inline constexpr int kMaxLossWindows = 32;

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

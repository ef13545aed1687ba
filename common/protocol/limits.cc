#include "common/protocol/limits.h"

#include "absl/strings/cord.h"

namespace weir {
namespace {

constexpr char kPayload[] = "weir.limit";
constexpr absl::string_view kNames[kLimits] = {
    "connections", "connections_of_host", "joins",         "waiting_joins", "readers",       "pins",
    "exchanges",   "waiting_pushes",      "waiting_calls", "row_bytes",     "request_bytes",
};

}  // namespace

absl::string_view NameOf(Limit limit) { return kNames[static_cast<size_t>(limit)]; }

absl::Status LimitReached(Limit limit, absl::StatusCode code, absl::string_view message) {
  absl::Status status(code, message);
  status.SetPayload(kPayload, absl::Cord(NameOf(limit)));
  return status;
}

std::optional<Limit> LimitOf(const absl::Status& status) {
  const auto name = status.GetPayload(kPayload);
  if (!name.has_value()) return std::nullopt;
  for (size_t i = 0; i < kLimits; ++i) {
    if (*name == kNames[i]) return static_cast<Limit>(i);
  }
  return std::nullopt;
}

}  // namespace weir

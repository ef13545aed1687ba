#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/backoff.h"
#include "client/call_limits.h"

namespace weir {

// Decides what becomes of a call when a try of it fails: UNAVAILABLE and CANCELLED (by the peer) ask for
// another try after a jittered wait, until the call's limits are reached; any other error ends the call. Not
// thread-safe.
class CallRetry {
 public:
  using Clock = std::chrono::steady_clock;

  // `what` and `peer` are for messages: "the pull at clock 7", "ps:1 at 10.0.0.1:2222". The call starts now.
  CallRetry(std::string what, std::string peer, const CallLimits& limits)
      : what_(std::move(what)),
        peer_(std::move(peer)),
        limits_(limits),
        deadline_(Clock::now() + limits.total) {}

  const std::string& what() const { return what_; }
  const std::string& peer() const { return peer_; }
  Clock::time_point deadline() const { return deadline_; }
  // How long it may take in all.
  double seconds() const { return std::chrono::duration<double>(limits_.total).count(); }

  void TryStarts() { try_started_ = Clock::now(); }

  struct Verdict {
    // What the call ends with. OK: another try is to start after `wait`.
    absl::Status error;
    std::chrono::nanoseconds wait{};
  };
  // A try has failed.
  Verdict Judge(const absl::Status& failure);
  // What a call ends with that its deadline ends.
  absl::Status Late() const;

 private:
  const std::string what_, peer_;
  const CallLimits limits_;
  const Clock::time_point deadline_;
  Clock::time_point try_started_;
  // Since when the peer could not be reached.
  std::optional<Clock::time_point> unreachable_since_;
  Backoff backoff_{std::chrono::milliseconds(50), std::chrono::milliseconds(1000)};
};

}  // namespace weir

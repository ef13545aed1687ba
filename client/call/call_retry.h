#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/call/backoff.h"
#include "client/call/call_group.h"
#include "common/system/clock.h"

namespace weir {

// Decides how a call continues when one of its tries has failed. UNAVAILABLE and CANCELLED (by the peer) lead
// to another try after a jittered wait, until the call's limits are reached; any other error ends the call.
// Time for which this process was stopped does not count, and a try during which the process was stopped does
// not end the call for being late. Not thread-safe.
class CallRetry {
 public:
  // `what` and `peer` are for messages: "the pull at clock 7", "ps:1 at 10.0.0.1:2222". The call starts now.
  // The clocks (common/system/clock.h) outlive this object.
  CallRetry(std::string what, std::string peer, const CallLimits& limits, const Clock& awake = Clock::Awake(),
            const Clock& real = Clock::Real(), Backoff::Random random = Backoff::AnyRandom)
      : what_(std::move(what)),
        peer_(std::move(peer)),
        limits_(limits),
        awake_(awake),
        real_(real),
        deadline_(awake.Now() + absl::FromChrono(limits.total)),
        backoff_(std::chrono::milliseconds(50), std::chrono::milliseconds(1000), std::move(random)) {}

  const std::string& what() const { return what_; }
  const std::string& peer() const { return peer_; }
  // The time until the call's deadline. An estimate: a stop of this process that shows later moves the
  // deadline.
  std::chrono::nanoseconds left() const { return absl::ToChronoNanoseconds(deadline_ - awake_.Now()); }
  // How long the call may take in all.
  double seconds() const { return std::chrono::duration<double>(limits_.total).count(); }

  void TryStarts() { try_.emplace(awake_, real_); }

  struct Verdict {
    // The error that ends the call. OK: another try starts after `wait`.
    absl::Status error;
    std::chrono::nanoseconds wait{};
  };
  // Called when a try has failed.
  Verdict Judge(const absl::Status& failure);
  // The error of a call that its deadline ends.
  absl::Status Late() const;

 private:
  const std::string what_, peer_;
  const CallLimits limits_;
  const Clock& awake_;
  const Clock& real_;
  // Awake times: the call's deadline, and since when the peer could not be reached.
  const absl::Time deadline_;
  std::optional<absl::Time> unreachable_since_;
  // The newest try.
  std::optional<Stretch> try_;
  Backoff backoff_;
};

}  // namespace weir

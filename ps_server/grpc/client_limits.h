#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/time/time.h"
#include "common/base/bounded.h"
#include "common/protocol/limits.h"
#include "common/system/clock.h"
#include "common/telemetry/logging.h"
#include "common/threads/mutex.h"
#include "proto/job_config.pb.h"

// How many clients there may be, and how often they may come.
namespace weir {

// A token bucket: `rate` events a second over a time, so that as many as `burst` may come at once. Not
// thread-safe.
class RateLimit {
 public:
  RateLimit(double rate, double burst) : rate_(rate), burst_(burst), left_(burst) {}
  // Any number of events.
  static RateLimit None() {
    constexpr double kAny = std::numeric_limits<double>::infinity();
    return {kAny, kAny};
  }

  // Whether an event may happen now. Take(): it happens then.
  bool Ready(absl::Time now) {
    if (last_ < now) {
      left_ = std::min(burst_, left_ + rate_ * absl::ToDoubleSeconds(now - last_));
      last_ = now;
    }
    return left_ >= 1;
  }
  bool Take(absl::Time now) {
    if (!Ready(now)) return false;
    left_ -= 1;
    return true;
  }
  // As many events may come at once as ever.
  bool Full(absl::Time now) {
    Ready(now);
    return left_ >= burst_;
  }

 private:
  const double rate_, burst_;
  double left_;
  absl::Time last_ = absl::InfinitePast();
};

// A RateLimit for each of many keys (BoundedByKey): while `most` keys have had events lately, all other keys
// share one limit. Not thread-safe.
class RateLimits {
 public:
  RateLimits(double rate, double burst, size_t most)
      : limits_(RateLimit(rate, burst), most, absl::Seconds(1)) {}

  bool Take(const std::string& key, absl::Time now) {
    return limits_.Of(key, now, [now](RateLimit& other) { return other.Full(now); }).Take(now);
  }

 private:
  BoundedByKey<RateLimit> limits_;
};

// How many TCP connections a server has: in all, and of each host (HostOf()). Handshakes that never end
// count, too.
//
// gRPC tells of no connection that it closes. A connection that is gone is noticed when the limit is reached,
// by its socket, which is not the one any more that was admitted.
//
// Thread-safe.
class ConnectionLimits {
 public:
  struct Most {
    size_t connections = 0, of_host = 0;
    // Where the numbers come from, for messages.
    std::string connections_source, of_host_source;

    // `descriptors`: that the process may have open; half of them are for connections.
    static Most Of(const v1::ClientLimits& limits, size_t descriptors);
  };
  // `clock` and `counters` outlive this object.
  ConnectionLimits(Most most, const Clock* clock, LimitCounters* counters)
      : most_(std::move(most)), clock_(*clock), counters_(counters) {}

  // Counts the connection of an accepted TCP socket. False: it is one too many, and does not count.
  bool Admit(int fd);
  // The connections that are open now.
  size_t open();

 private:
  // A socket's number in the kernel, which no other socket gets.
  using Cookie = uint64_t;
  struct Connection {
    Cookie cookie = 0;
    std::string host;
  };

  // Forgets those that are gone: of this host, or of all if it is empty.
  void Sweep(const std::string& host) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(std::unordered_map<int, Connection>::iterator connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Most most_;
  const Clock& clock_;
  LimitCounters* const counters_;
  Mutex mutex_;
  // By descriptor. Some of them may be gone.
  std::unordered_map<int, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, size_t> of_host_ ABSL_GUARDED_BY(mutex_);
  // A client that dials again and again costs few sweeps.
  absl::Time next_sweep_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  LogLimit logged_ ABSL_GUARDED_BY(mutex_){absl::Minutes(1)};
};

}  // namespace weir

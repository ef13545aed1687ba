#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/system/clock.h"
#include "common/system/unique_fd.h"
#include "common/telemetry/logging.h"
#include "ps_server/grpc/client_limits.h"

namespace weir {

// Accepts the clients of some listening sockets, on a thread of its own. While no descriptor is free, the
// clients wait.
class AcceptLoop {
 public:
  // `serve` gets each client, on the loop's thread. Clients that come faster than `limit` wait in the
  // kernel's queues, in their order, by `clock`, which outlives the loop.
  static absl::StatusOr<std::unique_ptr<AcceptLoop>> Create(std::vector<UniqueFd> listeners,
                                                            std::function<void(UniqueFd client)> serve,
                                                            RateLimit limit = RateLimit::None(),
                                                            const Clock* clock = &Clock::Awake());
  // Closes the listening sockets. `serve` does not run after this.
  ~AcceptLoop();

  // Clients that came before are accepted now. Called once. An error: the system gives no thread.
  absl::Status Start();

 private:
  AcceptLoop(std::vector<UniqueFd> listeners, UniqueFd stop, std::function<void(UniqueFd client)> serve,
             RateLimit limit, const Clock* clock);
  void Run();
  // Accepts the clients that wait. Milliseconds after which to try again, as some may still wait; 0: none
  // does.
  int AcceptAll(int listener);

  const std::vector<UniqueFd> listeners_;
  const UniqueFd stop_;  // an eventfd
  const std::function<void(UniqueFd client)> serve_;
  const Clock& clock_;
  // Of the thread.
  RateLimit limit_;
  LogLimit logged_{absl::Minutes(1)};
  std::thread thread_;
};

}  // namespace weir

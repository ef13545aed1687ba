#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/system/unique_fd.h"
#include "common/telemetry/log_limit.h"

namespace weir {

// Accepts the clients of some listening sockets, on a thread of its own. After a lack of descriptors it goes
// on once there are some.
class AcceptLoop {
 public:
  // `serve` gets each client, on the loop's thread.
  static absl::StatusOr<std::unique_ptr<AcceptLoop>> Create(std::vector<UniqueFd> listeners,
                                                            std::function<void(UniqueFd client)> serve);
  // Closes the listening sockets. `serve` does not run after this.
  ~AcceptLoop();

  // Clients that came before are accepted now. Called once.
  void Start();

 private:
  AcceptLoop(std::vector<UniqueFd> listeners, UniqueFd stop, std::function<void(UniqueFd client)> serve);
  void Run();
  // Accepts all clients that wait. False: the system has nothing left for another one.
  bool AcceptAll(int listener);

  const std::vector<UniqueFd> listeners_;
  const UniqueFd stop_;  // an eventfd
  const std::function<void(UniqueFd client)> serve_;
  LogLimit logged_{absl::Minutes(1)};  // of the thread
  std::thread thread_;
};

}  // namespace weir

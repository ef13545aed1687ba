#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "client/exchange/shard_channel.h"
#include "common/shared_memory/doorbell.h"
#include "common/threads/future.h"

namespace grpc {
class CompletionQueue;
}

namespace weir {

// A completion queue, the thread that serves it and the work that servers leave in shared memory, and that
// thread's timers. All events of the clients' streams are handled there, one after another, so that state
// that only handlers touch needs no lock.
//
// The clients of a process share one poller. If each had a queue, gRPC would let the thread of one client
// take the events of all from the kernel and hand them over. This costs several thread switches per message.
//
// Thread-safe. Outlives everything that uses it: no operation is under way when it is destroyed.
class GrpcPoller final : public EventLoop {
 public:
  using Steady = std::chrono::steady_clock;

  // Before a polling thread sleeps, it looks for events for `busy_poll`. An error: the system gives no
  // thread.
  static absl::StatusOr<std::shared_ptr<GrpcPoller>> Start(std::chrono::microseconds busy_poll);
  // The process's poller with this `busy_poll`; its last holder destroys it. Not from a handler. Clients that
  // may have work in shared memory have one of their own, because there each event of gRPC costs a thread
  // switch more.
  static absl::StatusOr<std::shared_ptr<GrpcPoller>> Shared(std::chrono::microseconds busy_poll,
                                                            bool shared_work);
  ~GrpcPoller();

  // The tags of its operations are GrpcEvents, which are handled on the polling thread.
  grpc::CompletionQueue* queue();
  std::shared_ptr<ResultDriver> driver() override;

  // Work in shared memory: a thread that leaves work rings doorbell kBell of these. An error: there is no
  // such memory, or no thread for it.
  static constexpr uint32_t kBell = 0;
  absl::StatusOr<std::shared_ptr<DoorbellPage>> bells();
  // On the polling thread, after bells().
  void Add(SharedWork* work);
  void Remove(SharedWork* work);

  // Runs `then` on the polling thread, at `when` or soon after.
  Timer RunAt(Steady::time_point when, absl::AnyInvocable<void()> then);
  Timer RunAfter(std::chrono::nanoseconds wait, absl::AnyInvocable<void()> then) override {
    return RunAt(Steady::now() + wait, std::move(then));
  }
  void Post(absl::AnyInvocable<void()> task) override { RunAt(Steady::time_point::min(), std::move(task)); }
  // On a thread of its own. Where the system gives none, within this call.
  void RunAside(absl::AnyInvocable<void()> work, absl::AnyInvocable<void()> then) override;
  void Cancel(const Timer& timer) override;
  uint32_t Random() override;

 private:
  struct Impl;
  explicit GrpcPoller(std::chrono::microseconds busy_poll);
  const std::shared_ptr<Impl> impl_;
};

}  // namespace weir

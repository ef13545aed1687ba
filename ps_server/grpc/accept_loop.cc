#include "ps_server/grpc/accept_loop.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/net/tcp.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

// The pauses when the system has nothing left for another client, and when clients come too fast.
constexpr int kExhaustedWaitMs = 100, kTooFastWaitMs = 5;

}  // namespace

absl::StatusOr<std::unique_ptr<AcceptLoop>> AcceptLoop::Create(std::vector<UniqueFd> listeners,
                                                               std::function<void(UniqueFd client)> serve,
                                                               RateLimit limit, const Clock* clock) {
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  return std::unique_ptr<AcceptLoop>(
      new AcceptLoop(std::move(listeners), std::move(stop), std::move(serve), limit, clock));
}

AcceptLoop::AcceptLoop(std::vector<UniqueFd> listeners, UniqueFd stop,
                       std::function<void(UniqueFd client)> serve, RateLimit limit, const Clock* clock)
    : listeners_(std::move(listeners)),
      stop_(std::move(stop)),
      serve_(std::move(serve)),
      clock_(*clock),
      limit_(limit) {}

AcceptLoop::~AcceptLoop() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

absl::Status AcceptLoop::Start() {
  WEIR_ASSIGN_OR_RETURN(thread_, MakeThread("accept connections", [this] { Run(); }));
  return absl::OkStatus();
}

void AcceptLoop::Run() {
  std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0}};
  for (const UniqueFd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
  while (true) {
    poll(entries.data(), entries.size(), -1);
    if (entries[0].revents != 0) return;
    int wait_ms = 0;
    for (size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents != 0) wait_ms = std::max(wait_ms, AcceptAll(entries[i].fd));
    }
    if (wait_ms > 0) poll(entries.data(), 1, wait_ms);
  }
}

int AcceptLoop::AcceptAll(int listener) {
  while (true) {
    const absl::Time now = clock_.Now();
    if (!limit_.Ready(now)) return kTooFastWaitMs;
    absl::StatusOr<UniqueFd> client = AcceptClient(listener);
    if (client.ok()) {
      limit_.Take(now);
      serve_(*std::move(client));
      continue;
    }
    if (!absl::IsResourceExhausted(client.status())) return 0;
    if (logged_.Due(now)) LogWarning(client.status().message(), "; tries again");
    return kExhaustedWaitMs;
  }
}

}  // namespace weir

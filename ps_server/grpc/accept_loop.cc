#include "ps_server/grpc/accept_loop.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <utility>

#include "common/net/accept.h"
#include "common/system/clock.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// The pause when the system has nothing left for another client.
constexpr int kExhaustedWaitMs = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<AcceptLoop>> AcceptLoop::Create(std::vector<UniqueFd> listeners,
                                                               std::function<void(UniqueFd client)> serve) {
  UniqueFd stop(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  return std::unique_ptr<AcceptLoop>(new AcceptLoop(std::move(listeners), std::move(stop), std::move(serve)));
}

AcceptLoop::AcceptLoop(std::vector<UniqueFd> listeners, UniqueFd stop,
                       std::function<void(UniqueFd client)> serve)
    : listeners_(std::move(listeners)), stop_(std::move(stop)), serve_(std::move(serve)) {}

AcceptLoop::~AcceptLoop() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void AcceptLoop::Start() {
  thread_ = std::thread([this] { Run(); });
}

void AcceptLoop::Run() {
  std::vector<pollfd> entries = {{stop_.get(), POLLIN, 0}};
  for (const UniqueFd& listener : listeners_) entries.push_back({listener.get(), POLLIN, 0});
  while (true) {
    poll(entries.data(), entries.size(), -1);
    if (entries[0].revents != 0) return;
    bool exhausted = false;
    for (size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents != 0 && !AcceptAll(entries[i].fd)) exhausted = true;
    }
    if (exhausted) poll(entries.data(), 1, kExhaustedWaitMs);
  }
}

bool AcceptLoop::AcceptAll(int listener) {
  while (true) {
    absl::StatusOr<UniqueFd> client = AcceptClient(listener);
    if (client.ok()) {
      serve_(*std::move(client));
      continue;
    }
    if (!absl::IsResourceExhausted(client.status())) return true;
    if (logged_.Due(Clock::Awake().Now())) LogWarning(client.status().message(), "; tries again");
    return false;
  }
}

}  // namespace weir

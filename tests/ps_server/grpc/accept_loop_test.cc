#include "ps_server/grpc/accept_loop.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/net/tcp.h"
#include "common/threads/mutex.h"

namespace weir {
namespace {

class SharedClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + absl::Seconds(seconds_.load()); }
  void Advance(int64_t seconds) { seconds_ += seconds; }

 private:
  std::atomic<int64_t> seconds_{1000};
};

UniqueFd ConnectTo(uint16_t port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(port);
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(connect(fd.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  return fd;
}

TEST_CASE("clients that come too fast wait for their turn") {
  SharedClock clock;
  Mutex mutex;
  CondVar served;
  std::vector<absl::Time> times;

  auto listener = ListenTcp("127.0.0.1", 0);
  REQUIRE(listener.ok());
  const uint16_t port = PortOf(*listener);
  std::vector<UniqueFd> listeners;
  listeners.push_back(*std::move(listener));
  auto loop = AcceptLoop::Create(
      std::move(listeners),
      [&](UniqueFd) {
        MutexLock lock(mutex);
        times.push_back(clock.Now());
        served.NotifyAll();
      },
      RateLimit(1, 2), &clock);
  REQUIRE(loop.ok());
  REQUIRE((*loop)->Start().ok());
  const auto wait_for = [&](size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    MutexLock lock(mutex);
    while (times.size() < count && served.WaitUntil(mutex, deadline)) {
    }
    REQUIRE(times.size() == count);
  };

  const absl::Time start = clock.Now();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(ConnectTo(port));
  wait_for(2);
  clock.Advance(1);
  wait_for(3);
  clock.Advance(1);
  wait_for(4);
  CHECK(times == std::vector<absl::Time>{start, start, start + absl::Seconds(1), start + absl::Seconds(2)});
}

}  // namespace
}  // namespace weir

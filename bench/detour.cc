#include "bench/detour.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace weir::bench {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// The limit on what all connections together may pass on to the server.
class Gate {
 public:
  explicit Gate(const Detour& detour) : detour_(detour) {}

  // Waits until some of `bytes` may pass; for ever once the way is stopped. Returns how many may.
  size_t Pass(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (detour_.stop_after >= 0) {
      bytes = std::min<size_t>(bytes, detour_.stop_after - passed_);
      if (bytes == 0) std::this_thread::sleep_for(std::chrono::hours(24 * 365));
    }
    passed_ += bytes;
    if (detour_.bytes_per_second > 0) {
      std::this_thread::sleep_for(
          std::chrono::duration<double>(static_cast<double>(bytes) / detour_.bytes_per_second));
    }
    return bytes;
  }

 private:
  const Detour detour_;
  std::mutex mutex_;
  int64_t passed_ = 0;
};

// `gate`: nullptr: everything may pass.
void Copy(int from, int to, Gate* gate) {
  std::vector<char> buffer(gate == nullptr ? 1 << 20 : 16 << 10);
  while (true) {
    const ssize_t received = recv(from, buffer.data(), buffer.size(), 0);
    if (received <= 0) break;
    for (ssize_t sent = 0; sent < received;) {
      const size_t piece = gate == nullptr ? received - sent : gate->Pass(received - sent);
      for (const ssize_t end = sent + piece; sent < end;) {
        const ssize_t n = send(to, buffer.data() + sent, end - sent, MSG_NOSIGNAL);
        if (n <= 0) return;
        sent += n;
      }
    }
  }
  shutdown(to, SHUT_WR);
}

}  // namespace

absl::Status RunDetour(const std::string& server, const Detour& detour, Control& control) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own = Loopback(0);
  socklen_t size = sizeof own;
  uint32_t port;
  if (!absl::SimpleAtoi(server.substr(server.rfind(':') + 1), &port) ||
      bind(listener, reinterpret_cast<sockaddr*>(&own), size) != 0 || listen(listener, 16) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return absl::UnavailableError(absl::StrCat("no proxy for ", server, " can be set up"));
  }
  absl::Status told = control.Send({{"address", absl::StrCat("127.0.0.1:", ntohs(own.sin_port))}});
  if (!told.ok()) return told;
  Gate gate(detour);
  while (true) {
    const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    const int behind = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to = Loopback(port);
    if (client < 0 || connect(behind, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
      close(client);
      close(behind);
      continue;
    }
    std::thread(Copy, client, behind, &gate).detach();
    std::thread(Copy, behind, client, nullptr).detach();
  }
}

}  // namespace weir::bench

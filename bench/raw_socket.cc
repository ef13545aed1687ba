#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "bench/contestant.h"
#include "bench/memory.h"
#include "bench/process.h"
#include "common/base/status_macros.h"
#include "common/net/tcp.h"

namespace weir::bench {
namespace {

constexpr char kUnix[] = "abstract:";
// Windows start at multiples of this.
constexpr int64_t kUnit = 4096;

absl::Status SocketError(const char* what) { return absl::ErrnoToStatus(errno, what); }

// The client's first bytes on a connection. The connection carries the gradient of [begin, end) and brings
// back the weights, in windows: first the window at `start`, and after the last window those from `begin` on.
struct Hello {
  int64_t begin, end, start, window;
  char congestion_control[16];
};

// Called on both ends of a connection.
void Tune(int fd, const std::string& congestion_control) {
  SetNoDelay(fd);
  if (!congestion_control.empty()) {
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion_control.data(), congestion_control.size());
  }
  // TCP adapts its buffers; a Unix socket's would stay at 208 KiB, which costs a third of the speed.
  int domain = 0;
  socklen_t size = sizeof domain;
  getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  const int buffer = 2 << 20;
  if (domain == AF_UNIX) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
}

class RawServer : public StepServer {
 public:
  RawServer(const Contestant& contestant, int64_t elements, UniqueFd listener, std::string address)
      : listener_(std::move(listener)),
        address_(std::move(address)),
        parameters_(contestant.optimizer, elements),
        windows_(elements / kUnit + 1) {
    std::thread([this] {
      while (true) std::thread([this, fd = Accept(listener_)] { Serve(fd.get()); }).detach();
    }).detach();
  }
  // The server ends with its process.
  ~RawServer() override { _exit(0); }
  std::string address() const override { return address_; }
  pid_t pid() const override { return getpid(); }

 private:
  void Serve(int fd) {
    Hello hello;
    if (!Receive(fd, &hello, sizeof hello)) return;
    Tune(fd, hello.congestion_control);
    Tensor gradient(hello.window, 0);
    for (int64_t first = hello.start;;) {
      const int64_t n = std::min(hello.window, hello.end - first);
      if (!Receive(fd, gradient.data(), n * sizeof(float))) return;
      Window& window = windows_[first / kUnit];
      {
        // Holds the lock until the window is sent, because another worker's gradient would change the window.
        std::lock_guard<std::mutex> lock(window.mutex);
        const float* weights = parameters_.Apply(first, n, gradient.data(), window.version);
        window.version = 1 - window.version;
        if (!Send(fd, weights, n * sizeof(float))) return;
      }
      first = first + n == hello.end ? hello.begin : first + n;
    }
  }

  struct Window {
    std::mutex mutex;
    int version = 0;
  };
  const UniqueFd listener_;
  const std::string address_;
  const Parameters parameters_;
  std::deque<Window> windows_;  // by first element / kUnit
};

struct Connection {
  UniqueFd fd;
  Hello hello;
  const char* gradient;  // of the server's first element
  char* weights;
  // The progress of this step, in bytes, counted from `start` on.
  int64_t sent = 0, received = 0;

  int64_t bytes() const { return (hello.end - hello.begin) * sizeof(float); }
  // Returns the offset of the byte after the first `done`, and how many bytes from there are in one piece.
  std::pair<int64_t, int64_t> Piece(int64_t done) const {
    const int64_t start = (hello.start - hello.begin) * sizeof(float);
    const int64_t offset = (start + done) % bytes();
    return {hello.begin * sizeof(float) + offset, std::min(bytes() - done, bytes() - offset)};
  }
};

class RawClient : public StepClient {
 public:
  explicit RawClient(const Contestant& contestant) : contestant_(contestant), tensors_(contestant.elements) {}

  absl::Status Connect(int index, const std::vector<std::string>& addresses) {
    for (int thread = 0; thread < contestant_.connections; ++thread) {
      std::vector<Connection> connections;
      for (size_t server = 0; server < addresses.size(); ++server) {
        const auto [first, last] = PartOf(contestant_.elements, server, addresses.size());
        const int64_t window = std::min<int64_t>(
            std::max<int64_t>(contestant_.window_bytes / sizeof(float) / kUnit, 1) * kUnit, last - first);
        const int64_t windows = (last - first + window - 1) / window;
        const auto [begin, end] = PartOf(windows, thread, contestant_.connections);
        if (begin == end) continue;
        Connection connection{};
        connection.hello.begin = begin * window;
        connection.hello.end = std::min(end * window, last - first);
        // Workers follow one another, and do not start at the same window.
        connection.hello.start = (begin + (end - begin) * index / contestant_.clients) * window;
        connection.hello.window = window;
        std::strncpy(connection.hello.congestion_control, contestant_.congestion_control.c_str(), 15);
        connection.gradient = reinterpret_cast<const char*>(tensors_.gradient.data() + first);
        connection.weights = reinterpret_cast<char*>(tensors_.weights.data() + first);
        WEIR_ASSIGN_OR_RETURN(connection.fd, Dial(addresses[server]));
        if (!Send(connection.fd.get(), &connection.hello, sizeof connection.hello))
          return SocketError("send");
        connections.push_back(std::move(connection));
      }
      // A small gradient has fewer windows than connections.
      if (!connections.empty()) threads_.push_back(std::move(connections));
    }
    return absl::OkStatus();
  }

  absl::Status Step() override {
    std::vector<std::thread> others;
    std::vector<absl::Status> statuses(threads_.size());
    for (size_t i = 1; i < threads_.size(); ++i) {
      others.emplace_back([this, &statuses, i] { statuses[i] = Exchange(threads_[i]); });
    }
    statuses[0] = Exchange(threads_[0]);
    for (std::thread& thread : others) thread.join();
    for (const absl::Status& status : statuses) {
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<UniqueFd> Dial(const std::string& address) const {
    if (absl::StartsWith(address, kUnix)) {
      UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_un to{AF_UNIX, {}};
      const std::string name = address.substr(std::strlen(kUnix));
      std::memcpy(to.sun_path + 1, name.data(), name.size());
      const socklen_t size = offsetof(sockaddr_un, sun_path) + 1 + name.size();
      Tune(fd.get(), "");
      if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), size) != 0) return SocketError("connect");
      return fd;
    }
    return DialTcp(address, [this](int fd) { Tune(fd, contestant_.congestion_control); });
  }

  // A step on a thread's connections: sends as long as the windows in flight allow, and receives meanwhile.
  absl::Status Exchange(std::vector<Connection>& connections) {
    std::vector<pollfd> polls(connections.size());
    for (Connection& c : connections) c.sent = c.received = 0;
    while (true) {
      bool done = true, moved = false;
      for (size_t i = 0; i < connections.size(); ++i) {
        Connection& c = connections[i];
        const int64_t flight =
            contestant_.windows_in_flight * c.hello.window * static_cast<int64_t>(sizeof(float));
        const int64_t allowed = std::min(c.bytes(), c.received + flight);
        polls[i] = {c.fd.get(), POLLIN, 0};
        if (c.sent < allowed) {
          const auto [at, piece] = c.Piece(c.sent);
          const ssize_t n = send(c.fd.get(), c.gradient + at, std::min(piece, allowed - c.sent),
                                 MSG_DONTWAIT | MSG_NOSIGNAL);
          if (n < 0 && errno != EAGAIN) return SocketError("send");
          if (n > 0) c.sent += n, moved = true;
          if (n < 0) polls[i].events |= POLLOUT;
        }
        if (c.received < c.bytes()) {
          done = false;
          const auto [at, piece] = c.Piece(c.received);
          const ssize_t n = recv(c.fd.get(), c.weights + at, std::min(piece, c.bytes()), MSG_DONTWAIT);
          if (n == 0) return absl::UnavailableError("the server closed the connection");
          if (n < 0 && errno != EAGAIN) return SocketError("recv");
          if (n > 0) c.received += n, moved = true;
        } else {
          polls[i].fd = -1;
        }
      }
      if (done) return absl::OkStatus();
      if (!moved) poll(polls.data(), polls.size(), -1);
    }
  }

  const Contestant contestant_;
  WorkerTensors tensors_;
  std::vector<std::vector<Connection>> threads_;  // each thread has a connection to every server
};

absl::StatusOr<std::unique_ptr<StepServer>> StartServer(const Contestant& contestant, int index,
                                                        const std::string& host) {
  const auto [first, last] = PartOf(contestant.elements, index, contestant.servers);
  if (contestant.transport != "unix") {
    WEIR_ASSIGN_OR_RETURN(UniqueFd listener, ListenTcp(host, 0));
    const std::string address = absl::StrCat(host, ":", PortOf(listener));
    return std::make_unique<RawServer>(contestant, last - first, std::move(listener), address);
  }
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // The kernel chooses an abstract name.
  sockaddr_un name{AF_UNIX, {}};
  socklen_t size = sizeof name;
  auto* const address = reinterpret_cast<sockaddr*>(&name);
  if (bind(listener.get(), address, sizeof name.sun_family) != 0) return SocketError("bind");
  if (listen(listener.get(), 64) != 0) return SocketError("listen");
  getsockname(listener.get(), address, &size);
  return std::make_unique<RawServer>(
      contestant, last - first, std::move(listener),
      kUnix + std::string(name.sun_path + 1, size - offsetof(sockaddr_un, sun_path) - 1));
}

absl::StatusOr<std::unique_ptr<StepClient>> ConnectClient(const Contestant& contestant, int index,
                                                          const std::vector<std::string>& addresses) {
  auto client = std::make_unique<RawClient>(contestant);
  WEIR_RETURN_IF_ERROR(client->Connect(index, addresses));
  return client;
}

}  // namespace

Kind RawSockets() { return {StartServer, ConnectClient}; }

}  // namespace weir::bench

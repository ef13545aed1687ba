#include "bench/process.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace weir::bench {

bool Receive(int fd, void* to, size_t bytes) {
  for (char* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t n = recv(fd, at, bytes, MSG_WAITALL);
    if (n <= 0) return false;
    at += n;
    bytes -= n;
  }
  return true;
}

bool Send(int fd, const void* from, size_t bytes) {
  for (const char* at = static_cast<const char*>(from); bytes > 0;) {
    const ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    bytes -= n;
  }
  return true;
}

void SetNoDelay(int fd) {
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

absl::StatusOr<UniqueFd> DialTcp(const std::string& address, const std::function<void(int)>& tune) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos)
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not HOST:PORT"));
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(address.substr(0, colon).c_str(), address.substr(colon + 1).c_str(), &hints, &found) != 0) {
    return absl::NotFoundError(absl::StrCat(address, " does not resolve"));
  }
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  tune(fd.get());
  const int rc = connect(fd.get(), found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  if (rc != 0) return absl::ErrnoToStatus(errno, "connect");
  return fd;
}

UniqueFd Accept(const UniqueFd& listener) {
  while (true) {
    pollfd waiting{listener.get(), POLLIN, 0};
    poll(&waiting, 1, -1);
    UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.valid()) return fd;
  }
}

absl::Status Control::Send(const nlohmann::json& message) {
  const std::string line = message.dump() + "\n";
  if (!bench::Send(fd_.get(), line.data(), line.size()))
    return absl::UnavailableError("the other process has gone");
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> Control::Receive(std::chrono::steady_clock::time_point deadline) {
  using std::chrono::steady_clock;
  size_t end;
  while ((end = received_.find('\n')) == std::string::npos) {
    int wait = -1;
    if (deadline != steady_clock::time_point::max()) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now());
      wait = static_cast<int>(std::max<int64_t>(0, left.count()));
    }
    pollfd entry = {fd_.get(), POLLIN, 0};
    if (poll(&entry, 1, wait) == 0) return absl::DeadlineExceededError("the other process takes too long");
    char buffer[65536];
    const ssize_t n = recv(fd_.get(), buffer, sizeof buffer, 0);
    if (n <= 0) return absl::UnavailableError("the other process has gone");
    received_.append(buffer, n);
  }
  nlohmann::json message = nlohmann::json::parse(received_.begin(), received_.begin() + end, nullptr, false);
  received_.erase(0, end + 1);
  if (!message.is_object())
    return absl::InvalidArgumentError("the other process does not speak this benchmark's language");
  if (message.contains("error")) return absl::InternalError(message["error"].dump());
  return message;
}

absl::StatusOr<nlohmann::json> Control::Call(const nlohmann::json& message) {
  const absl::Status sent = Send(message);
  if (!sent.ok()) return sent;
  return Receive();
}

absl::StatusOr<std::unique_ptr<Child>> Child::Fork(const std::function<absl::Status(Control&)>& body) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return absl::ErrnoToStatus(errno, "socketpair");
  std::fflush(nullptr);
  const pid_t parent = getpid(), pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "fork");
  if (pid > 0) {
    close(ends[1]);
    return std::unique_ptr<Child>(new Child(pid, UniqueFd(ends[0])));
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent had ended before
  close(ends[0]);
  Control control{UniqueFd(ends[1])};
  const absl::Status status = body(control);
  if (!status.ok()) (void)control.Send({{"error", std::string(status.message())}});
  std::fflush(nullptr);
  _exit(status.ok() ? 0 : 1);
}

Child::~Child() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

absl::StatusOr<Usage> UsageOf(pid_t pid) {
  Usage usage;
  clockid_t clock;
  timespec cpu;
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &cpu) != 0) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " has gone"));
  }
  usage.cpu_seconds = static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9;
  std::ostringstream stat;
  stat << std::ifstream(absl::StrCat("/proc/", pid, "/stat")).rdbuf();
  // Fields are counted after the name, which stands in brackets: state is the 3rd, minflt the 10th.
  const std::string text = stat.str();
  const std::vector<std::string> fields = absl::StrSplit(text.substr(text.rfind(')') + 1), ' ');
  if (fields.size() < 9 || !absl::SimpleAtoi(fields[8], &usage.minor_faults)) {
    return absl::InternalError(absl::StrCat("/proc/", pid, "/stat is not understood: ", text));
  }
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    long long kib;
    if (std::sscanf(line.c_str(), "VmHWM: %lld kB", &kib) == 1) usage.peak_resident_bytes = kib * 1024;
    if (std::sscanf(line.c_str(), "VmRSS: %lld kB", &kib) == 1) usage.resident_bytes = kib * 1024;
  }
  return usage;
}

}  // namespace weir::bench

#include "common/rpc/grpc_socket_options.h"

#include <errno.h>
#include <grpc/support/sync.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/server_builder_option.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include <cstddef>
#include <fstream>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/net/local_socket.h"
#include "common/system/unique_fd.h"
#include "common/telemetry/logging.h"

// gRPC lets a channel's owner set options of its sockets through an object of these types. The library
// exports the functions, but its packages have no header with the types; these are those of gRPC 1.36 to 1.51
// (src/core/lib/iomgr/socket_mutator.h). Names and layout must stay as they are: they are the library's ABI.
// A test checks that the options arrive at the sockets.
enum grpc_fd_usage {
  GRPC_FD_CLIENT_CONNECTION_USAGE,
  GRPC_FD_SERVER_LISTENER_USAGE,
  GRPC_FD_SERVER_CONNECTION_USAGE,
};
struct grpc_mutate_socket_info {
  int fd;
  grpc_fd_usage usage;
};
struct grpc_socket_mutator_vtable {
  bool (*mutate_fd)(int fd, grpc_socket_mutator* mutator);
  int (*compare)(grpc_socket_mutator* a, grpc_socket_mutator* b);
  void (*destroy)(grpc_socket_mutator* mutator);
  // Called instead of mutate_fd if it is set. A client's socket is not connected yet at this time.
  bool (*mutate_fd_2)(const grpc_mutate_socket_info* info, grpc_socket_mutator* mutator);
};
struct grpc_socket_mutator {
  const grpc_socket_mutator_vtable* vtable;
  gpr_refcount refcount;
};
// Sets the count of references to 1.
void grpc_socket_mutator_init(grpc_socket_mutator* mutator, const grpc_socket_mutator_vtable* vtable);

static_assert(sizeof(grpc_mutate_socket_info) == 8 && offsetof(grpc_mutate_socket_info, usage) == 4);
static_assert(sizeof(grpc_socket_mutator_vtable) == 32 &&
              offsetof(grpc_socket_mutator_vtable, mutate_fd_2) == 24);
static_assert(sizeof(grpc_socket_mutator) == 16 && offsetof(grpc_socket_mutator, refcount) == 8);
static_assert(std::is_standard_layout_v<grpc_socket_mutator>);

namespace weir {
namespace {

constexpr char kAuto[] = "auto";
// The versions 1.x of gRPC that have the types above.
constexpr int kFirstMinor = 36, kLastMinor = 51;
constexpr int kUnixSendBytes = 4 << 20;
// By preference, for connections that stay on this machine.
constexpr const char* kLocalChoices[] = {"cubic", "reno"};

absl::Status Apply(int fd, const std::string& name) {
  if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, name);
}

std::string ReadLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Checks that this user may choose this congestion control.
absl::Status Check(const std::string& name) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) fd = UniqueFd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "cannot make a TCP socket");
  const absl::Status applied = Apply(fd.get(), name);
  if (applied.ok()) return applied;
  return absl::FailedPreconditionError(absl::StrCat(
      "congestion control \"", name, "\" ",
      absl::IsPermissionDenied(applied) ? "is not allowed to this user" : "is not known to this kernel",
      "; every user may choose: ", ReadLine("/proc/sys/net/ipv4/tcp_allowed_congestion_control"),
      "; root: ", ReadLine("/proc/sys/net/ipv4/tcp_available_congestion_control")));
}

// What "auto" means for a connection that stays on this machine. Empty: keep the system's.
std::string LocalChoice() {
  for (const char* name : kLocalChoices) {
    if (Check(name).ok()) return name;
  }
  return "";
}

// What one channel wants of its sockets. gRPC counts the references.
struct SocketOptions {
  grpc_socket_mutator base;  // first: gRPC knows the object by it
  std::string congestion_control;

  static bool Mutate(const grpc_mutate_socket_info* info, grpc_socket_mutator* mutator) {
    const auto* self = reinterpret_cast<const SocketOptions*>(mutator);
    int domain = 0;
    socklen_t length = sizeof(domain);
    if (getsockopt(info->fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) return true;
    if (domain == AF_UNIX) SetUnixSocketOptions(info->fd);
    if (domain != AF_INET && domain != AF_INET6) return true;
    if (self->congestion_control.empty()) return true;
    return Apply(info->fd, self->congestion_control).ok();
  }
  static bool MutateWithoutUsage(int, grpc_socket_mutator*) { return true; }
  static int Compare(grpc_socket_mutator* a, grpc_socket_mutator* b) {
    const auto* left = reinterpret_cast<const SocketOptions*>(a);
    const auto* right = reinterpret_cast<const SocketOptions*>(b);
    return left->congestion_control.compare(right->congestion_control);
  }
  static void Destroy(grpc_socket_mutator* mutator) { delete reinterpret_cast<SocketOptions*>(mutator); }

  // The caller owns the only reference.
  static grpc_socket_mutator* New(const std::string& congestion_control) {
    static const grpc_socket_mutator_vtable kVtable = {MutateWithoutUsage, Compare, Destroy, Mutate};
    auto* self = new SocketOptions{{}, congestion_control};
    grpc_socket_mutator_init(&self->base, &kVtable);
    return &self->base;
  }
};

// Whether the gRPC that was loaded takes SocketOptions; warns once if it does not.
bool GrpcTakesOptions() {
  static const bool takes = [] {
    if (KnowsSocketsOf(grpc::Version())) return true;
    LogWarning("gRPC is of version ", grpc::Version(),
               ", and Weir knows how to set options of sockets from 1.", kFirstMinor, " to 1.", kLastMinor,
               ": wire.congestion_control has no effect on what clients send, and Unix sockets are slower");
    return false;
  }();
  return takes;
}

class Option final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments* arguments) override {
    if (GrpcTakesOptions()) arguments->SetSocketMutator(SocketOptions::New(""));
  }
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>*) override {}
};

}  // namespace

bool KnowsSocketsOf(absl::string_view grpc_version) {
  const std::vector<absl::string_view> numbers = absl::StrSplit(grpc_version, '.');
  int minor = 0;
  return numbers.size() >= 2 && numbers[0] == "1" && absl::SimpleAtoi(numbers[1], &minor) &&
         minor >= kFirstMinor && minor <= kLastMinor;
}

absl::Status SetSocketOptions(const std::string& congestion_control, const Address& server,
                              grpc::ChannelArguments* arguments) {
  const bool choose = congestion_control == kAuto;
  if (!choose) WEIR_RETURN_IF_ERROR(Check(congestion_control));
  if (choose && !server.is_unix() && !IsThisHost(server)) return absl::OkStatus();
  if (GrpcTakesOptions()) {
    arguments->SetSocketMutator(SocketOptions::New(choose ? LocalChoice() : congestion_control));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::function<void(int fd)>> OptionsOfAccepted(const std::string& congestion_control) {
  const bool choose = congestion_control == kAuto;
  if (!choose) WEIR_RETURN_IF_ERROR(Check(congestion_control));
  return [choose, name = choose ? LocalChoice() : congestion_control](int fd) {
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    if (name.empty()) return;
    if (choose) {
      sockaddr_storage peer{};
      socklen_t length = sizeof(peer);
      if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || !IsThisHost(peer)) return;
    }
    Apply(fd, name).IgnoreError();
  };
}

void SetUnixSocketOptions(grpc::ServerBuilder* builder) { builder->SetOption(std::make_unique<Option>()); }

void SetUnixSocketOptions(int fd) {
  // The system gives as much as it allows.
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kUnixSendBytes, sizeof(kUnixSendBytes));
}

}  // namespace weir

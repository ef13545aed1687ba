#include "common/grpc_socket_options.h"

#include <errno.h>
#include <grpc/support/sync.h>
#include <grpcpp/impl/server_builder_option.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include <cstddef>
#include <fstream>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/local_host.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

// gRPC lets a channel's owner set options of its sockets through an object of these types. The library
// exports the functions, but its packages have no header with the types; these are those of gRPC 1.36 to 1.51
// (src/core/lib/iomgr/socket_mutator.h). Names and layout must stay as they are: they are the library's ABI.
// A test sees that what is set here arrives at the sockets.
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
  // Instead of mutate_fd where it is set. A client's socket is not connected yet when it comes here.
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

// Whether this user may choose it.
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

// What "auto" means for a connection that stays on this machine. Empty: the system's.
std::string LocalChoice() {
  for (const char* name : kLocalChoices) {
    if (Check(name).ok()) return name;
  }
  return "";
}

// What one channel or server wants of its sockets. gRPC counts the references.
struct CongestionControl {
  grpc_socket_mutator base;  // first: gRPC knows the object by it
  std::string name;
  bool only_local;

  static bool Mutate(const grpc_mutate_socket_info* info, grpc_socket_mutator* mutator) {
    const auto* self = reinterpret_cast<const CongestionControl*>(mutator);
    // What a listening socket has would be inherited wherever the client is.
    if (info->usage == GRPC_FD_SERVER_LISTENER_USAGE) return true;
    int domain = 0;
    socklen_t length = sizeof(domain);
    if (getsockopt(info->fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) return true;
    if (domain != AF_INET && domain != AF_INET6) return true;
    if (self->only_local && info->usage == GRPC_FD_SERVER_CONNECTION_USAGE) {
      sockaddr_storage peer{};
      length = sizeof(peer);
      if (getpeername(info->fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return true;
      if (!IsThisHost(peer)) return true;
    }
    return Apply(info->fd, self->name).ok();
  }
  static bool MutateWithoutUsage(int, grpc_socket_mutator*) { return true; }
  static int Compare(grpc_socket_mutator* a, grpc_socket_mutator* b) {
    const auto* left = reinterpret_cast<const CongestionControl*>(a);
    const auto* right = reinterpret_cast<const CongestionControl*>(b);
    const int names = left->name.compare(right->name);
    return names != 0 ? names : static_cast<int>(left->only_local) - static_cast<int>(right->only_local);
  }
  static void Destroy(grpc_socket_mutator* mutator) { delete reinterpret_cast<CongestionControl*>(mutator); }

  // Its one reference is the caller's.
  static grpc_socket_mutator* New(const std::string& name, bool only_local) {
    static const grpc_socket_mutator_vtable kVtable = {MutateWithoutUsage, Compare, Destroy, Mutate};
    auto* self = new CongestionControl{{}, name, only_local};
    grpc_socket_mutator_init(&self->base, &kVtable);
    return &self->base;
  }
};

class Option final : public grpc::ServerBuilderOption {
 public:
  Option(std::string name, bool only_local) : name_(std::move(name)), only_local_(only_local) {}
  void UpdateArguments(grpc::ChannelArguments* arguments) override {
    arguments->SetSocketMutator(CongestionControl::New(name_, only_local_));
  }
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>*) override {}

 private:
  const std::string name_;
  const bool only_local_;
};

}  // namespace

absl::Status SetCongestionControl(const std::string& name, const Address& server,
                                  grpc::ChannelArguments* arguments) {
  if (name != kAuto) WEIR_RETURN_IF_ERROR(Check(name));
  if (server.is_unix() || (name == kAuto && !IsThisHost(server))) return absl::OkStatus();
  const std::string choice = name == kAuto ? LocalChoice() : name;
  if (!choice.empty()) arguments->SetSocketMutator(CongestionControl::New(choice, /*only_local=*/false));
  return absl::OkStatus();
}

absl::Status SetCongestionControl(const std::string& name, grpc::ServerBuilder* builder) {
  if (name != kAuto) WEIR_RETURN_IF_ERROR(Check(name));
  const std::string choice = name == kAuto ? LocalChoice() : name;
  if (!choice.empty()) builder->SetOption(std::make_unique<Option>(choice, name == kAuto));
  return absl::OkStatus();
}

}  // namespace weir

#include "ps_server/grpc/grpc_admission.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/net/local_socket.h"
#include "common/net/tcp.h"
#include "common/rpc/grpc_convert.h"
#include "common/rpc/grpc_credentials.h"
#include "common/system/clock.h"

namespace weir {
namespace {

// ---- the process at the other end of a connection

// The value in <netinet/tcp.h>; the tables contain it in hexadecimal.
constexpr unsigned kEstablished = 1;

// IPv4 addresses are mapped to IPv6, so that all ends have one form.
struct End {
  in6_addr ip{};
  uint16_t port = 0;

  bool operator==(const End& other) const {
    return port == other.port && memcmp(&ip, &other.ip, sizeof(ip)) == 0;
  }
};

End MappedIpv4(const in_addr& ip, uint16_t port) {
  End end;
  end.ip.s6_addr[10] = end.ip.s6_addr[11] = 0xff;
  memcpy(end.ip.s6_addr + 12, &ip, sizeof(ip));
  end.port = port;
  return end;
}

std::optional<End> ParsePeer(absl::string_view peer) {
  const bool ipv6 = absl::StartsWith(peer, "ipv6:");
  if (!ipv6 && !absl::StartsWith(peer, "ipv4:")) return std::nullopt;
  peer.remove_prefix(5);
  const size_t colon = peer.rfind(':');
  uint32_t port = 0;
  if (colon == peer.npos || !absl::SimpleAtoi(peer.substr(colon + 1), &port) || port > 65535) {
    return std::nullopt;
  }
  // gRPC escapes brackets and a scope.
  std::string host = absl::StrReplaceAll(peer.substr(0, colon),
                                         {{"%5B", ""}, {"%5D", ""}, {"%25", "%"}, {"[", ""}, {"]", ""}});
  host = host.substr(0, host.find('%'));
  if (in_addr v4; inet_pton(AF_INET, host.c_str(), &v4) == 1) {
    return MappedIpv4(v4, static_cast<uint16_t>(port));
  }
  End end;
  end.port = static_cast<uint16_t>(port);
  if (inet_pton(AF_INET6, host.c_str(), &end.ip) != 1) return std::nullopt;
  return end;
}

// "0100007F:1F90": each 32 bits of the address, in this processor's byte order.
std::optional<End> ParseTableEnd(absl::string_view text) {
  const size_t colon = text.find(':');
  uint32_t port = 0;
  if (colon == text.npos || !absl::SimpleHexAtoi(text.substr(colon + 1), &port)) return std::nullopt;
  std::array<uint32_t, 4> words{};
  const size_t count = colon / 8;
  if (colon % 8 != 0 || (count != 1 && count != 4)) return std::nullopt;
  for (size_t i = 0; i < count; ++i) {
    if (!absl::SimpleHexAtoi(text.substr(8 * i, 8), &words[i])) return std::nullopt;
  }
  if (count == 1) {
    in_addr v4;
    memcpy(&v4, words.data(), sizeof(v4));
    return MappedIpv4(v4, static_cast<uint16_t>(port));
  }
  End end;
  end.port = static_cast<uint16_t>(port);
  memcpy(&end.ip, words.data(), sizeof(end.ip));
  return end;
}

sockaddr_storage SocketAddress(const End& end) {
  sockaddr_storage storage{};
  auto* const address = reinterpret_cast<sockaddr_in6*>(&storage);
  address->sin6_family = AF_INET6;
  address->sin6_addr = end.ip;
  return storage;
}

// Checks that the process at the other end of a TCP connection belongs to this user or to root, as far as
// this machine can tell.
//
// `peer` is the address of the other end as gRPC writes it ("ipv4:127.0.0.1:4711", "ipv6:%5B::1%5D:4711"),
// `port` the port of this end. PermissionDenied: the process is on this machine and belongs to another user,
// or is gone. OK: the process belongs to this user or to root, or the function cannot find the user, since
// the process is on another host or in another network namespace, or `peer` is no TCP address.
//
// Reads /proc/net/tcp and /proc/net/tcp6 for the connection's other socket. This is slow with many
// connections.
absl::Status CheckTcpPeer(const std::string& peer, uint16_t port) {
  const std::optional<End> other = ParsePeer(peer);
  if (!other.has_value()) return absl::OkStatus();
  bool ours = false;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream rows(table);
    for (std::string row; std::getline(rows, row);) {
      char local[48] = "", remote[48] = "";
      unsigned state = 0, user = 0;
      unsigned long inode = 0;
      // sl local remote state queues timer retransmits uid timeout inode
      if (sscanf(row.c_str(), "%*s %47s %47s %x %*s %*s %*s %u %*s %lu", local, remote, &state, &user,
                 &inode) != 5) {
        continue;
      }
      const std::optional<End> from = ParseTableEnd(local), to = ParseTableEnd(remote);
      if (!from.has_value() || !to.has_value() || !(*from == *other) || to->port != port) continue;
      // A socket that its process has closed is listed under user 0, whatever its user was.
      if (state != kEstablished || inode == 0) continue;
      if (user != 0 && user != geteuid()) {
        return absl::PermissionDeniedError(
            absl::StrCat("the caller's process is user ", user, "'s; without a token only user ", geteuid(),
                         " and root may do this. Give the job one (--token_file=FILE)"));
      }
      ours = true;
    }
  }
  if (ours || !IsThisHost(SocketAddress(*other))) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("the caller at ", peer, " is gone, so that the owner of its process is not known"));
}

// The host of such a peer (HostOf()). If `peer` is no TCP address, returns the text of `peer`.
std::string HostOfPeer(const std::string& peer) {
  const std::optional<End> end = ParsePeer(peer);
  if (!end.has_value()) return peer;
  const sockaddr_storage address = SocketAddress(*end);
  return HostOf(IpOf(reinterpret_cast<const sockaddr*>(&address)));
}

// ---- refusals

constexpr std::chrono::seconds kRefusalHolds{1};
constexpr char kTable[] = " (docs/security.md says who may call what)";

grpc::Status Unauthenticated(const std::string& why) { return {grpc::StatusCode::UNAUTHENTICATED, why}; }
grpc::Status Denied(const std::string& why) {
  return {grpc::StatusCode::PERMISSION_DENIED, absl::StrCat(why, kTable)};
}

// The caller: its host and, with TLS, its identity.
std::string KeyOf(const std::string& peer, const std::optional<Identity>& caller) {
  return absl::StrCat(HostOfPeer(peer), caller.has_value() ? " " + caller->ToUri() : "");
}

}  // namespace

grpc::Status GrpcAdmission::Admit(const grpc::ServerContext& context, const RpcRule& rule,
                                  std::optional<Identity>* caller) {
  grpc::Status status = Check(context, rule, caller);
  if (status.ok() && rule.is_join) status = CheckRate(context, *caller);
  return Note(std::move(status), context, rule, *caller);
}

grpc::Status GrpcAdmission::AdmitMessage(const grpc::ServerContext& context, const RpcRule& rule,
                                         const std::optional<Identity>& caller, const Speaker& speaker,
                                         bool pushes) {
  if (!caller.has_value()) return grpc::Status::OK;
  grpc::Status status;
  if (pushes && !MayPush(caller->role)) {
    status = Denied(absl::StrCat(caller->ToUri(), " may pull, but not push"));
  } else if (rule.of(caller->role) == Access::kSelf && !SpeaksForItself(*caller, speaker)) {
    status = Denied(absl::StrCat(caller->ToUri(), " may not speak for ",
                                 Identity{job_, speaker.role, speaker.index}.ToUri()));
  }
  return Note(std::move(status), context, rule, caller);
}

grpc::Status GrpcAdmission::Check(const grpc::ServerContext& context, const RpcRule& rule,
                                  std::optional<Identity>* caller) {
  if (grpc::Status token = CheckToken(token_, context); !token.ok()) return token;
  if (job_.empty()) return rule.control && token_.empty() ? CheckUser(context) : grpc::Status::OK;
  absl::StatusOr<std::optional<Identity>> identity = CallerOf(context);
  if (!identity.ok()) {
    return Unauthenticated(absl::StrCat("the caller's certificate ", identity.status().message()));
  }
  *caller = *std::move(identity);
  if (!caller->has_value()) return grpc::Status::OK;  // on a Unix socket
  const Identity& who = **caller;
  if (who.job != job_) {
    return Unauthenticated(absl::StrCat("the caller's certificate is that of ", who.ToUri(),
                                        "; this is a server of job ", job_));
  }
  const Access access = rule.of(who.role);
  if (access == Access::kNo || (access == Access::kCoordinator && who.index != 0)) {
    return Denied(absl::StrCat(who.ToUri(), " may not call ", rule.method));
  }
  return grpc::Status::OK;
}

grpc::Status GrpcAdmission::CheckUser(const grpc::ServerContext& context) {
  const std::string peer = context.peer();
  const Clock::time_point now = Clock::now();
  {
    MutexLock lock(mutex_);
    const auto known = refusals_.find(peer);
    if (known != refusals_.end() && now < known->second.until) return known->second.status;
  }
  const absl::Status checked = CheckTcpPeer(peer, port_);
  if (checked.ok()) return grpc::Status::OK;
  MutexLock lock(mutex_);
  if (refusals_.size() >= kMostRefusals) refusals_.clear();
  refusals_[peer] = {now + kRefusalHolds, ToGrpc(checked)};
  return refusals_[peer].status;
}

grpc::Status GrpcAdmission::CheckRate(const grpc::ServerContext& context,
                                      const std::optional<Identity>& caller) {
  const std::string key = KeyOf(context.peer(), caller);
  MutexLock lock(mutex_);
  if (joins_.Take(key, weir::Clock::Awake().Now())) return grpc::Status::OK;
  limits_.Count(Limit::kJoins);
  return {grpc::StatusCode::UNAVAILABLE,
          absl::StrCat("more than ", joins_per_second_,
                       " Joins a second came from this caller (server.clients.joins_per_second); try again")};
}

grpc::Status GrpcAdmission::Note(grpc::Status status, const grpc::ServerContext& context, const RpcRule& rule,
                                 const std::optional<Identity>& caller) {
  if (status.ok()) return status;
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) ++unauthenticated_;
  if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED) ++denied_;
  const std::string peer = context.peer();
  const std::string key = KeyOf(peer, caller);
  std::optional<uint64_t> left_out;
  {
    MutexLock lock(mutex_);
    left_out = logged_.Due(key, weir::Clock::Awake().Now());
  }
  if (!left_out.has_value()) return status;
  LogWarning(
      "refused a call of ", std::string(rule.method), " from ", peer, ": ", status.error_message(),
      *left_out > 0 ? absl::StrCat("; and ", *left_out, " more of its calls in the minute before") : "");
  return status;
}

}  // namespace weir

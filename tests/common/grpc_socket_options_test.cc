#include "common/rpc/grpc_socket_options.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>

#include "catch2/catch.hpp"
#include "ps_server/grpc/grpc_listeners.h"
#include "tests/common/grpc_generic_call.h"
#include "tests/common/socket_folder.h"

namespace weir {
namespace {

constexpr int kSocketsLookedAt = 1024;
constexpr size_t kLongestName = 16;  // TCP_CA_NAME_MAX

Address At(const std::string& text) {
  const auto address = ParseAddress(text);
  REQUIRE(address.ok());
  return *address;
}

std::set<std::string> Words(const char* path) {
  std::ifstream file(path);
  std::set<std::string> words;
  for (std::string word; file >> word;) words.insert(word);
  return words;
}

std::string SystemDefault() { return *Words("/proc/sys/net/ipv4/tcp_congestion_control").begin(); }

// An algorithm that every user may choose and that is never chosen by default. Empty: there is none.
std::string Other() {
  for (const std::string& name : Words("/proc/sys/net/ipv4/tcp_allowed_congestion_control")) {
    if (name != SystemDefault()) return name;
  }
  return "";
}

// The algorithms of this process's connected TCP sockets whose own end (or else the other end) has the port.
std::set<std::string> CongestionControls(int port, bool own_end) {
  std::set<std::string> found;
  for (int fd = 0; fd < kSocketsLookedAt; ++fd) {
    sockaddr_storage own{}, peer{};
    socklen_t length = sizeof(own);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) != 0) continue;
    length = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    const sockaddr_storage& end = own_end ? own : peer;
    // The port has the same offset in both families.
    if (end.ss_family != AF_INET && end.ss_family != AF_INET6) continue;
    if (ntohs(reinterpret_cast<const sockaddr_in&>(end).sin_port) != port) continue;
    char name[kLongestName] = "";
    length = sizeof(name);
    if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0) found.insert(name);
  }
  return found;
}

// The send buffer sizes of this process's connected Unix sockets.
std::set<int> UnixSendBytes() {
  std::set<int> found;
  for (int fd = 0; fd < kSocketsLookedAt; ++fd) {
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0 || peer.ss_family != AF_UNIX)
      continue;
    int bytes = 0;
    length = sizeof(bytes);
    if (getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &length) == 0) found.insert(bytes);
  }
  return found;
}

// One call over a fresh connection, and the settings of its two ends.
struct Ends {
  std::set<std::string> client, server;
  std::set<int> unix_send_bytes;
};
Ends Connect(const std::string& for_client, const std::string& for_server, const std::string& listen) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  int port = 0;
  Address address = At(listen);
  LimitCounters counters;
  ConnectionLimits limits(ConnectionLimits::Most::Of(v1::ClientLimits(), 1000), &Clock::Real(), &counters);
  std::unique_ptr<GrpcTcpListener> listener;
  if (address.is_unix() || for_server.empty()) {
    if (!for_server.empty()) SetUnixSocketOptions(&builder);
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  } else {
    auto listening = GrpcTcpListener::Listen(address, for_server, 1000, &limits);
    REQUIRE(listening.ok());
    listener = *std::move(listening);
    listener->Register(grpc::InsecureServerCredentials(), &builder);
    port = listener->port();
  }
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  REQUIRE(server != nullptr);
  if (listener != nullptr) REQUIRE(listener->Start().ok());
  if (!address.is_unix()) address.port = static_cast<uint16_t>(port);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (!for_client.empty()) REQUIRE(SetSocketOptions(for_client, address, &arguments).ok());
  const auto channel =
      grpc::CreateCustomChannel(address.ToString(), grpc::InsecureChannelCredentials(), arguments);
  REQUIRE(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(20)));
  // The server has its end once it has answered.
  const grpc::Status status = CheckHealth(channel);
  INFO(status.error_message());
  REQUIRE(status.ok());
  Ends ends{CongestionControls(port, false), CongestionControls(port, true), UnixSendBytes()};
  listener = nullptr;
  server->Shutdown();
  return ends;
}

using Set = std::set<std::string>;

TEST_CASE("the named congestion control arrives at the sockets of the side that asked") {
  const std::string other = Other();
  if (other.empty()) {
    WARN("this system allows one congestion control only");
    return;
  }
  const Set chosen{other}, system{SystemDefault()};
  Ends ends = Connect(other, "", "127.0.0.1:0");
  CHECK(ends.client == chosen);
  CHECK(ends.server == system);
  ends = Connect("", other, "127.0.0.1:0");
  CHECK(ends.client == system);
  CHECK(ends.server == chosen);
  ends = Connect(other, other, "[::1]:0");
  CHECK(ends.client == chosen);
  CHECK(ends.server == chosen);
}

TEST_CASE("auto takes cubic or reno on this machine") {
  const Ends ends = Connect("auto", "auto", "127.0.0.1:0");
  REQUIRE(ends.client.size() == 1);
  CHECK(ends.client == ends.server);
  const std::string& chosen = *ends.client.begin();
  if (geteuid() == 0 && Words("/proc/sys/net/ipv4/tcp_available_congestion_control").count("cubic") != 0) {
    CHECK(chosen == "cubic");
  } else {
    CHECK((chosen == "cubic" || chosen == "reno"));
  }
}

TEST_CASE("auto leaves connections to other machines alone") {
  // Nothing is set: a channel to another machine shares the arguments of a default channel.
  grpc::ChannelArguments arguments;
  REQUIRE(SetSocketOptions("auto", At("192.0.2.1:2222"), &arguments).ok());
  CHECK(arguments.c_channel_args().num_args == grpc::ChannelArguments().c_channel_args().num_args);
  REQUIRE(SetSocketOptions("auto", At("127.0.0.1:2222"), &arguments).ok());
  CHECK(arguments.c_channel_args().num_args == grpc::ChannelArguments().c_channel_args().num_args + 1);
}

// The send buffer of a socket that asks for 4 MiB. The kernel doubles the value.
std::set<int> MostUnixSendBytes() {
  return {2 * std::min(std::stoi(*Words("/proc/sys/net/core/wmem_max").begin()), 4 << 20)};
}

TEST_CASE("Both ends of a Unix socket may send as much as the system lets them") {
  const std::set<int> wanted = MostUnixSendBytes();
  const SocketFolder folder;
  const std::string path = folder.path() + "/g";
  CHECK(Connect("auto", "auto", "unix:" + path).unix_send_bytes == wanted);
  const std::string other = Other();
  if (!other.empty()) CHECK(Connect(other, other, "unix:" + path).unix_send_bytes == wanted);
}

TEST_CASE("A Unix socket that is handed over may, too") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  for (int fd : ends) SetUnixSocketOptions(fd);
  const std::set<int> found = UnixSendBytes();
  for (int fd : ends) close(fd);
  CHECK(found == MostUnixSendBytes());
}

TEST_CASE("an unknown name is refused with those there are") {
  grpc::ChannelArguments arguments;
  for (const absl::Status& status :
       {SetSocketOptions("vegas-9", At("127.0.0.1:1"), &arguments),
        SetSocketOptions("vegas-9", At("unix:/x"), &arguments), OptionsOfAccepted("vegas-9").status()}) {
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(status.message().find("\"vegas-9\" is not known to this kernel") != std::string::npos);
    CHECK(status.message().find(*Words("/proc/sys/net/ipv4/tcp_allowed_congestion_control").begin()) !=
          std::string::npos);
  }
}

TEST_CASE("options are set only where the library's ABI is known") {
  CHECK(KnowsSocketsOf(grpc::Version()));
  for (const char* known : {"1.36.0", "1.51.1", "1.44"}) CHECK(KnowsSocketsOf(known));
  for (const char* other : {"1.35.9", "1.52.0", "2.40.0", "1", "", "1.x", "11.40.0"})
    CHECK_FALSE(KnowsSocketsOf(other));
}

}  // namespace
}  // namespace weir

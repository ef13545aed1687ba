#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include "catch2/catch.hpp"
#include "common/net/local_socket.h"
#include "ps_server/grpc/grpc_listeners.h"
#include "tests/common/grpc_generic_call.h"
#include "tests/common/open_descriptors.h"
#include "tests/skip.h"

namespace weir {
namespace {

using std::chrono::seconds;

absl::StatusOr<std::string> Target(const Address& address) {
  return LocalGrpcTarget(address, std::chrono::steady_clock::now() + seconds(20));
}

struct TestServer {
  explicit TestServer(const std::string& listen) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
    server = builder.BuildAndStart();
    REQUIRE(server != nullptr);
    address = ParseAddress(listen).value();
    address.port = static_cast<uint16_t>(port);
  }
  std::unique_ptr<grpc::Server> server;
  Address address;
};

std::shared_ptr<grpc::Channel> ChannelTo(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

TEST_CASE("a server is reached over its local socket, found by its address") {
  const std::string listen = GENERATE("127.0.0.1:0", "[::1]:0", "0.0.0.0:0");
  TestServer server(listen);
  Address address = server.address;
  if (listen == "0.0.0.0:0") address.host = "localhost";
  CHECK(absl::IsNotFound(Target(address).status()));
  auto listener = ServeLocalSocket(server.server.get(), server.address);
  REQUIRE(listener.ok());
  const auto target = Target(address);
  REQUIRE(target.ok());
  CHECK(target->find("unix-abstract:weir-grpc-") == 0);
  const auto channel = ChannelTo(*target);
  CHECK(CheckHealth(channel).ok());
  CHECK(CheckHealth(ChannelTo(*target)).ok());

  // Open connections stay when the listener accepts no more.
  listener->reset();
  CHECK(absl::IsNotFound(Target(address).status()));
  CHECK(CheckHealth(channel).ok());
  server.server->Shutdown();
  CHECK(CheckHealth(channel).error_code() == grpc::StatusCode::UNAVAILABLE);
}

TEST_CASE("clients that leave take their descriptors along") {
  TestServer server("127.0.0.1:0");
  auto listener = ServeLocalSocket(server.server.get(), server.address);
  REQUIRE(listener.ok());
  const std::string target = Target(server.address).value();
  CHECK(CheckHealth(ChannelTo(target)).ok());
  const int before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) CHECK(CheckHealth(ChannelTo(target)).ok());
  // gRPC closes them later.
  const auto deadline = std::chrono::steady_clock::now() + seconds(20);
  while (OpenDescriptors() > before + 2 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(OpenDescriptors() <= before + 2);
}

// Whether the server at this address sends anything to a process that connects to its local socket. For a
// child of fork(): without gRPC.
bool IsGreeted(const Address& address) {
  const auto socket =
      ConnectLocal(LocalService::kGrpc, address, std::chrono::steady_clock::now() + seconds(20));
  if (!socket.ok()) return false;
  pollfd entry{socket->get(), POLLIN, 0};
  char byte = 0;
  return poll(&entry, 1, 20'000) == 1 && recv(socket->get(), &byte, 1, 0) == 1;
}

TEST_CASE("another user's process is not let in") {
  if (geteuid() != 0) {
    SaySkipped("only root can become another user");
    return;
  }
  TestServer server("127.0.0.1:0");
  auto listener = ServeLocalSocket(server.server.get(), server.address);
  REQUIRE(listener.ok());
  const auto greeted_as = [&](uid_t user) {
    const pid_t child = fork();
    if (child == 0) _exit(setuid(user) != 0 ? 2 : IsGreeted(server.address) ? 1 : 0);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    return WEXITSTATUS(status);
  };
  CHECK(greeted_as(0) == 1);
  CHECK(greeted_as(65534) == 0);
  CHECK(CheckHealth(ChannelTo(Target(server.address).value())).ok());
}

}  // namespace
}  // namespace weir

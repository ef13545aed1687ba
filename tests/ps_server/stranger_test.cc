// What somebody costs a server who can reach it and may call nothing.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "catch2/catch.hpp"
#include "common/protocol/limits.h"
#include "common/rpc/job_token.h"
#include "ps_server/process/server_ports.h"
#include "tests/ps_server/http2_client.h"
#include "tests/ps_server/server_fixture.h"

namespace weir {
namespace {

using Catch::Contains;

// The beginning of a message of 4 MiB.
std::string HalfMessage() { return std::string("\x00\x00\x40\x00\x00", 5) + std::string(100, 'x'); }

TEST_CASE("A call without the token is refused when its head has come") {
  ServerFixture f;
  f.token = JobToken::Random().value();
  f.Start();
  Http2Client client(f.port());
  REQUIRE(client.Call("weir.v1.Coordinator/Status"));
  REQUIRE(client.Send({Http2Client::kData, 0, 1, HalfMessage()}));
  Http2Client::Frame answer;
  const auto begin = std::chrono::steady_clock::now();
  REQUIRE(client.Receive(Http2Client::kHeaders, &answer));
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(18));
  CHECK((answer.flags & Http2Client::kEndStream) != 0);
  CHECK_THAT(answer.payload, Contains("this job has a token"));
}

TEST_CASE("A request that does not come whole is waited for 20 s") {
  ServerFixture f;
  f.Start();
  struct Late {
    const char* method;
    std::string begin;  // of the message
    Http2Client::Frame answer;
    bool answered = false;
  };
  std::deque<Late> calls = {{"weir.v1.Coordinator/Status", HalfMessage(), {}},
                            {"weir.v1.ParameterServer/ReadRows", "", {}},
                            {"grpc.health.v1.Health/Check", HalfMessage(), {}},
                            {"grpc.health.v1.Health/Watch", "", {}}};
  std::vector<std::thread> clients;
  for (Late& call : calls) {
    clients.emplace_back([&call, port = f.port()] {
      Http2Client client(port);
      client.Call(call.method);
      if (!call.begin.empty()) client.Send({Http2Client::kData, 0, 1, call.begin});
      call.answered = client.Receive(Http2Client::kHeaders, &call.answer);
    });
  }
  for (std::thread& client : clients) client.join();
  for (const Late& call : calls) {
    INFO(call.method);
    CHECK(call.answered);
    CHECK((call.answer.flags & Http2Client::kEndStream) != 0);
    CHECK_THAT(call.answer.payload, Contains("the request did not come within 20 s"));
  }
  v1::ClusterStatus status;
  CHECK(f.coordinator->Status(f.Context().get(), v1::StatusRequest(), &status).ok());
}

TEST_CASE("A compressed request is refused, whatever it would be") {
  ServerFixture f;
  f.Start();
  grpc::ChannelArguments arguments;
  arguments.SetCompressionAlgorithm(GRPC_COMPRESS_GZIP);
  const auto channel =
      grpc::CreateCustomChannel(f.cluster->addresses()[0], grpc::InsecureChannelCredentials(), arguments);
  v1::LeaveRequest leave;
  leave.set_reason(std::string(3 << 20, 'x'));
  v1::LeaveReply reply;
  const grpc::Status status = v1::Coordinator::NewStub(channel)->Leave(f.Context().get(), leave, &reply);
  INFO(status.error_message());
  CHECK(status.error_code() == grpc::StatusCode::UNIMPLEMENTED);
}

// Threads of this process.
int Threads() {
  std::ifstream status("/proc/self/status");
  int threads = -1;
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("Threads:", 0) == 0) REQUIRE(absl::SimpleAtoi(line.substr(8), &threads));
  }
  return threads;
}

TEST_CASE("Streams of reflection that are left open cost few threads") {
  constexpr int kStreams = 64;
  ServerFixture f;
  f.Start();
  grpc::GenericStub stub(grpc::CreateChannel(f.cluster->addresses()[0], grpc::InsecureChannelCredentials()));
  struct Stream {
    std::unique_ptr<grpc::ClientContext> context;
    std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call;
    grpc::Status status;
  };
  grpc::CompletionQueue queue;
  std::deque<Stream> streams(kStreams);
  const int before = Threads();
  for (Stream& stream : streams) {
    stream.context = f.Context();
    stream.call = stub.PrepareCall(stream.context.get(),
                                   "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
    stream.call->StartCall(nullptr);
    stream.call->Finish(&stream.status, &stream);
  }
  const auto next = [&]() -> Stream* {
    void* tag = nullptr;
    bool ok = false;
    do {
      REQUIRE(queue.Next(&tag, &ok));
    } while (tag == nullptr);
    return static_cast<Stream*>(tag);
  };
  // All but the few that have a thread are refused.
  for (int ended = 0; ended < kStreams - 8; ++ended) {
    const Stream* const refused = next();
    INFO(refused->status.error_message());
    CHECK(refused->status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
  CHECK(Threads() - before < 16);
  for (Stream& stream : streams) stream.context->TryCancel();
  queue.Shutdown();
  void* tag = nullptr;
  bool ok = false;
  while (queue.Next(&tag, &ok)) {
  }
}

TEST_CASE("The health port tells a connection how many calls it may have, and has few of each host") {
  LimitCounters counters;
  MetricRegistry metrics;
  ServerPorts::Options options;
  options.health_port = 0;
  options.health = options.ready = [] { return absl::OkStatus(); };
  options.limits = &counters;
  options.metrics = &metrics;
  const auto ports = ServerPorts::Start(std::move(options));
  REQUIRE(ports.ok());
  const int port = (*ports)->health_port();
  std::deque<Http2Client> clients;
  Http2Client::Frame settings;
  for (int i = 0; i < 32; ++i) {
    INFO(i);
    REQUIRE(clients.emplace_back(port).Receive(Http2Client::kSettings, &settings));
  }
  // SETTINGS_MAX_CONCURRENT_STREAMS is number 3.
  CHECK_THAT(settings.payload, Contains(std::string("\x00\x03\x00\x00\x00\x08", 6)));
  CHECK_FALSE(Http2Client(port).Receive(Http2Client::kSettings, &settings));
  CHECK(counters.of(Limit::kConnectionsOfHost) == 1);
  CHECK(HttpGetPage(port, "/healthz").status == 200);
}

}  // namespace
}  // namespace weir

// A whole server from outside: joining, the ports, health, reflection, pages, and its end.
#include <grpcpp/generic/generic_stub.h>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "catch2/catch.hpp"
#include "proto/health.grpc.pb.h"
#include "tests/common/telemetry/http_client.h"
#include "tests/ps_server/server_fixture.h"

namespace weir {
namespace {

using Catch::Contains;

grpc::ByteBuffer Bytes(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string Text(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  buffer.Dump(&slices);
  std::string out;
  for (const grpc::Slice& slice : slices) out.append(slice.begin(), slice.end());
  return out;
}

TEST_CASE("Bad Joins are refused over the wire, and good ones still work") {
  ServerFixture f;
  f.Start();
  const auto refusal = [&](const v1::JoinRequest& request, grpc::StatusCode code) {
    v1::JoinReply reply;
    const auto context = f.Context();
    const grpc::Status status = f.coordinator->Join(context.get(), request, &reply);
    CHECK(status.error_code() == code);
    return status.error_message();
  };
  refusal({}, grpc::StatusCode::INVALID_ARGUMENT);
  v1::JoinRequest request = f.JoinRequest();
  request.set_rank(1);
  CHECK_THAT(refusal(request, grpc::StatusCode::INVALID_ARGUMENT), Contains("rank"));
  request = f.JoinRequest();
  v1::JobConfig config = f.config;
  config.set_seed(2);
  request.set_job_config(config.SerializeAsString());
  CHECK_THAT(refusal(request, grpc::StatusCode::FAILED_PRECONDITION), Contains("seed"));
  request = f.JoinRequest();
  v1::Model model;
  REQUIRE(model.ParseFromString(request.model()));
  model.mutable_tensors(0)->set_kind(static_cast<v1::Tensor::Kind>(9));
  request.set_model(model.SerializeAsString());
  CHECK(refusal(request, grpc::StatusCode::INVALID_ARGUMENT) != "");
  f.Join();
  f.TrainStep();
}

TEST_CASE("A request larger than any that is needed is not read") {
  ServerFixture f;
  f.Start();
  f.Join();
  v1::NextRangeRequest request;
  *request.mutable_caller() = f.caller;
  for (uint64_t id = 0; id < 8000; ++id) request.add_completed_ranges(~id);
  REQUIRE(request.ByteSizeLong() > 64 << 10);
  grpc::ClientContext context;
  v1::NextRangeReply reply;
  const grpc::Status status = f.coordinator->NextRange(&context, request, &reply);
  CHECK(status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK_THAT(status.error_message(), Contains(std::to_string(request.ByteSizeLong())) && Contains("65536"));
  f.TrainStep();
}

TEST_CASE("gRPC health says serving") {
  ServerFixture f;
  f.Start();
  grpc::GenericStub stub(grpc::CreateChannel(f.cluster->addresses()[0], grpc::InsecureChannelCredentials()));
  grpc::CompletionQueue queue;
  const auto context = f.Context();
  const auto call = stub.PrepareUnaryCall(context.get(), "/grpc.health.v1.Health/Check", Bytes(""), &queue);
  call->StartCall();
  grpc::ByteBuffer reply;
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag;
  bool ok;
  REQUIRE(queue.Next(&tag, &ok));
  REQUIRE(status.ok());
  CHECK(Text(reply) == std::string("\x08\x01"));  // HealthCheckResponse.status = SERVING
}

TEST_CASE("gRPC health knows each service, and that an end has come") {
  namespace health = grpc::health::v1;
  ServerFixture f(1000, 2);
  f.Start();
  f.Join();
  const uint32_t which = GENERATE(0u, 1u);
  const auto stub = health::Health::NewStub(
      grpc::CreateChannel(f.cluster->addresses()[which], grpc::InsecureChannelCredentials()));
  health::HealthCheckRequest request;
  health::HealthCheckResponse response;
  for (const char* service :
       {"", "weir.v1.ParameterServer", which == 0 ? "weir.v1.Coordinator" : "weir.v1.ShardControl"}) {
    request.set_service(service);
    CHECK(stub->Check(f.Context().get(), request, &response).ok());
    CHECK(response.status() == health::HealthCheckResponse::SERVING);
  }
  const auto known_context = f.Context();
  const auto known = stub->Watch(known_context.get(), request);
  REQUIRE(known->Read(&response));
  CHECK(response.status() == health::HealthCheckResponse::SERVING);

  request.set_service("weir.v1.Nonsense");
  const grpc::Status status = stub->Check(f.Context().get(), request, &response);
  CHECK(status.error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK_THAT(status.error_message(), Contains("weir.v1.Nonsense"));
  const auto unknown_context = f.Context();
  const auto unknown = stub->Watch(unknown_context.get(), request);
  REQUIRE(unknown->Read(&response));
  CHECK(response.status() == health::HealthCheckResponse::SERVICE_UNKNOWN);

  f.cluster->StopServer(which);
  REQUIRE(known->Read(&response));
  CHECK(response.status() == health::HealthCheckResponse::NOT_SERVING);
  CHECK_FALSE(known->Read(&response));
  CHECK(known->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
  CHECK_FALSE(unknown->Read(&response));
}

TEST_CASE("gRPC reflection lists the services") {
  ServerFixture f;
  f.Start();
  grpc::GenericStub stub(grpc::CreateChannel(f.cluster->addresses()[0], grpc::InsecureChannelCredentials()));
  grpc::CompletionQueue queue;
  const auto context = f.Context();
  const auto call = stub.PrepareCall(
      context.get(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  void* tag;
  bool ok;
  const auto next = [&] {
    REQUIRE(queue.Next(&tag, &ok));
    REQUIRE(ok);
  };
  call->StartCall(nullptr);
  next();
  call->Write(Bytes("\x3a\x01*"), nullptr);  // ServerReflectionRequest.list_services = "*"
  next();
  grpc::ByteBuffer reply;
  call->Read(&reply, nullptr);
  next();
  CHECK_THAT(Text(reply), Contains("weir.v1.ParameterServer") && Contains("weir.v1.Coordinator") &&
                              Contains("grpc.health.v1.Health"));
  call->WritesDone(nullptr);
  next();
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
}

TEST_CASE("A port that is taken is an error that names the address") {
  ServerFixture f;
  f.Start();
  Server::Options options;
  options.config = f.config;
  options.listen = f.cluster->addresses()[0];
  const auto second = Server::Start(options);
  CHECK(second.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(second.status().message()), Contains(options.listen) && Contains("ps:0"));
  options.listen = "nonsense";
  CHECK_FALSE(Server::Start(options).ok());
  f.Join();
  f.TrainStep();
}

TEST_CASE("Metrics, health and status over HTTP") {
  ServerFixture f;
  f.http_port = 0;
  f.Start();
  f.Join();
  f.TrainStep();
  f.TrainStep();
  const int port = f.cluster->server(0)->http_port();
  HttpPage page = HttpGetPage(port, "/metrics");
  CHECK(page.status == 200);
  CHECK_THAT(page.body, Contains("weir_pushes_applied_total{shard=\"0\"} 2") &&
                            Contains("weir_version{shard=\"0\"} 2") &&
                            Contains("weir_push_bytes_total{shard=\"0\"} 320") &&
                            Contains("# TYPE weir_pushes_applied_total counter"));
  page = HttpGetPage(port, "/healthz");
  CHECK(page.status == 200);
  page = HttpGetPage(port, "/status");
  const auto status = nlohmann::json::parse(page.body, nullptr, false);
  REQUIRE(status.is_object());
  CHECK(status["state"] == "RUNNING");
  CHECK(status["num_shards"] == 1);
  CHECK(status["step"] == "2");
  page = HttpGetPage(port, "/");
  CHECK_THAT(page.body, Contains("<html") && Contains("<svg"));
  // No outside resources.
  CHECK_THAT(page.body, !Contains("://") && !Contains("src=") && !Contains("<link"));
  f.cluster->server(0)->Stop("a test ends it");
  CHECK(f.cluster->Wait().code() == absl::StatusCode::kUnavailable);
  page = HttpGetPage(port, "/healthz");
  CHECK(page.status == 503);
  CHECK_THAT(page.body, Contains("a test ends it"));
}

TEST_CASE("A shard has one coordinator; a second one is refused and says so") {
  ServerFixture f(1000, 2);
  f.Start();
  f.Join();
  const auto context = f.Context();
  const auto stream = f.controls[1]->Attach(context.get());
  v1::ShardReport report;
  CHECK_FALSE(stream->Read(&report));
  CHECK(stream->Finish().error_code() == grpc::StatusCode::FAILED_PRECONDITION);

  Server::Options options;
  options.config = f.config;
  options.ps_addresses = {"127.0.0.1:1", f.cluster->addresses()[1]};
  const auto other = Server::Start(options);
  REQUIRE(other.ok());
  const absl::Status status = (*other)->Wait();
  CHECK_THAT(std::string(status.message()), Contains("ps:1 at " + f.cluster->addresses()[1]) &&
                                                Contains("cannot take part") &&
                                                Contains("another coordinator has this shard"));
}

TEST_CASE("A control stream that ends before its first message was not the coordinator's") {
  Server::Options options;
  options.config = ServerFixture().config;  // without checkpoints: a lost coordinator ends the job
  options.index = 1;
  const auto server = Server::Start(options);
  REQUIRE(server.ok());
  const auto stub = v1::ShardControl::NewStub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  const auto limit = std::chrono::system_clock::now() + std::chrono::seconds(20);
  const auto attach = [&](grpc::ClientContext& context) {
    context.set_deadline(limit);
    auto call = stub->Attach(&context);
    call->WaitForInitialMetadata();
    CHECK(context.GetServerInitialMetadata().count("weir-attached") == 1);
    return call;
  };
  // ps:0 has another address of this server, which it leaves for the one that the server announces.
  grpc::ClientContext left_context, context;
  const auto left = attach(left_context);
  const auto call = attach(context);
  left_context.TryCancel();
  left->Finish();
  v1::ControlMessage hello;
  hello.mutable_hello()->set_coordinator_incarnation(1);
  call->Write(hello);
  v1::ShardReport report;
  REQUIRE(call->Read(&report));
  CHECK(report.has_attached());
  context.TryCancel();
  call->Finish();
  CHECK_THAT(std::string((*server)->Wait().message()), Contains("was lost: its stream ended"));
}

TEST_CASE("A server that is stopped answers what waits on it, and stops") {
  const uint32_t which = GENERATE(0u, 1u);
  ServerFixture f(1000, 2, 2);
  f.Start();
  f.Join();
  v1::Outcome outcome = v1::OUTCOME_UNSPECIFIED;
  std::thread waiting([&] {
    v1::ExchangeRequest request;
    request.set_id(1);
    *request.mutable_pull() = f.PullHeader();
    request.mutable_pull()->set_clock(1);  // no worker pushes
    RawStream stream(*f.shards[which]);
    outcome = stream.Run({request}).outcome();
  });
  const auto parked = [&] {
    v1::ClusterStatus status;
    const auto context = f.Context();
    REQUIRE(f.coordinator->Status(context.get(), {}, &status).ok());
    return status.waiting_for_size() > 0;
  };
  while (!parked()) std::this_thread::yield();
  f.cluster->StopServer(which);
  waiting.join();
  CHECK(outcome == v1::JOB_OVER);
  CHECK(f.cluster->server(1 - which)->Wait().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("A worker whose stream breaks is taken out after the grace, also between two heartbeats") {
  ServerFixture f(40, 1, 2);
  f.config.mutable_cluster()->set_grace_seconds(0.05);
  f.Start();
  f.Join();
  // Worker 0 has a stream from Join(), and no heartbeat under way. Its lease would last a minute.
  f.raw_stream.reset();
  v1::HeartbeatRequest request;
  request.mutable_caller()->set_worker(1);
  request.mutable_caller()->set_incarnation(f.members[1].incarnation());
  v1::HeartbeatReply reply;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  do {
    const auto context = f.Context();
    REQUIRE(f.coordinator->Heartbeat(context.get(), request, &reply).ok());
    request.set_known_revision(reply.revision());
  } while (reply.membership().members_size() == 2 && std::chrono::steady_clock::now() < deadline);
  REQUIRE(reply.membership().members_size() == 1);
  CHECK(reply.membership().members(0).worker() == 1);
}

TEST_CASE("A job runs to its end over plain stubs") {
  ServerFixture f;
  f.config.mutable_train()->set_examples(24);
  f.Start();
  f.Join();
  for (int step = 0; step < 3; ++step) f.TrainStep();
  v1::LeaveRequest leave;
  *leave.mutable_caller() = f.caller;
  leave.set_done(true);
  v1::LeaveReply reply;
  const auto context = f.Context();
  CHECK(f.coordinator->Leave(context.get(), leave, &reply).ok());
  CHECK(f.cluster->Wait().ok());
}

}  // namespace
}  // namespace weir

// Servers of other versions of the protocol: the test plays each side by hand.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "catch2/catch.hpp"
#include "ps_server/process/server.h"
#include "tests/ps_server/server_fixture.h"

namespace weir {
namespace {

using Catch::Contains;

// Another server, which attaches any coordinator and says that it speaks this version.
class OtherServer final : public v1::ShardControl::Service {
 public:
  explicit OtherServer(std::string version) : version_(std::move(version)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~OtherServer() override { server_->Shutdown(std::chrono::system_clock::now()); }
  const std::string& address() const { return address_; }

 private:
  grpc::Status Attach(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::ShardReport, v1::ControlMessage>* stream) override {
    context->AddInitialMetadata("weir-attached", version_);
    stream->SendInitialMetadata();
    v1::ControlMessage message;
    while (stream->Read(&message)) {
    }
    return grpc::Status::OK;
  }

  const std::string version_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_CASE("ps:0 that finds a server of another major version ends the job, and says which to upgrade") {
  const OtherServer other("2.3");
  ServerFixture f;
  f.Start();
  v1::JoinRequest request = f.JoinRequest();
  request.add_ps_addresses(other.address());
  v1::JoinReply reply;
  const grpc::Status joined = f.coordinator->Join(f.Context().get(), request, &reply);
  CHECK(joined.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  const absl::Status status = f.cluster->server(0)->Wait();
  // Not Unavailable: another try does not help.
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(status.message()),
             Contains("the server at " + other.address() +
                      " speaks version 2.3 of the protocol, and ps:0 version 1.11: upgrade ps:0"));
}

TEST_CASE("A server says which version it speaks, and refuses a coordinator of another major one") {
  Server::Options options;
  options.config = ServerFixture().config;
  options.index = 1;
  auto server = Server::Start(options);
  REQUIRE(server.ok());
  const auto stub = v1::ShardControl::NewStub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const auto call = stub->Attach(&context);
  call->WaitForInitialMetadata();
  const auto attached = context.GetServerInitialMetadata().find("weir-attached");
  REQUIRE(attached != context.GetServerInitialMetadata().end());
  CHECK(attached->second == "1.11");
  v1::ControlMessage hello;
  hello.mutable_hello()->set_coordinator_incarnation(1);
  hello.mutable_hello()->mutable_protocol()->set_major(2);
  call->Write(hello);
  v1::ShardReport report;
  CHECK_FALSE(call->Read(&report));
  const grpc::Status status = call->Finish();
  CHECK(status.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
  CHECK_THAT(status.error_message(),
             Contains("ps:0 speaks version 2.0 of the protocol, and this server version 1.11: "
                      "upgrade this server"));
  // The older server is of no use to that job.
  CHECK((*server)->Wait().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE(
    "A control stream that does not begin with Hello is refused, and leaves the server to a coordinator that "
    "does") {
  Server::Options options;
  options.config = ServerFixture().config;
  options.index = 1;
  auto server = Server::Start(options);
  REQUIRE(server.ok());
  const auto stub = v1::ShardControl::NewStub(
      grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  v1::ControlMessage ping, shutdown, hello;
  ping.mutable_ping()->set_last(true);
  shutdown.mutable_shutdown()->set_failure("a stranger says so");
  hello.mutable_hello()->set_coordinator_incarnation(1);
  hello.mutable_hello()->mutable_protocol()->set_major(1);
  for (const v1::ControlMessage& first : {ping, shutdown, hello}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto call = stub->Attach(&context);
    call->Write(first);
    v1::ShardReport report;
    REQUIRE(call->Read(&report) == first.has_hello());
    if (first.has_hello()) {
      CHECK(report.has_attached());
      context.TryCancel();
    }
    const grpc::Status status = call->Finish();
    if (first.has_hello()) continue;
    CHECK(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK_THAT(status.error_message(), Contains("must be Hello"));
  }
}

}  // namespace
}  // namespace weir

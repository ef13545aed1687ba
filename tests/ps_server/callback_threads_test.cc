// Servers do without gRPC's callback API, whose "nexting" threads would poll the data plane's sockets too.
#include <grpcpp/support/client_callback.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <string>
#include <type_traits>

#include "catch2/catch.hpp"
#include "proto/health.grpc.pb.h"
#include "tests/ps_server/server_fixture.h"

namespace weir {
namespace {

namespace health = grpc::health::v1;

// Counts the process's threads with the name that gRPC gives the threads of its callback API.
int CallbackThreads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    std::getline(file, name);
    count += name == "nexting_thread";
  }
  return count;
}

TEST_CASE("Servers that have served every method have no threads of gRPC's callback API") {
  ServerFixture f;
  f.config.mutable_train()->set_examples(24);
  f.Start();
  f.Join();
  f.TrainStep();
  const auto unary = [&](auto request, auto reply, auto method) {
    if constexpr (!std::is_same_v<decltype(request), v1::StatusRequest>) {
      *request.mutable_caller() = f.caller;
    }
    const auto context = f.Context();
    const grpc::Status status = ((*f.coordinator).*method)(context.get(), request, &reply);
    INFO(status.error_message());
    CHECK(status.ok());
    return reply;
  };
  using Stub = v1::Coordinator::Stub;
  unary(v1::HeartbeatRequest(), v1::HeartbeatReply(), &Stub::Heartbeat);
  unary(v1::ReportRequest(), v1::ReportReply(), &Stub::Report);
  unary(v1::StatusRequest(), v1::ClusterStatus(), &Stub::Status);
  v1::PinRequest pin;
  pin.set_lease_seconds(10);
  v1::UnpinRequest unpin;
  unpin.set_pin(unary(pin, v1::PinReply(), &Stub::Pin).pin());
  unary(unpin, v1::UnpinReply(), &Stub::Unpin);

  v1::NextRangeReply range;
  CHECK(f.coordinator->NextRange(f.Context().get(), {}, &range).error_code() ==
        grpc::StatusCode::FAILED_PRECONDITION);  // not in sync mode

  // With a coordinator that attaches to another shard.
  ServerFixture two(1000, 2);
  two.Start();
  two.Join();

  const auto stub = health::Health::NewStub(
      grpc::CreateChannel(f.cluster->addresses()[0], grpc::InsecureChannelCredentials()));
  health::HealthCheckRequest request;
  health::HealthCheckResponse response;
  CHECK(stub->Check(f.Context().get(), request, &response).ok());
  const auto context = f.Context();
  const auto watch = stub->Watch(context.get(), request);
  CHECK(watch->Read(&response));

  f.TrainStep();
  f.TrainStep();
  v1::LeaveRequest leave;
  leave.set_done(true);
  unary(leave, v1::LeaveReply(), &Stub::Leave);
  CHECK(f.cluster->Wait().ok());
  CHECK(CallbackThreads() == 0);

  // Shows that the check above would notice such a thread.
  std::promise<void> answered;
  const auto by_callback = two.Context();
  v1::ClusterStatus reply;
  const v1::StatusRequest status;
  two.coordinator->async()->Status(by_callback.get(), &status, &reply,
                                   [&](const grpc::Status&) { answered.set_value(); });
  answered.get_future().wait();
  CHECK(CallbackThreads() > 0);
}

}  // namespace
}  // namespace weir

#include "cli/commands/grpc_status_client.h"

#include <string>

#include "catch2/catch.hpp"
#include "tests/cli/fake_coordinator.h"

namespace weir {
namespace {

TEST_CASE("the status arrives") {
  v1::ClusterStatus sent;
  sent.set_name("digits");
  sent.set_step(12);
  FakeCoordinator coordinator(&sent);
  REQUIRE(coordinator.port() != 0);
  const auto status = StatusClient(coordinator.address()).Get(absl::Seconds(30));
  REQUIRE(status.ok());
  CHECK(status->name() == "digits");
  CHECK(status->step() == 12);
}

TEST_CASE("a checkpoint is taken, or not") {
  v1::ClusterStatus sent;
  {
    FakeCoordinator coordinator(&sent);
    REQUIRE(coordinator.port() != 0);
    CHECK(StatusClient(coordinator.address()).TakeCheckpoint(absl::Seconds(30)).status().code() ==
          absl::StatusCode::kFailedPrecondition);
  }
  sent.set_checkpoint("/runs/7/step-00000012");
  sent.set_step(12);
  FakeCoordinator coordinator(&sent);
  REQUIRE(coordinator.port() != 0);
  const auto reply = StatusClient(coordinator.address()).TakeCheckpoint(absl::Seconds(30));
  REQUIRE(reply.ok());
  CHECK(reply->directory() == "/runs/7/step-00000012");
  CHECK(reply->step() == 12);
}

TEST_CASE("nobody there, or somebody else") {
  std::string address;
  {
    FakeCoordinator somebody(nullptr);
    REQUIRE(somebody.port() != 0);
    address = somebody.address();
    CHECK(StatusClient(address).Get(absl::Seconds(30)).status().code() == absl::StatusCode::kUnimplemented);
  }
  CHECK(StatusClient(address).Get(absl::Seconds(30)).status().code() == absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weir

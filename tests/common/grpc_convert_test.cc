#include "common/rpc/grpc_convert.h"

#include <string>

#include "catch2/catch.hpp"
#include "common/protocol/job_failure.h"

namespace weir {
namespace {

TEST_CASE("a status keeps its code, message and kind through gRPC") {
  const absl::Status failure = StorageFailure("no room");
  CHECK(FromGrpc(ToGrpc(failure), "weir.v1.Coordinator/Join") == failure);
  CHECK(FromGrpc(grpc::Status::OK, "weir.v1.Coordinator/Join").ok());
}

TEST_CASE("a call that ended without a message says which call it was, and with which code") {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status =
        FromGrpc({static_cast<grpc::StatusCode>(code), ""}, "weir.v1.Coordinator/Join");
    CHECK(static_cast<int>(status.raw_code()) == code);
    CHECK_THAT(std::string(status.message()), Catch::StartsWith("weir.v1.Coordinator/Join ended with ") &&
                                                  Catch::Contains("(" + std::to_string(code) + ")"));
  }
  CHECK(FromGrpc({grpc::StatusCode::UNIMPLEMENTED, ""}, "weir.v1.Coordinator/Join").message() ==
        "weir.v1.Coordinator/Join ended with UNIMPLEMENTED (12), and no message: what listens there has no "
        "such call, "
        "so it is another server, or another program");
}

}  // namespace
}  // namespace weir

#include "common/protocol/job_failure.h"

#include "absl/strings/cord.h"
#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "proto/coordinator.pb.h"

namespace weir {
namespace {

TEST_CASE("a failure keeps its kind through a message's fields, a call's status and other words") {
  const auto kind =
      static_cast<v1::FailureKind>(GENERATE(range(1, static_cast<int>(v1::FailureKind_ARRAYSIZE))));
  const absl::Status failure = JobFailure(kind, "ps:1 says so");
  CHECK(KindOf(failure) == kind);
  CHECK(failure.message() == "ps:1 says so");

  v1::HeartbeatReply reply;
  SetFailure(failure, &reply);
  CHECK(reply.failure() == "ps:1 says so");
  CHECK(FailureIn(reply) == failure);

  CHECK(FromDetails(failure.code(), failure.message(), DetailsOf(failure)) == failure);

  const absl::Status reworded = Reworded(failure, "at clock 7: ps:1 says so");
  CHECK(reworded.code() == failure.code());
  CHECK(KindOf(reworded) == kind);
  CHECK(reworded.message() == "at clock 7: ps:1 says so");
}

TEST_CASE("no failure") {
  v1::HeartbeatReply reply;
  SetFailure(absl::OkStatus(), &reply);
  CHECK(FailureIn(reply).ok());
  CHECK(KindOf(absl::OkStatus()) == v1::FAILURE_UNSPECIFIED);
  CHECK(DetailsOf(absl::OkStatus()).empty());
}

TEST_CASE("a failure without words is a failure, and gets some") {
  v1::HeartbeatReply reply;
  SetFailure(absl::InternalError(""), &reply);
  CHECK(FailureIn(reply).code() == absl::StatusCode::kInternal);
  CHECK(KindOf(FailureIn(reply)) == v1::FAILURE_INTERNAL);
  CHECK_FALSE(FailureIn(reply).message().empty());
  CHECK(FromDetails(absl::StatusCode::kNotFound, "", "") == absl::NotFoundError("NOT_FOUND, and no message"));
}

TEST_CASE("a failure whose sender tells no kind is that of a lost peer") {
  v1::HeartbeatReply reply;
  reply.set_failure("training diverged: these are words");
  CHECK(KindOf(FailureIn(reply)) == v1::FAILURE_LOST_PEER);
  CHECK(absl::IsUnavailable(FailureIn(reply)));
}

TEST_CASE("what a peer sends as details may be anything") {
  const absl::Status plain = absl::InternalError("odd");
  CHECK(FromDetails(plain.code(), plain.message(), "\xff\xff no message") == plain);
  v1::StatusDetails others;
  others.add_details()->set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  CHECK(FromDetails(plain.code(), plain.message(), others.SerializeAsString()) == plain);
  absl::Status garbled = plain;
  garbled.SetPayload("type.googleapis.com/weir.v1.Failure", absl::Cord("\xff"));
  CHECK(KindOf(garbled) == v1::FAILURE_INTERNAL);
}

TEST_CASE("an answer may say that the job was drained, whatever its code") {
  const absl::Status marked = MarkDrained(absl::AbortedError("drained: SIGTERM"));
  CHECK(marked.code() == absl::StatusCode::kAborted);
  CHECK(marked.message() == "drained: SIGTERM");
  CHECK(KindOf(marked) == v1::FAILURE_DRAINED);
}

TEST_CASE("a task exits as the kind of its failure says") {
  CHECK(ExitCodeOf(absl::OkStatus()) == kExitOk);
  CHECK(ExitCodeOf(Divergence("the gradient of w[3] is NaN")) == kExitInternal);
  CHECK(ExitCodeOf(Misfit("the token is another")) == kExitConfig);
  CHECK(ExitCodeOf(StorageFailure("no room")) == kExitStorage);
  CHECK(ExitCodeOf(LostPeer("ps:1 was lost")) == kExitPeerLost);
  CHECK(ExitCodeOf(Drained("SIGTERM")) == kExitPeerLost);
  CHECK(ExitCodeOf(Replaced("another ps:0 has the job")) == kExitPeerLost);
  // Errors without a kind.
  CHECK(ExitCodeOf(absl::AbortedError("fenced")) == kExitPeerLost);
  CHECK(ExitCodeOf(absl::DeadlineExceededError("ps:0 did not answer")) == kExitPeerLost);
  CHECK(ExitCodeOf(absl::NotFoundError("no such file")) == kExitConfig);
  CHECK(ExitCodeOf(absl::ResourceExhaustedError("no memory")) == kExitInternal);
  CHECK(ExitCodeOf(absl::UnknownError("odd")) == kExitInternal);
}

}  // namespace
}  // namespace weir

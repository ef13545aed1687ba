#include "catch2/catch.hpp"
#include "common/protocol/handshake.h"

namespace weir {
namespace {

v1::JobIdentity Job(uint64_t id, const std::string& name) {
  v1::JobIdentity job;
  job.set_id(id);
  job.set_name(name);
  return job;
}

TEST_CASE("a job is shown with its name and its id") {
  CHECK(Describe(Job(0xc0ffee, "digits")) == "job 'digits' (0000000000c0ffee)");
  CHECK(Describe(v1::JobIdentity()) == "no job yet");
}

TEST_CASE("a call reaches the server that it is for, or names both") {
  const v1::JobIdentity own = Job(7, "digits");
  CHECK(CheckAddressee(own, 1, 7, 2).ok());
  // A caller of an earlier version says nothing; a server without a job cannot tell.
  CHECK(CheckAddressee(own, 1, 0, 0).ok());
  CHECK(CheckAddressee(v1::JobIdentity(), 1, 7, 2).ok());
  const absl::Status job = CheckAddressee(own, 1, 8, 2);
  CHECK(job.code() == absl::StatusCode::kNotFound);
  CHECK(job.message() ==
        "this is ps:1 of job 'digits' (0000000000000007), but the call is for ps:1 of a job with the id "
        "0000000000000008; check the addresses in the caller's cluster spec");
  const absl::Status shard = CheckAddressee(own, 1, 7, 1);
  CHECK(shard.code() == absl::StatusCode::kNotFound);
  CHECK(shard.message() ==
        "this is ps:1 of job 'digits' (0000000000000007), but the call is for ps:0; check the addresses in "
        "the caller's cluster spec");
}

}  // namespace
}  // namespace weir

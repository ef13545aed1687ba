#include "common/protocol/handshake.h"

#include <string>

#include "catch2/catch.hpp"

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

v1::ProtocolVersion Version(uint32_t major, uint32_t minor) {
  v1::ProtocolVersion version;
  version.set_major(major);
  version.set_minor(minor);
  return version;
}

TEST_CASE("one major version fits together, whatever the minor ones are") {
  for (const v1::ProtocolVersion& theirs :
       {v1::ProtocolVersion(), Version(1, 0), Version(1, 1), Version(1, 99)}) {
    CHECK(CheckProtocol("ps:0", theirs, "worker:1", Version(1, 1)).ok());
  }
  CHECK(CheckProtocol("ps:0", OwnProtocol(), "worker:1").ok());
}

TEST_CASE("of two major versions the older side is to be upgraded") {
  const auto message = [](const v1::ProtocolVersion& theirs, const v1::ProtocolVersion& own) {
    const absl::Status status = CheckProtocol("ps:0", theirs, "worker:1", own);
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  CHECK(message(Version(2, 0), Version(1, 1)) ==
        "ps:0 speaks version 2.0 of the protocol, and worker:1 version 1.1: upgrade worker:1");
  CHECK(message(Version(1, 7), Version(2, 3)) ==
        "ps:0 speaks version 1.7 of the protocol, and worker:1 version 2.3: upgrade ps:0");
  // A peer without a version has the first one.
  CHECK(message({}, Version(2, 0)) ==
        "ps:0 speaks version 1.0 of the protocol, and worker:1 version 2.0: upgrade ps:0");
}

TEST_CASE("instances are said from 1.1 on") {
  CHECK_FALSE(SaysInstance({}));
  CHECK_FALSE(SaysInstance(Version(1, 0)));
  CHECK(SaysInstance(Version(1, 1)));
  CHECK(SaysInstance(OwnProtocol()));
  CHECK(SaysInstance(Version(2, 0)));
}

TEST_CASE("pushes have weights from 1.10 on") {
  CHECK_FALSE(WeighsPushes({}));
  CHECK_FALSE(WeighsPushes(Version(1, 9)));
  CHECK(WeighsPushes(Version(1, 10)));
  CHECK(WeighsPushes(OwnProtocol()));
}

TEST_CASE("workers know their share of a step's parts from 1.11 on") {
  CHECK_FALSE(SharesParts(Version(1, 10)));
  CHECK(SharesParts(Version(1, 11)));
}

TEST_CASE("pushes may be quantised from 1.11 on") {
  CHECK_FALSE(TakesQuantisedPushes({}));
  CHECK_FALSE(TakesQuantisedPushes(Version(1, 10)));
  CHECK(TakesQuantisedPushes(Version(1, 11)));
  CHECK(TakesQuantisedPushes(OwnProtocol()));
}

TEST_CASE("versions as text") {
  CHECK(ToString(ParseProtocol("2.17")) == "2.17");
  for (const char* text : {"", "1", "0.3", "1.x", "1.2.3", "-1.2"}) {
    INFO(text);
    CHECK(ToString(ParseProtocol(text)) == "1.0");
  }
  CHECK(ToString({}) == "1.0");
}

}  // namespace
}  // namespace weir

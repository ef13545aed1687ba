// Calls that reach the server of a different job, or the wrong server of their own job.
#include "catch2/catch.hpp"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr uint64_t kJob = 0xabc, kOther = 0xdef;

v1::ControlMessage Hello(uint64_t job, const std::string& name) {
  v1::ControlMessage message;
  message.mutable_hello()->mutable_job()->set_id(job);
  message.mutable_hello()->mutable_job()->set_name(name);
  return message;
}

// A running shard of kJob.
struct Running : ShardFixture {
  explicit Running(v1::ConsistencyConfig::Mode mode) : ShardFixture(mode) {
    Create();
    Control(Hello(kJob, "digits"));
    REQUIRE(Install() == "");
    Members(1, {{0}, {1}});
  }
  v1::PullRequest PullOf(uint64_t job, uint32_t shard_plus_one) {
    v1::PullRequest request;
    *request.mutable_caller() = CallerOf(0);
    request.mutable_caller()->set_job(job);
    request.mutable_caller()->set_shard_plus_one(shard_plus_one);
    return request;
  }
  v1::PushRequest PushOf(uint64_t job, uint32_t shard_plus_one) {
    v1::PushRequest header = Header({0, 0, 0});
    header.mutable_caller()->set_job(job);
    header.mutable_caller()->set_shard_plus_one(shard_plus_one);
    return header;
  }
};

TEST_CASE("a worker of another job with the same rank, incarnation, clock and model changes nothing") {
  const auto mode = GENERATE(v1::ConsistencyConfig::MODE_SYNC, v1::ConsistencyConfig::MODE_ASYNC);
  Running f(mode);
  const bool sync = mode == v1::ConsistencyConfig::MODE_SYNC;
  const auto refused = [](const absl::Status& status) {
    CHECK(status.code() == absl::StatusCode::kNotFound);
    CHECK_THAT(std::string(status.message()),
               Contains("this is ps:0 of job 'digits' (0000000000000abc)") && Contains("0000000000000def"));
  };
  refused(f.TryBegin(f.PushOf(kOther, 1))->status());
  refused(f.PullRequest(f.PullOf(kOther, 1))->status());
  v1::PushRequest upload = f.PushOf(kOther, 1);
  upload.set_initial_values(true);
  refused(f.TryBegin(upload)->status());
  CHECK(f.Weights() == All(0));

  // Its own worker's push at that clock is not a repeat.
  const auto own = f.PushHeader(f.PushOf(kJob, 1), {0, 0, 0});
  if (sync) {
    f.Push({1, 0, 1});
    f.Commit(0, {0, 1});
  }
  CHECK(own->reply().outcome() == v1::OK);
  CHECK(f.Weights() == All(1));

  // The end of this job is not the end of the other one.
  f.Shutdown("");
  refused(f.PullRequest(f.PullOf(kOther, 1))->status());
  refused(f.TryBegin(f.PushOf(kOther, 1))->status());
  CHECK(f.PullRequest(f.PullOf(kJob, 1))->reply().header.outcome() == v1::JOB_OVER);
}

TEST_CASE("a call for another shard of the job is refused with both") {
  Running f(v1::ConsistencyConfig::MODE_ASYNC);
  for (const absl::Status& status :
       {f.TryBegin(f.PushOf(kJob, 2))->status(), f.PullRequest(f.PullOf(kJob, 2))->status()}) {
    CHECK(status.code() == absl::StatusCode::kNotFound);
    CHECK_THAT(std::string(status.message()), Contains("this is ps:0") && Contains("the call is for ps:1"));
  }
  CHECK(f.Weights() == All(0));
}

TEST_CASE("a caller of an earlier version, which names neither job nor shard, is served") {
  Running f(v1::ConsistencyConfig::MODE_ASYNC);
  CHECK(f.PullRequest(f.PullOf(0, 0))->reply().header.outcome() == v1::OK);
}

TEST_CASE("a shard keeps the job of its first coordinator") {
  Running f(v1::ConsistencyConfig::MODE_ASYNC);
  f.Control(Hello(kOther, "another"));
  CHECK(f.PullRequest(f.PullOf(kOther, 1))->status().code() == absl::StatusCode::kNotFound);
  CHECK(f.PullRequest(f.PullOf(kJob, 1))->reply().header.outcome() == v1::OK);
}

TEST_CASE("people's reads of rows name the job, too") {
  ShardFixture f(v1::ConsistencyConfig::MODE_ASYNC);
  f.AddUsers();
  f.Create();
  f.Control(Hello(kJob, "digits"));
  REQUIRE(f.Install() == "");
  v1::ReadRowsRequest request;
  request.set_table("users");
  request.add_keys(3);
  const auto ask = [&](uint64_t job, uint32_t shard_plus_one) {
    request.set_job(job);
    request.set_shard_plus_one(shard_plus_one);
    auto answer = std::make_shared<Answer<v1::ReadRowsReply>>();
    f.shard->ShowRows(request, Keep(answer));
    f.Settle();
    return answer->status().code();
  };
  CHECK(ask(kJob, 1) == absl::StatusCode::kOk);
  CHECK(ask(kOther, 1) == absl::StatusCode::kNotFound);
  CHECK(ask(kJob, 2) == absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace weir

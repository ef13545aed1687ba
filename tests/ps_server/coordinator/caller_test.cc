// The identity of a caller, which members prove by their instance, since only they and the servers know it;
// and the version of the protocol that members speak.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/handshake.h"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kBounded = v1::ConsistencyConfig::MODE_BOUNDED;

// A job of one worker that speaks this version of the protocol, and the identity under which the worker
// calls.
struct Job {
  explicit Job(const v1::ProtocolVersion& protocol) : f(kBounded, 1, 2) {
    f.job.set_id(7);
    f.job.set_name("digits");
    f.Start();
    v1::JoinRequest request = f.JoinRequest(0, 4711);
    *request.mutable_protocol() = protocol;
    member = f.Join(request)->reply();
    caller = f.CallerOf(member);
  }

  template <typename Request, typename Reply>
  AnswerPtr<Reply> Call(void (Coordinator::*method)(Request, Coordinator::Done<Reply>), Request request) {
    *request.mutable_caller() = caller;
    auto answer = std::make_shared<Answer<Reply>>();
    (f.coordinator.get()->*method)(std::move(request), Keep(answer));
    return answer;
  }
  bool HasMember() { return f.Status().membership().members_size() == 1; }

  CoordinatorFixture f;
  v1::JoinReply member;
  v1::Caller caller;
};

// Makes all calls of a member, except Leave, and returns their codes.
std::vector<absl::StatusCode> CallAll(Job& job) {
  const auto code = [](const auto& answer) { return answer->status().code(); };
  v1::ReportRequest report;
  report.mutable_evaluation()->set_examples(99);
  return {code(job.Call(&Coordinator::Heartbeat, v1::HeartbeatRequest())),
          code(job.Call(&Coordinator::NextRange, v1::NextRangeRequest())),
          code(job.Call(&Coordinator::Pin, v1::PinRequest())),
          code(job.Call(&Coordinator::Unpin, v1::UnpinRequest())),
          code(job.Call(&Coordinator::Report, report))};
}

TEST_CASE("Who knows a worker's rank and incarnation, but not its instance, changes nothing") {
  Job job(OwnProtocol());
  const uint64_t instance = GENERATE(0u, 4712u);
  job.caller.set_instance(instance);
  CHECK(CallAll(job) == std::vector<absl::StatusCode>(5, absl::StatusCode::kPermissionDenied));
  const auto heartbeat = job.Call(&Coordinator::Heartbeat, v1::HeartbeatRequest());
  CHECK_THAT(std::string(heartbeat->status().message()), Contains("not the process that joined as worker:0"));
  CHECK(job.f.shards[0]->Sent(v1::ControlMessage::kPin).empty());
  CHECK(job.f.shards[0]->Sent(v1::ControlMessage::kUnpin).empty());
  CHECK(job.f.Status().evaluation().examples() == 0);

  // The caller can end neither the job,
  v1::StopRequest stop;
  stop.set_reason("a stranger");
  CHECK(job.Call(&Coordinator::Stop, stop)->status().code() == absl::StatusCode::kPermissionDenied);
  CHECK(job.f.Status().stopped_early().empty());
  // nor the worker's membership,
  for (const bool done : {true, false}) {
    v1::LeaveRequest leave;
    leave.set_done(done);
    CHECK(job.Call(&Coordinator::Leave, leave)->status().code() == absl::StatusCode::kPermissionDenied);
  }
  job.f.coordinator->OnDisconnect(job.caller);
  v1::Caller owner = job.caller;
  owner.set_instance(4711);
  job.f.Run(absl::Seconds(2));
  CHECK(job.HasMember());
  // nor keep its lease.
  for (int i = 0; i < 20; ++i) {
    job.Call(&Coordinator::Heartbeat, v1::HeartbeatRequest());
    job.f.Run(absl::Seconds(0.5));
  }
  CHECK_FALSE(job.HasMember());
}

TEST_CASE("A member that brings its instance is heard") {
  Job job(OwnProtocol());
  job.caller.set_instance(4711);
  const auto codes = CallAll(job);
  for (absl::StatusCode code : {codes[0], codes[1], codes[3], codes[4]}) CHECK(code == absl::StatusCode::kOk);
  CHECK(job.f.shards[0]->Sent(v1::ControlMessage::kPin).size() == 1);
  CHECK(job.f.Status().evaluation().examples() == 99);
  job.f.coordinator->OnDisconnect(job.caller);
  job.f.Run(absl::Seconds(1.5));
  CHECK_FALSE(job.HasMember());
}

TEST_CASE("A worker of protocol 1.0 has no instance to bring") {
  Job job((v1::ProtocolVersion()));
  const auto codes = CallAll(job);
  for (absl::StatusCode code : {codes[0], codes[1], codes[3], codes[4]}) CHECK(code == absl::StatusCode::kOk);
  CHECK(job.Call(&Coordinator::Leave, v1::LeaveRequest())->status().ok());
  CHECK_FALSE(job.HasMember());
}

TEST_CASE("Who is no member pins nothing and reports nothing") {
  Job job(OwnProtocol());
  job.caller.set_instance(4711);
  SECTION("not any more") { job.caller.set_incarnation(job.caller.incarnation() - 1); }
  SECTION("never was") { job.caller.set_worker(7); }
  const auto codes = CallAll(job);
  for (absl::StatusCode code : {codes[2], codes[3], codes[4]}) CHECK(code == absl::StatusCode::kAborted);
  CHECK(job.f.shards[0]->Sent(v1::ControlMessage::kPin).empty());
  CHECK(job.f.Status().evaluation().examples() == 0);
}

TEST_CASE("ps:0 tells members, servers and tools which job it is") {
  Job job(OwnProtocol());
  CHECK(job.member.job().id() == 7);
  CHECK(job.f.Status().job().id() == 7);
  CHECK(job.f.Status().job().name() == "digits");
  for (const auto& shard : job.f.shards) {
    const v1::Hello hello = shard->Sent(v1::ControlMessage::kHello).at(0).hello();
    CHECK(hello.job().id() == 7);
    CHECK(hello.job().name() == "digits");
  }
  CHECK(job.f.shards[1]->Sent(v1::ControlMessage::kHello).at(0).hello().shard_plus_one() == 2);
}

TEST_CASE("A member of another job is out, whatever else it brings, and both jobs are named") {
  Job job(OwnProtocol());
  job.caller.set_instance(4711);
  job.caller.set_job(8);
  const bool over = GENERATE(false, true);
  if (over) job.f.coordinator->Fail("enough");
  const auto names_both = [](const std::string& text) {
    CHECK_THAT(text,
               Contains("this ps:0 is of job 'digits' (0000000000000007)") && Contains("0000000000000008"));
  };
  const auto heartbeat = job.Call(&Coordinator::Heartbeat, v1::HeartbeatRequest())->reply();
  CHECK(heartbeat.fenced());
  names_both(heartbeat.failure());
  v1::LeaveRequest leave;
  leave.set_done(true);
  v1::ReportRequest report;
  report.mutable_evaluation()->set_examples(99);
  for (const absl::Status& status :
       {job.Call(&Coordinator::NextRange, v1::NextRangeRequest())->status(),
        job.Call(&Coordinator::Pin, v1::PinRequest())->status(),
        job.Call(&Coordinator::Unpin, v1::UnpinRequest())->status(),
        job.Call(&Coordinator::Report, report)->status(), job.Call(&Coordinator::Leave, leave)->status()}) {
    CHECK(status.code() == absl::StatusCode::kAborted);
    names_both(std::string(status.message()));
  }
  CHECK(job.f.Status().evaluation().examples() == 0);
  if (!over) CHECK(job.HasMember());
}

TEST_CASE("A process that was in another job before does not join this one") {
  CoordinatorFixture f(kBounded, 1, 2);
  f.job.set_id(7);
  f.Start();
  v1::JoinRequest request = f.JoinRequest(0, 1);
  request.mutable_job()->set_id(8);
  CHECK(f.Join(request)->status().code() == absl::StatusCode::kAborted);
  request.mutable_job()->set_id(7);
  CHECK(f.Join(request)->reply().job().id() == 7);
}

TEST_CASE("A server of another job that announces itself is refused") {
  CoordinatorFixture f(kBounded, 1, 2);
  f.job.set_id(7);
  f.job.set_name("digits");
  f.StartJob();
  v1::AnnounceRequest request;
  request.set_shard(1);
  request.set_address("10.0.0.9:1");
  request.set_instance(9);
  *request.mutable_protocol() = OwnProtocol();
  request.mutable_job()->set_id(8);
  request.mutable_job()->set_name("another");
  auto answer = std::make_shared<Answer<v1::AnnounceReply>>();
  f.coordinator->Announce(request, Keep(answer));
  CHECK(answer->status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(answer->status().message()),
             Contains("job 'digits' (0000000000000007)") && Contains("job 'another' (0000000000000008)"));
}

TEST_CASE("A Join of another major version of the protocol is refused, and leaves nothing behind") {
  CoordinatorFixture f(kBounded, 1, 2);
  f.Start();
  v1::JoinRequest request = f.JoinRequest(0, 1);
  request.mutable_protocol()->set_major(2);
  request.set_train_examples(8);  // unlike the next request
  const absl::Status refused = f.Join(request)->status();
  CHECK(refused.code() == absl::StatusCode::kFailedPrecondition);
  CHECK(refused.message() ==
        "worker:0 speaks version 2.0 of the protocol, and ps:0 version 1.11: upgrade ps:0");
  // A later minor version is accepted.
  v1::JoinRequest next = f.JoinRequest(0, 2);
  next.mutable_protocol()->set_major(1);
  next.mutable_protocol()->set_minor(10);
  const v1::JoinReply reply = f.Join(next)->reply();
  CHECK(ToString(reply.protocol()) == ToString(OwnProtocol()));
}

TEST_CASE("A server of another major version that announces itself is refused") {
  CoordinatorFixture f(kBounded, 1, 2);
  f.StartJob();
  v1::AnnounceRequest request;
  request.set_shard(1);
  request.set_address("10.0.0.9:1");
  request.set_instance(9);
  request.mutable_protocol()->set_major(2);
  auto answer = std::make_shared<Answer<v1::AnnounceReply>>();
  f.coordinator->Announce(request, Keep(answer));
  CHECK(answer->status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(answer->status().message()),
             Contains("ps:1 speaks version 2.0") && Contains("upgrade ps:0"));
}

}  // namespace
}  // namespace weir

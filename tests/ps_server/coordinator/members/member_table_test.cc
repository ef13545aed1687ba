#include "ps_server/coordinator/members/member_table.h"

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "common/protocol/handshake.h"
#include "tests/ps_server/coordinator/checkpoints_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
using Phase = MemberTable::Phase;

v1::JoinRequest Request(v1::Role role, uint32_t rank, uint64_t instance, bool evaluates = false) {
  v1::JoinRequest request;
  request.set_role(role);
  request.set_rank(rank);
  request.set_task(absl::StrCat(role == v1::WORKER ? "worker:" : "evaluator:", rank));
  request.set_instance(instance);
  request.set_evaluates(evaluates);
  *request.mutable_protocol() = OwnProtocol();
  return request;
}

v1::Caller Caller(uint32_t worker, uint64_t incarnation, uint64_t instance) {
  v1::Caller caller;
  caller.set_worker(worker);
  caller.set_incarnation(incarnation);
  caller.set_instance(instance);
  return caller;
}

MemberTable::Worker& Admit(MemberTable& table, uint32_t rank, uint64_t incarnation, Phase phase,
                           bool evaluates = false) {
  MemberTable::WaitingJoin join;
  join.request = Request(v1::WORKER, rank, 100 + rank, evaluates);
  MemberTable::Worker& worker = table.Admit(std::move(join), incarnation);
  worker.phase = phase;
  return worker;
}

TEST_CASE("A caller is in with its incarnation and its instance alone") {
  const JobFixture f;
  MemberTable table(f.job, {});
  Admit(table, 0, 7, Phase::kLive);
  const auto [id, reader] = table.AdmitReader(Request(v1::READER, 0, 55), 8);
  CHECK(table.CheckCaller(Caller(0, 7, 100)).ok());
  CHECK(table.CheckCaller(Caller(id, 8, 55)).ok());
  CHECK(absl::IsPermissionDenied(table.CheckCaller(Caller(0, 7, 101))));
  CHECK(absl::IsPermissionDenied(table.CheckCaller(Caller(id, 8, 56))));
  CHECK(absl::IsAborted(table.CheckCaller(Caller(0, 6, 100))));
  CHECK(absl::IsAborted(table.CheckCaller(Caller(1, 7, 100))));
  CHECK(table.FindWorker(Caller(0, 7, 100)) == &table.workers().at(0));
  CHECK(table.FindWorker(Caller(0, 6, 100)) == nullptr);
  CHECK(table.FindReader(Caller(id, 8, 55)) == reader);
  CHECK(table.FindReader(Caller(0, 7, 100)) == nullptr);
  CHECK(table.TaskOf(8) == "evaluator:0");
  CHECK(table.TaskOf(9) == "");
}

TEST_CASE("Readers have numbers of their own, which are not given twice") {
  const JobFixture f;
  MemberTable table(f.job, {});
  const uint32_t first = table.AdmitReader(Request(v1::READER, 0, 1), 1).first;
  CHECK(table.RemoveReader(first).incarnation == 1);
  CHECK(table.readers().empty());
  const uint32_t second = table.AdmitReader(Request(v1::READER, 0, 2), 2).first;
  CHECK(first != second);
  CHECK(first >= 1u << 31);
}

TEST_CASE("Members hear of workers that are admitted, shards of all") {
  const JobFixture f;
  MemberTable table(f.job, {});
  Admit(table, 0, 1, Phase::kLive);
  Admit(table, 1, 2, Phase::kIdle);
  CHECK_FALSE(table.Admitting());
  MemberTable::Worker& third = Admit(table, 2, 3, Phase::kJoining);
  CHECK(table.Admitting());
  CHECK(table.ForMembers(9).members_size() == 2);
  CHECK(table.ForMembers(9).epoch() == 9);
  CHECK(table.ForMembers(9).members(1).idle());
  REQUIRE(table.ForShards(9).members_size() == 3);
  CHECK(table.ForShards(9).members(2).joining());
  CHECK(table.ForShards(9).members(2).first_clock_plus_one() == 0);
  third.phase = Phase::kActivating;
  third.start_clock = third.first_clock.emplace(4);
  CHECK(table.Admitting());
  CHECK_FALSE(table.ForShards(9).members(2).joining());
  CHECK(table.ForShards(9).members(2).start_clock() == 4);
  CHECK(table.ForShards(9).members(2).first_clock_plus_one() == 5);
}

TEST_CASE("Readers evaluate first, then workers from the last on; none that is not admitted") {
  const JobFixture f;
  MemberTable table(f.job, {});
  Admit(table, 0, 1, Phase::kLive, /*evaluates=*/true);
  Admit(table, 1, 2, Phase::kLive, /*evaluates=*/true);
  Admit(table, 2, 3, Phase::kJoining, /*evaluates=*/true);
  table.AdmitReader(Request(v1::READER, 0, 1, /*evaluates=*/true), 4);
  table.AdmitReader(Request(v1::READER, 1, 2), 5);
  CHECK(table.Evaluators() == std::vector<uint64_t>{4, 2, 1});
  table.workers().at(1).disconnected = true;
  CHECK(table.Connected() == std::set<uint64_t>{1, 4, 5});
}

TEST_CASE("A rank is there while a process of it is in, or waits") {
  const JobFixture f;
  MemberTable table(f.job, {});
  Admit(table, 0, 1, Phase::kLive);
  MemberTable::WaitingJoin join;
  join.request = Request(v1::READER, 3, 7);
  table.Wait(join);
  CHECK_FALSE(table.AnyWorkerWaits());
  join.request = Request(v1::WORKER, 2, 8);
  table.Wait(join);
  CHECK(table.AnyWorkerWaits());
  CHECK(table.Waiting(2) == std::set<uint64_t>{8});
  CHECK(table.Waiting(3).empty());
  CHECK(table.Ranks() == std::set<uint32_t>{0, 2});
}

TEST_CASE("Of the processes that wait for one rank the first becomes its worker, if the rank is free") {
  const JobFixture f;
  MemberTable table(f.job, {});
  Admit(table, 0, 1, Phase::kLive);
  for (const uint32_t rank : {0, 1, 1, 2}) {
    MemberTable::WaitingJoin join;
    join.request = Request(v1::WORKER, rank, 10 + table.waiting().size());
    table.Wait(join);
  }
  const std::vector<MemberTable::WaitingJoin> taken = table.TakeForFreeRanks();
  REQUIRE(taken.size() == 2);
  CHECK(taken[0].request.instance() == 11);
  CHECK(taken[1].request.instance() == 13);
  CHECK(table.Ranks() == std::set<uint32_t>{0, 1});
}

TEST_CASE("A process that calls again is answered for the newest call, once it is in or goes away") {
  const JobFixture f;
  MemberTable table(f.job, {});
  std::vector<absl::Status> answers;
  MemberTable::Done<v1::JoinReply> done;
  const auto again = [&](uint64_t instance, uint64_t call) {
    done = [&](const absl::StatusOr<v1::JoinReply>& reply) { answers.push_back(reply.status()); };
    return table.Repeat(Request(v1::WORKER, 0, instance), call, done,
                        [](uint32_t, uint64_t incarnation, uint64_t) {
                          v1::JoinReply reply;
                          reply.set_incarnation(incarnation);
                          return reply;
                        });
  };
  CHECK_FALSE(again(100, 1));
  table.Wait({Request(v1::WORKER, 0, 100), done, 1, f.job.now()});
  CHECK(again(100, 2));
  REQUIRE(answers.size() == 1);
  CHECK(absl::IsCancelled(answers[0]));
  SECTION("an earlier call that goes away changes nothing") {
    CHECK_FALSE(table.Cancel(100, 1).has_value());
    REQUIRE(table.Cancel(100, 2).has_value());
    CHECK(answers.size() == 2);
    CHECK(table.waiting().empty());
  }
  SECTION("a member is answered at once") {
    table.Admit(std::move(table.TakeForFreeRanks()[0]), 7).phase = Phase::kLive;
    CHECK(again(100, 3));
    REQUIRE(answers.size() == 2);
    CHECK(answers[1].ok());
  }
}

TEST_CASE("A task has 64 processes that wait, the job 256 readers, waiting or not") {
  const JobFixture f;
  MemberTable table(f.job, {});
  MemberTable::WaitingJoin join;
  join.request = Request(v1::WORKER, 2, 8);
  for (int i = 0; i < 64; ++i) {
    CHECK(table.CheckRoom(join.request).ok());
    table.Wait(join);
  }
  CHECK_THAT(std::string(table.CheckRoom(join.request).message()), Contains("worker:2"));
  CHECK(table.CheckRoom(Request(v1::WORKER, 3, 9)).ok());
  const v1::JoinRequest reader = Request(v1::READER, 0, 1);
  for (uint64_t i = 0; i < 255; ++i) table.AdmitReader(reader, i);
  CHECK(table.CheckRoom(reader).ok());
  join.request = reader;
  table.Wait(join);
  CHECK(absl::IsUnavailable(table.CheckRoom(reader)));
}

TEST_CASE("Who left and who was lost is shown, a hundred at most") {
  const JobFixture f;
  MemberTable table(f.job, {});
  const auto leave = [&](uint32_t rank, uint64_t incarnation, bool left) {
    Admit(table, rank, incarnation, Phase::kLive);
    CHECK(table.Remove(rank, left).incarnation == incarnation);
    CHECK(table.workers().empty());
  };
  leave(0, 1, true);
  leave(1, 2, false);
  CHECK(table.Left(1));
  CHECK_FALSE(table.Left(2));
  CHECK_FALSE(table.Left(3));
  REQUIRE(table.departed().size() == 2);
  CHECK(table.departed()[1].task() == "worker:1");
  CHECK(table.departed()[1].phase() == v1::TASK_LOST);
  table.ForgetLeft();
  REQUIRE(table.departed().size() == 1);
  CHECK(table.departed()[0].incarnation() == 2);
  for (uint64_t i = 0; i < 100; ++i) leave(static_cast<uint32_t>(i), 10 + i, true);
  CHECK(table.departed().size() == 100);
  CHECK(table.departed().front().incarnation() == 10);
}

TEST_CASE("Members up to the last fence are out for its reason") {
  const JobFixture f;
  MemberTable table(f.job, {});
  CHECK(table.WhyOut(0).empty());
  table.Fence(5, "the job goes back");
  CHECK(table.WhyOut(5) == "the job goes back");
  CHECK(table.WhyOut(6).empty());
  table.Fence(8, "the job is being saved");
  CHECK(table.WhyOut(5) == "the job is being saved");
}

TEST_CASE("An instance is refused until 4,096 others were") {
  const JobFixture f;
  MemberTable table(f.job, {});
  CHECK_FALSE(table.Refuses(1));
  table.Refuse(1);
  for (uint64_t instance = 2; instance <= 4096; ++instance) table.Refuse(instance);
  CHECK(table.Refuses(1));
  table.Refuse(4097);
  CHECK_FALSE(table.Refuses(1));
  CHECK(table.Refuses(2));
}

// A table, and the answers to its heartbeats.
struct Heartbeats : JobFixture {
  Heartbeats() : table(job, Options()) {}
  static MemberTable::Options Options() {
    MemberTable::Options options;
    options.describe = [](const MemberTable::ParkedHeartbeat&, bool news, v1::HeartbeatReply* reply) {
      reply->set_evaluated(news);
    };
    return options;
  }
  void Beat(const v1::Caller& caller, uint64_t known_revision) {
    v1::HeartbeatRequest request;
    *request.mutable_caller() = caller;
    request.set_known_revision(known_revision);
    request.set_only_news(true);
    const bool at_once = table.Renew(request);
    table.Park(request, at_once,
               [this](const absl::StatusOr<v1::HeartbeatReply>& reply) { answers.push_back(*reply); });
  }

  MemberTable table;
  std::vector<v1::HeartbeatReply> answers;
};

TEST_CASE("A heartbeat that knows the newest revision waits for the next one, or for half a second") {
  Heartbeats f;
  Admit(f.table, 0, 7, Phase::kLive);
  const v1::Caller caller = Caller(0, 7, 100);
  f.Beat(caller, 0);
  REQUIRE(f.answers.size() == 1);
  CHECK(f.answers[0].revision() == 1);
  CHECK(f.answers[0].evaluated());
  f.Beat(caller, 1);
  CHECK(f.answers.size() == 1);
  SECTION("something changes") {
    f.table.Changed();
    REQUIRE(f.answers.size() == 2);
    CHECK(f.answers[1].revision() == 2);
    CHECK(f.answers[1].evaluated());
  }
  SECTION("nothing does") {
    f.clock.Advance(absl::Milliseconds(500));
    f.table.Tick(/*installed=*/true, /*stood_still=*/false);
    REQUIRE(f.answers.size() == 2);
    CHECK_FALSE(f.answers[1].evaluated());
  }
  SECTION("the member is taken out") {
    MemberTable::Worker worker = f.table.Remove(0, /*left=*/false);
    f.table.AnswerFenced(worker, "it was lost");
    REQUIRE(f.answers.size() == 2);
    CHECK(f.answers[1].fenced());
    CHECK(f.answers[1].failure() == "it was lost");
    f.table.Fence(7, "the job goes back");
    f.Beat(caller, 1);
    REQUIRE(f.answers.size() == 3);
    CHECK(f.answers[2].failure() == "the job goes back");
  }
  SECTION("the job is over") {
    f.over = true;
    f.Beat(caller, 1);
    CHECK(f.answers.size() == 3);
  }
}

TEST_CASE("A lease ends without heartbeats, and soon once the connection has broken") {
  Heartbeats f;
  MemberTable::Worker& worker = Admit(f.table, 0, 7, Phase::kLive);
  f.clock.Advance(absl::Seconds(9));
  f.Beat(Caller(0, 7, 100), 0);
  SECTION("the whole lease") { f.clock.Advance(absl::Seconds(9)); }
  SECTION("the grace") { f.table.Disconnect(worker); }
  SECTION("the first heartbeat after the break may have been sent before it") {
    f.table.Disconnect(worker);
    f.Beat(Caller(0, 7, 100), 1);
    CHECK(f.answers.size() == 2);
  }
  CHECK(f.table.ExpiredWorkers().empty());
  f.clock.Advance(absl::Seconds(1));
  CHECK(f.table.ExpiredWorkers() == std::vector<uint32_t>{0});
  // If this process stood still, the leases do not end.
  f.table.Tick(/*installed=*/true, /*stood_still=*/true);
  CHECK(f.table.ExpiredWorkers().empty());
}

}  // namespace
}  // namespace weir

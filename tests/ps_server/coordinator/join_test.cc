// Joins: which process is admitted, when, and at which clock.
#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/ps_server/coordinator/coordinator_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kSync = v1::ConsistencyConfig::MODE_SYNC;
constexpr auto kBounded = v1::ConsistencyConfig::MODE_BOUNDED;

void SetModel(v1::JoinRequest* request, const std::function<void(v1::Model&)>& change) {
  v1::Model model;
  REQUIRE(model.ParseFromString(request->model()));
  change(model);
  request->set_model(model.SerializeAsString());
}

TEST_CASE("A job starts when all its workers and shards are there, in two rounds") {
  CoordinatorFixture f(kBounded);
  for (auto& shard : f.shards) {
    shard->connects = shard->installs = shard->acknowledges = false;
    shard->incarnation = 700;
  }
  f.Start();
  FakeShard &one = *f.shards[0], &two = *f.shards[1];
  const auto a = f.Join(0);
  one.events.connected();
  const auto b = f.Join(1);
  CHECK(one.Sent(v1::ControlMessage::kInstall).empty());
  two.events.connected();
  for (uint32_t i = 0; i < 2; ++i) {
    const auto installs = f.shards[i]->Sent(v1::ControlMessage::kInstall);
    REQUIRE(installs.size() == 1);
    const v1::Install& install = installs[0].install();
    CHECK(install.shard() == i);
    CHECK(install.num_shards() == 2);
    CHECK(install.model().tensors(0).name() == "w");
    CHECK(install.job_config() == f.config.SerializeAsString());
    CHECK(install.workers() == 2);
    CHECK(install.total_examples() == 64);
    CHECK(install.total_batches() == 8);
    CHECK(install.total_steps() == 4);
  }
  one.Installed();
  CHECK(one.Sent(v1::ControlMessage::kMembership).empty());
  two.Installed();
  REQUIRE(one.Sent(v1::ControlMessage::kMembership).size() == 1);
  CHECK(one.Membership().epoch() == 1);
  CHECK(one.Membership().members(0).joining());
  one.Acknowledge(1);
  CHECK(one.Sent(v1::ControlMessage::kMembership).size() == 1);
  two.Acknowledge(1);
  REQUIRE(two.Membership().epoch() == 2);
  CHECK_FALSE(two.Membership().members(1).joining());
  two.Acknowledge(2);
  CHECK_FALSE((a->there() || b->there()));
  CHECK(f.Status().state() == v1::STARTING);
  one.Acknowledge(2);
  const v1::JoinReply& reply = b->reply();
  CHECK(a->reply().worker() == 0);
  CHECK(reply.worker() == 1);
  CHECK(reply.incarnation() != a->reply().incarnation());
  CHECK(reply.membership().epoch() == 2);
  CHECK(reply.membership().members_size() == 2);
  CHECK(reply.start_clock() == 0);
  CHECK(reply.num_shards() == 2);
  CHECK(reply.ps_addresses(1) == "10.0.0.1:2222");
  CHECK(reply.total_batches() == 8);
  CHECK(reply.total_examples() == 64);
  CHECK(reply.model_hash() == f.model.Hash());
  CHECK(reply.lease_seconds() == 10);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("With min_workers a job starts with fewer; the late one joins it") {
  CoordinatorFixture f(kBounded, 3);
  f.config.mutable_cluster()->set_min_workers(1);
  f.Start();
  const auto early = f.Join(2);
  CHECK(early->reply().membership().members_size() == 1);
  CHECK(f.Status().state() == v1::RUNNING);
  const auto parked = f.Heartbeat(early->reply(), f.Heartbeat(early->reply())->reply().revision());
  CHECK_FALSE(parked->there());
  const auto late = f.Join(0);
  CHECK(late->reply().membership().members_size() == 2);
  CHECK(late->reply().membership().epoch() > early->reply().membership().epoch());
  REQUIRE(parked->there());  // the others learn of the new member
  CHECK(parked->reply().membership().members_size() == 2);
}

TEST_CASE("A joiner starts at the highest of the shards' floors, on every shard") {
  CoordinatorFixture f(kBounded);
  f.config.mutable_cluster()->set_min_workers(1);
  f.Start();
  f.Join(0);
  f.shards[0]->floor = 7;
  f.shards[1]->floor = 9;
  const auto late = f.Join(1);
  CHECK(late->reply().start_clock() == 9);
  for (const auto& shard : f.shards) CHECK(shard->Membership().members(1).start_clock() == 9);
}

TEST_CASE("Epochs rise with every message, and incarnations are never used again") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  std::set<uint64_t> incarnations = {f.members[0].incarnation(), f.members[1].incarnation()};
  for (uint64_t i = 0; i < 5; ++i) {
    f.Leave(f.members[1], false, "crashed");
    f.members[1] = f.Join(1, 5000 + i)->reply();
    CHECK(incarnations.insert(f.members[1].incarnation()).second);
  }
  for (const auto& shard : f.shards) {
    uint64_t epoch = 0;
    for (const auto& message : shard->Sent(v1::ControlMessage::kMembership)) {
      CHECK(message.membership().membership().epoch() > epoch);
      epoch = message.membership().membership().epoch();
    }
    CHECK(epoch >= 12);
  }
}

TEST_CASE("A second Join of the same process is the same Join") {
  CoordinatorFixture f(kBounded);
  f.Start();
  const auto first = f.Join(0);
  const auto again = f.Join(0);
  CHECK(first->status().code() == absl::StatusCode::kCancelled);
  CHECK_FALSE(again->there());
  f.Join(1);
  CHECK(again->reply().worker() == 0);
  const auto late = f.Join(0);
  CHECK(late->reply().incarnation() == again->reply().incarnation());
  CHECK(f.Status().membership().members_size() == 2);
}

TEST_CASE("A repeat while the shards are told is the same Join, too") {
  CoordinatorFixture f(kBounded, 1);
  for (auto& shard : f.shards) shard->acknowledges = false;
  f.Start();
  const auto first = f.Join(0);
  const auto again = f.Join(0);
  for (uint64_t epoch : {1, 2}) {
    for (auto& shard : f.shards) shard->Acknowledge(epoch);
  }
  CHECK(first->status().code() == absl::StatusCode::kCancelled);
  CHECK(again->reply().incarnation() == 1);
  CHECK(first->times == 1);
}

TEST_CASE("A Join whose caller went away does not count; a late word of it does not end its repeat") {
  CoordinatorFixture f(kBounded);
  f.Start();
  const auto gone = f.Join(f.JoinRequest(0), 1);
  f.coordinator->OnJoinCancelled(1000, 1);
  CHECK(gone->status().code() == absl::StatusCode::kCancelled);
  f.Join(1);
  CHECK(f.Status().state() == v1::STARTING);
  f.Join(f.JoinRequest(0), 2);
  CHECK(f.Status().state() == v1::RUNNING);

  CoordinatorFixture g(kBounded);
  g.Start();
  const auto first = g.Join(g.JoinRequest(0), 1);
  const auto repeat = g.Join(g.JoinRequest(0), 2);
  g.coordinator->OnJoinCancelled(1000, 1);
  CHECK_FALSE(repeat->there());
  g.Join(1);
  CHECK(repeat->reply().worker() == 0);
}

TEST_CASE("A restarted worker takes the place of its old incarnation when that one's lease ends") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  const auto again = f.Join(1, 7777);
  f.Run(absl::Seconds(9), {f.members[0]});
  CHECK_FALSE(again->there());
  f.Run(absl::Seconds(2), {f.members[0]});
  CHECK(again->reply().worker() == 1);
  CHECK(again->reply().incarnation() > f.members[1].incarnation());
  CHECK(f.Heartbeat(f.members[1])->reply().fenced());
  CHECK_FALSE(f.Heartbeat(again->reply())->reply().fenced());
}

TEST_CASE(
    "A restarted worker takes the place of its old incarnation at once if that one's connection broke") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  SECTION("before it came") {
    f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
    CHECK(f.Join(1, 7777)->there());
  }
  SECTION("after it came") {
    const auto again = f.Join(1, 7777);
    CHECK_FALSE(again->there());
    f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
    CHECK(again->there());
  }
  SECTION("but not if the old one was heard of since") {
    f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
    f.Heartbeat(f.members[1]);  // this heartbeat may have been on its way before
    f.Heartbeat(f.members[1]);
    CHECK_FALSE(f.Join(1, 7777)->there());
  }
  SECTION("and not by one of another index") {
    f.coordinator->OnDisconnect(f.CallerOf(f.members[1]));
    f.Join(0, 7777);
    CHECK(f.Status().membership().members_size() == 2);
  }
}

TEST_CASE("A second process of a live task is told so") {
  CoordinatorFixture f(kBounded);
  f.StartJob();
  const auto twin = f.Join(1, 7777);
  f.Run(absl::Seconds(19), f.members);
  CHECK_FALSE(twin->there());
  f.Run(absl::Seconds(2), f.members);
  CHECK(twin->status().code() == absl::StatusCode::kAlreadyExists);
  CHECK_THAT(std::string(twin->status().message()), Contains("worker:1"));
}

TEST_CASE("Of two processes of one task that wait for the start, the one that is alive gets in in the end") {
  CoordinatorFixture f(kBounded);
  f.shards[1]->connects = false;
  f.Start();
  f.Join(1, 5000);  // the process is killed, which no connection shows
  f.Run(absl::Seconds(1));
  const auto alive = f.Join(1, 6000);
  const auto other = f.Join(0);
  f.Run(absl::Seconds(25));
  f.shards[1]->events.connected();
  REQUIRE(other->there());
  f.Run(absl::Seconds(2), {other->reply()});
  CHECK_FALSE(alive->there());
  f.Run(absl::Seconds(1), {other->reply()});
  CHECK(alive->reply().worker() == 1);
}

TEST_CASE("Who does not fit is refused, with the first difference") {
  CoordinatorFixture f(kBounded);
  f.Start();
  f.Join(0);
  const auto refusal = [&](const v1::JoinRequest& request) {
    const auto answer = f.Join(request);
    REQUIRE(answer->there());
    CHECK((answer->status().code() == absl::StatusCode::kInvalidArgument ||
           answer->status().code() == absl::StatusCode::kFailedPrecondition));
    return std::string(answer->status().message());
  };
  v1::JoinRequest request = f.JoinRequest(1);
  request.mutable_protocol()->set_major(99);
  request.set_task(std::string(3 << 20, 'x'));
  CHECK(refusal(request).size() < 1000);
  request = f.JoinRequest(1);
  request.set_rank(2);
  CHECK_THAT(refusal(request), Contains("rank 2") && Contains("2 workers"));
  request = f.JoinRequest(1);
  request.set_role(v1::ROLE_UNSPECIFIED);
  CHECK_THAT(refusal(request), Contains("role"));
  request.set_role(static_cast<v1::Role>(17));
  CHECK_THAT(refusal(request), Contains("17"));
  request = f.JoinRequest(1);
  v1::JobConfig config = f.config;
  config.mutable_consistency()->set_staleness(3);
  request.set_job_config(config.SerializeAsString());
  CHECK_THAT(refusal(request), Contains("worker:1") && Contains("consistency.staleness") && Contains("3"));
  request.set_job_config("\xff");
  CHECK_THAT(refusal(request), Contains("job_config"));
  request = f.JoinRequest(1);
  SetModel(&request, [](v1::Model& model) { model.mutable_tensors(0)->set_shape(0, 41); });
  CHECK_THAT(refusal(request), Contains("model") && Contains("w"));
  request = f.JoinRequest(1);
  request.clear_model();
  refusal(request);
  request.set_model("\xff");
  CHECK_THAT(refusal(request), Contains("model does not parse"));
  request = f.JoinRequest(1);
  request.set_train_examples(65);
  CHECK_THAT(refusal(request), Contains("65") && Contains("64"));
  request.set_train_examples(0);
  CHECK_THAT(refusal(request), Contains("train_examples"));
  request = f.JoinRequest(1);
  request.add_ps_addresses("10.0.0.9:2222");
  CHECK_THAT(refusal(request), Contains("3 servers") && Contains("2"));
  request.clear_ps_addresses();
  refusal(request);
  // None of the refused requests has left a trace.
  CHECK(f.Status().state() == v1::STARTING);
  f.Join(1);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("The model of who is refused for something else is not read") {
  CoordinatorFixture f(kBounded);
  f.Start();
  v1::JoinRequest request = f.JoinRequest(1);
  request.set_model("\xff");
  request.set_job_config("\xff");
  CHECK_THAT(std::string(f.Join(request)->status().message()), Contains("job_config"));
}

TEST_CASE("What the first who joins declares is forgotten when it goes away before the job begins") {
  CoordinatorFixture f(kBounded);
  f.Start();
  v1::JoinRequest wrong = f.JoinRequest(0);
  SECTION("its model") {
    SetModel(&wrong, [](v1::Model& model) { model.mutable_tensors(0)->set_shape(0, 41); });
  }
  SECTION("its training set") { wrong.set_train_examples(65); }
  const auto first = f.Join(wrong, 1);
  CHECK_FALSE(first->there());
  const auto right = f.Join(1);
  CHECK(right->status().code() == absl::StatusCode::kFailedPrecondition);
  // The coordinator cannot know which worker is wrong: it names both.
  CHECK_THAT(std::string(right->status().message()), Contains("worker:0") && Contains("worker:1"));
  f.coordinator->OnJoinCancelled(1000, 1);
  CHECK(f.Status().total_examples() == 0);
  f.Join(1);
  f.Join(0);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.shards[1]->LastInstall().model().tensors(0).shape(0) == 40);
  CHECK(f.Status().total_examples() == 64);
}

TEST_CASE("What others who wait have declared too is kept when one of them goes") {
  CoordinatorFixture f(kBounded, 3);
  f.Start();
  f.Join(f.JoinRequest(0), 1);
  f.Join(f.JoinRequest(1), 2);
  f.coordinator->OnJoinCancelled(1000, 1);
  v1::JoinRequest wrong = f.JoinRequest(0);
  wrong.set_train_examples(65);
  CHECK_THAT(std::string(f.Join(wrong)->status().message()), Contains("worker:1") && Contains("64"));
  // A waiting reader has declared a model, but no training set.
  f.JoinReader();
  f.coordinator->OnJoinCancelled(1001, 2);
  f.train_examples = 128;
  for (uint32_t rank : {0, 1, 2}) f.Join(rank);
  CHECK(f.Status().total_examples() == 128);
}

TEST_CASE("A job that data.drop_last leaves nothing of is refused; a later worker may have more examples") {
  CoordinatorFixture f(kSync);
  f.config.mutable_data()->set_drop_last(true);
  f.train_examples = 15;  // a step has 2 parts of 8
  f.Start();
  const auto few = f.Join(0);
  CHECK(few->status().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(few->status().message()), Contains("15 examples") && Contains("16 (2 parts"));
  f.train_examples = 47;
  const auto first = f.Join(0);
  f.Join(1);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(first->reply().total_examples() == 32);
  CHECK(first->reply().total_batches() == 4);
  CHECK(first->reply().total_steps() == 2);
  CHECK(f.shards[0]->LastInstall().total_examples() == 32);
  CHECK(f.Status().total_examples() == 32);
}

void AddFingerprint(v1::JoinRequest* request, const std::string& name, const std::string& value) {
  v1::Fingerprint& fingerprint = *request->add_fingerprints();
  fingerprint.set_name(name);
  fingerprint.set_value(value);
}

v1::JoinRequest JoinWith(const CoordinatorFixture& f, uint32_t rank, const std::string& examples,
                         uint64_t instance = 0) {
  v1::JoinRequest request = f.JoinRequest(rank, instance);
  AddFingerprint(&request, "the training set's examples", examples);
  return request;
}

TEST_CASE("Workers with different fingerprints are refused, with both tasks and both values") {
  CoordinatorFixture f(kBounded);
  f.Start();
  f.Join(JoinWith(f, 0, "abc"));
  const auto other = f.Join(JoinWith(f, 1, "xyz"));
  CHECK(other->status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(
      std::string(other->status().message()),
      Contains("the training set's examples: worker:1 has xyz, and worker:0, which joined before, has abc"));
  // If one of the two does not give a name, the name is not compared.
  v1::JoinRequest more = f.JoinRequest(1);
  AddFingerprint(&more, "the program", "v2");
  f.Join(more);
  CHECK(f.Status().state() == v1::RUNNING);
  // The value counts even after the worker that gave it is gone.
  f.Run(absl::Seconds(30));
  const auto late = f.Join(JoinWith(f, 0, "xyz", 7000));
  CHECK_THAT(std::string(late->status().message()), Contains("worker:0 has xyz"));
  v1::JoinRequest program = f.JoinRequest(0, 7001);
  AddFingerprint(&program, "the program", "v1");
  CHECK_THAT(std::string(f.Join(program)->status().message()), Contains("v1") && Contains("v2"));
  f.Join(JoinWith(f, 0, "abc", 7002));
  f.Join(JoinWith(f, 1, "abc", 7003));
  CHECK(f.Status().membership().members_size() == 2);
}

TEST_CASE("Fingerprints are forgotten while no worker has trained and none waits") {
  CoordinatorFixture f(kBounded);
  f.Start();
  f.Join(JoinWith(f, 0, "abc"), 1);
  f.coordinator->OnJoinCancelled(1000, 1);
  for (uint32_t rank : {0, 1}) f.Join(JoinWith(f, rank, "xyz"));
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("Fingerprints of a job that goes on from a checkpoint are forgotten, too, until it has a worker") {
  CoordinatorFixture f(kSync);
  f.disk = std::make_shared<FakeDisk>();
  f.train_examples = 8 * 2 * 10;
  f.StartJob();
  f.Steps(1);
  REQUIRE(f.Checkpoint()->there());
  for (auto& shard : f.shards) shard->attaches = false;
  f.Restart();
  CHECK_FALSE(f.Join(JoinWith(f, 0, "abc", 5000), 1)->there());
  f.coordinator->OnJoinCancelled(5000, 1);
  const auto fixed = f.Join(JoinWith(f, 0, "xyz", 5001));
  CHECK_FALSE(fixed->there());
}

TEST_CASE("A Join gives few fingerprints, short and printable, each name once") {
  CoordinatorFixture f(kBounded);
  f.Start();
  const auto refusal = [&](const std::function<void(v1::JoinRequest*)>& change) {
    v1::JoinRequest request = f.JoinRequest(0);
    change(&request);
    const auto answer = f.Join(request);
    CHECK(answer->status().code() == absl::StatusCode::kInvalidArgument);
    return std::string(answer->status().message());
  };
  CHECK_THAT(refusal([](v1::JoinRequest* request) {
               for (int i = 0; i < 17; ++i) AddFingerprint(request, "name" + std::to_string(i), "x");
             }),
             Contains("fingerprints: 17; at most 16"));
  CHECK_THAT(refusal([](v1::JoinRequest* request) { AddFingerprint(request, "", "x"); }),
             Contains("fingerprints[0].name") && Contains("0 bytes"));
  CHECK_THAT(refusal([](v1::JoinRequest* request) { AddFingerprint(request, std::string(65, 'x'), "x"); }),
             Contains("1 to 64") && Contains("65 bytes"));
  CHECK_THAT(refusal([](v1::JoinRequest* request) { AddFingerprint(request, "x", std::string(129, 'x')); }),
             Contains("fingerprints[0].value") && Contains("1 to 128"));
  CHECK_THAT(refusal([](v1::JoinRequest* request) { AddFingerprint(request, "x", "a\nb"); }),
             Contains("printable"));
  CHECK_THAT(refusal([](v1::JoinRequest* request) {
               for (int i = 0; i < 2; ++i) AddFingerprint(request, "same", "x");
             }),
             Contains("fingerprints[1].name") && Contains("twice"));
  for (uint32_t rank : {0, 1}) f.Join(rank);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("A Join declares no more than a job may have, and the message says what it may") {
  CoordinatorFixture f(kBounded);
  f.known_addresses = {"localhost:1"};
  f.memory_bytes = uint64_t{1} << 30;
  f.Start();
  const auto refusal = [&](const v1::JoinRequest& request) {
    const auto answer = f.Join(request);
    CHECK(answer->status().code() == absl::StatusCode::kInvalidArgument);
    return std::string(answer->status().message());
  };
  v1::JoinRequest request = f.JoinRequest(0);
  const auto shape = [&](const std::vector<int64_t>& shape) {
    SetModel(&request, [&](v1::Model& model) {
      model.mutable_tensors(0)->mutable_shape()->Assign(shape.begin(), shape.end());
    });
  };
  shape({int64_t{1} << 33});
  CHECK_THAT(refusal(request), Contains("8589934592 elements") &&
                                   Contains("W = 16.0 GiB on each of 2 servers") && Contains("32.0 GiB") &&
                                   Contains("has 1.0 GiB"));
  shape({int64_t{1} << 62, int64_t{1} << 62});
  CHECK_THAT(refusal(request), Contains("2^40"));
  shape(std::vector<int64_t>(33, 1));
  CHECK_THAT(refusal(request), Contains("33 dimensions") && Contains("32"));
  request = f.JoinRequest(0);
  SetModel(&request, [](v1::Model& model) { model.mutable_tensors(0)->set_name(std::string(1025, 'w')); });
  CHECK_THAT(refusal(request), Contains("1025") && Contains("1024"));
  request = f.JoinRequest(0);
  SetModel(&request, [](v1::Model& model) {
    for (int i = 0; i < 65536; ++i) model.add_tensors()->set_name(std::to_string(i));
  });
  CHECK_THAT(refusal(request), Contains("65537 tensors") && Contains("65536"));
  request = f.JoinRequest(0);
  request.set_task(std::string(129, 'w'));
  CHECK_THAT(refusal(request), Contains("task") && Contains("128"));
  request.set_task("worker:0\nfaked line");
  CHECK_THAT(refusal(request), Contains("task"));
  request = f.JoinRequest(0);
  request.set_train_examples((uint64_t{1} << 40) + 1);
  CHECK_THAT(refusal(request), Contains("train_examples") && Contains("2^40"));
  request = f.JoinRequest(0);
  request.set_ps_addresses(1, "nonsense");
  CHECK_THAT(refusal(request), Contains("ps_addresses[1]") && Contains("nonsense"));
  request.set_ps_addresses(1, request.ps_addresses(0));
  CHECK_THAT(refusal(request), Contains("ps_addresses[1]") && Contains("twice"));
  for (int i = 0; i < 1023; ++i) request.add_ps_addresses("10.0.0.0:" + std::to_string(3000 + i));
  CHECK_THAT(refusal(request), Contains("1025 servers") && Contains("1024"));
  // None of the refused requests has left a trace.
  for (uint32_t rank : {0, 1}) f.Join(rank);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("Joins of one task that wait, and readers, are bounded") {
  CoordinatorFixture f(kBounded);
  f.Start();
  std::vector<AnswerPtr<v1::JoinReply>> same, readers;
  for (uint64_t i = 0; i < 70; ++i) same.push_back(f.Join(1, 5000 + i));
  for (uint64_t i = 0; i < 300; ++i) readers.push_back(f.JoinReader(9000 + i));
  const auto waiting = [](const auto& answers) {
    return std::count_if(answers.begin(), answers.end(), [](const auto& answer) { return !answer->there(); });
  };
  CHECK(waiting(same) == 64);
  CHECK(waiting(readers) == 256);
  CHECK(same.back()->status().code() == absl::StatusCode::kUnavailable);
  CHECK(readers.back()->status().code() == absl::StatusCode::kUnavailable);
  f.Join(0);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(f.JoinReader(9999)->status().code() == absl::StatusCode::kUnavailable);
}

TEST_CASE("Who asks after the end for ranks that the job does not have is not counted as told") {
  CoordinatorFixture f(kSync, 2, 1);
  f.disk = std::make_shared<FakeDisk>();
  f.train_examples = 16;
  f.StartJob();
  f.shards[0]->Staged(0);
  for (const v1::JoinReply& member : f.members) f.Leave(member);
  f.Restart();
  CHECK(f.Status().state() == v1::DRAINING);
  for (uint32_t rank : {7, 8, 9}) f.Join(rank, 5000 + rank);
  f.Run(absl::Seconds(1));
  CHECK(f.ends == 0);
}

TEST_CASE("A server that knows only itself learns its peers from the first worker") {
  CoordinatorFixture f(kSync);
  f.known_addresses = {"localhost:1"};
  f.Start();
  CHECK_FALSE(f.shards[0]->open);
  f.Join(0);
  CHECK(f.shards[1]->open);
  CHECK(f.shards[1]->address == "10.0.0.1:2222");
  f.Join(1);
  CHECK(f.Status().state() == v1::RUNNING);
}

TEST_CASE("The addresses that one declared who went away are forgotten, too") {
  CoordinatorFixture f(kSync);
  f.known_addresses = {"localhost:1"};
  FakeShard& nowhere = f.StartElsewhere(1, "10.9.9.1:1", 55);
  f.Start();
  v1::JoinRequest wrong = f.JoinRequest(0);
  wrong.set_ps_addresses(1, "10.9.9.1:1");
  f.Join(wrong, 1);
  CHECK(nowhere.open);
  f.coordinator->OnJoinCancelled(1000, 1);
  const ShardLinkEvents late = nowhere.events;
  f.Join(0);
  CHECK_FALSE(nowhere.open);
  late.ended(absl::FailedPreconditionError("another job's server"));
  const auto reply = f.Join(1);
  CHECK(f.Status().state() == v1::RUNNING);
  CHECK(reply->reply().ps_addresses(1) == "10.0.0.1:2222");
  CHECK(nowhere.Sent(v1::ControlMessage::kInstall).empty());
}

TEST_CASE("Servers that the next one names too stay attached") {
  CoordinatorFixture f(kSync);
  f.known_addresses = {"localhost:1"};
  f.Start();
  f.Join(f.JoinRequest(0), 1);
  f.coordinator->OnJoinCancelled(1000, 1);
  f.Join(0);
  f.Join(1);
  CHECK(f.Status().state() == v1::RUNNING);
  for (const auto& shard : f.shards) CHECK(shard->Sent(v1::ControlMessage::kHello).size() == 1);
}

TEST_CASE("A late repeat of a Join makes no member once its membership has ended") {
  CoordinatorFixture f(kSync, 3);
  f.StartJob();
  const auto reader = f.JoinReader();
  SECTION("it left") {
    f.Leave(f.members[2], false, "it was stopped");
    f.Leave(reader->reply());
    CHECK(f.JoinReader()->status().code() == absl::StatusCode::kAborted);
  }
  SECTION("it fell silent") { f.Run(absl::Seconds(10.5), {f.members[0], f.members[1]}); }
  REQUIRE(f.Status().membership().members_size() == 2);
  const auto repeat = f.Join(2);
  CHECK(repeat->status().code() == absl::StatusCode::kAborted);
  CHECK(f.Status().membership().members_size() == 2);
  const auto again = f.Join(2, 7777);
  CHECK(again->status().ok());
  CHECK(f.Status().membership().members_size() == 3);
}

TEST_CASE("A Join whose answer was lost is answered again, even when its member was taken out meanwhile") {
  CoordinatorFixture f(kSync, 2);
  f.Start();
  const auto first = f.Join(0), second = f.Join(1);
  REQUIRE(second->there());  // the answer does not arrive
  f.Heartbeat(first->reply());
  f.Run(absl::Seconds(4), {first->reply()});
  REQUIRE(f.Status().membership().members_size() == 1);
  CHECK(f.Join(1)->status().ok());
  CHECK(f.Status().membership().members_size() == 2);
}

TEST_CASE("Who comes when the job is draining, done or failed is told so") {
  CoordinatorFixture f(kSync);
  f.train_examples = 16;  // one step
  f.StartJob();
  const auto reader = f.JoinReader();
  CHECK(reader->reply().worker() >= 1u << 31);
  for (auto& shard : f.shards) shard->Staged(0);
  CHECK(f.Status().state() == v1::DRAINING);
  const auto early = f.Join(1, 7777);
  CHECK_FALSE(early->there());  // the weights may still need an evaluator
  f.Leave(f.members[0]);
  CHECK(early->status().code() == absl::StatusCode::kOutOfRange);
  CHECK(f.Join(1, 7777)->status().code() == absl::StatusCode::kOutOfRange);
  CHECK(f.JoinReader(9001)->status().ok());
  // Readers alone do not keep the job from ending.
  f.Leave(f.members[1]);
  CHECK(f.JoinReader(9002)->status().code() == absl::StatusCode::kOutOfRange);
  f.coordinator->Fail("ps:0 got signal 15");
  const auto late = f.Join(0, 8888);
  CHECK_FALSE(late->status().ok());
  CHECK(late->status().message() == "ps:0 got signal 15");
}

TEST_CASE("A reader that comes early waits for the job; it never counts as a worker") {
  CoordinatorFixture f(kSync);
  f.Start();
  const auto reader = f.JoinReader();
  f.Join(0);
  CHECK_FALSE(reader->there());
  f.Join(1);
  f.coordinator->Tick();
  // The next admission lets the reader in.
  const auto other = f.JoinReader(9001);
  CHECK(other->there());
  CHECK(reader->there());
  CHECK(f.Status().membership().members_size() == 2);
}

TEST_CASE("A job that does not start says who is missing") {
  CoordinatorFixture f(kSync, 3);
  f.shards[1]->connects = false;
  f.Start();
  const auto waiting = f.Join(0);
  f.Run(absl::Seconds(61));
  CHECK(f.ends == 1);
  CHECK_THAT(f.failure, Contains("ps:1 at 10.0.0.1:2222") && Contains("rank 1") && Contains("rank 2") &&
                            !Contains("rank 0") && !Contains("ps:0"));
  CHECK(std::string(waiting->status().message()) == f.failure);
}

TEST_CASE("Of many who are missing eight are named, and the rest are counted") {
  CoordinatorFixture f(kSync, 1000);
  f.Start();
  f.Join(0);
  f.Run(absl::Seconds(61));
  CHECK_THAT(f.failure, Contains("rank 1, ") && Contains("rank 8 and 991 more") && !Contains("rank 9"));
}

TEST_CASE("A shard that connects but does not install is missing by name") {
  CoordinatorFixture f(kSync, 1);
  f.shards[1]->installs = false;
  f.Start();
  f.Join(0);
  f.Run(absl::Seconds(61));
  CHECK_THAT(f.failure, Contains("ps:1 at 10.0.0.1:2222"));
}

}  // namespace
}  // namespace weir

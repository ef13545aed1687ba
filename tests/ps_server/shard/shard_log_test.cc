// Shards with a log: no push takes effect before the log holds it, and a restored shard knows all
// acknowledged pushes.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/model/wire_model.h"
#include "ps_server/shard/restore/restore.h"
#include "tests/ps_server/shard/push_whole.h"
#include "tests/ps_server/shard/shard_fixture.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr auto kAsync = v1::ConsistencyConfig::MODE_ASYNC;

// An incarnation of a shard on a disk that outlives it.
std::unique_ptr<ShardFixture> Incarnation(std::shared_ptr<FaultyFileSystem> files = nullptr) {
  auto f = std::make_unique<ShardFixture>(kAsync);
  if (files != nullptr) f->files = std::move(files);
  f->config.mutable_server()->set_durability(v1::ServerConfig::DURABILITY_LOG);
  REQUIRE(f->files->MakeFolder(ShardFixture::kCheckpoints).ok());
  REQUIRE(f->files->SyncFolder("/").ok());
  f->Create();
  return f;
}

// The next incarnation, with workers 0 and 1 under epoch 1.
std::unique_ptr<ShardFixture> NextIncarnation(ShardFixture& before, const v1::Restore* restore = nullptr) {
  auto f = Incarnation(before.files);
  REQUIRE(f->Install(restore) == "");
  f->Members(1, {{0}, {1}});
  return f;
}

void RunBackground(ShardFixture& f) {
  while (!f.background.empty()) {
    auto work = std::move(f.background.front());
    f.background.pop_front();
    work();
  }
}

TestPush OfBatch(uint32_t worker, uint64_t clock, uint64_t batch) {
  TestPush push{worker, clock};
  push.batch = batch;
  return push;
}

TEST_CASE("A push takes effect and is answered once its record is on the disk, in the order of arrival") {
  const auto f = Incarnation();
  f->Start();
  f->hold_background = true;
  const auto first = f->Push(OfBatch(0, 0, 5));
  const auto second = f->Push({1, 0});
  TestPush bad{1, 1};
  bad.bad_element = 3;
  const auto refused = f->Push(bad);  // waits behind the previous push
  const auto pull = f->Pull(0, 1);
  CHECK_FALSE((first->there() || second->there() || refused->there() || pull->there()));
  CHECK(f->Weights() == All(0));
  CHECK(f->Stats().version().count() == 0);
  RunBackground(*f);
  CHECK(first->reply().version().count() == 1);
  CHECK(second->reply().version().count() == 2);
  CHECK(second->reply().staleness() == 1);
  CHECK(refused->reply().outcome() == v1::REFUSED);
  CHECK(pull->reply().header.version().count() >= 1);
  CHECK(f->Weights() == All(2));
}

TEST_CASE(
    "A push that comes twice while it is on its way to the disk is applied once, and both are answered") {
  const auto f = Incarnation();
  f->Start();
  f->hold_background = true;
  std::vector<std::unique_ptr<PushArrival>> arrivals;
  const v1::PushRequest header = f->Header({0, 0});
  for (int i = 0; i < 2; ++i) {
    f->shard->Begin(ShardFixture::kSession, header, [&](absl::StatusOr<PushBegin> begin) {
      arrivals.push_back(absl::get<std::unique_ptr<PushArrival>>(*std::move(begin)));
    });
  }
  std::vector<PushReplyPtr> answers;
  REQUIRE(arrivals.size() == 2);
  for (auto& arrival : arrivals) {
    REQUIRE(TakeAll(*arrival, All(1)).ok());
    answers.push_back(std::make_shared<Answer<v1::PushReply>>());
    f->shard->Push(ShardFixture::kSession, std::move(arrival),
                   [done = Keep(answers.back())](absl::StatusOr<PushAnswer> answer) {
                     done(answer.ok() ? absl::StatusOr<v1::PushReply>(answer->reply) : answer.status());
                   });
  }
  answers.push_back(f->PushHeader(header, {}));
  for (const auto& answer : answers) CHECK_FALSE(answer->there());
  RunBackground(*f);
  for (const auto& answer : answers) {
    CHECK(answer->reply().outcome() == v1::OK);
    CHECK(answer->reply().version().count() == 1);
    CHECK(answer->times == 1);
  }
  CHECK(f->Weights() == All(1));
}

TEST_CASE("The same batch from two workers while the first is on its way to the disk is applied once") {
  const auto f = Incarnation();
  f->Start();
  f->hold_background = true;
  const auto first = f->Push(OfBatch(0, 0, 7));
  const auto second = f->Push(OfBatch(1, 0, 7));
  RunBackground(*f);
  CHECK(first->reply().outcome() == v1::OK);
  CHECK(second->reply().outcome() == v1::DUPLICATE_BATCH);
  CHECK(f->Weights() == All(1));
}

TEST_CASE("What the coordinator asks for waits for what is on its way, and nothing is decided before it") {
  const auto f = Incarnation();
  f->Start();
  f->Reports(v1::ShardReport::kMembership);
  f->hold_background = true;
  const auto first = f->Push({0, 0});
  f->Members(2, {{1}});
  v1::ControlMessage hello;
  hello.mutable_hello()->set_coordinator_incarnation(2);
  f->Control(hello);
  const auto second = f->Push({1, 0});
  CHECK(f->Reports(v1::ShardReport::kMembership).empty());
  CHECK(f->Stats().version().count() == 0);  // pings are answered
  // The first write ends; the others are still pending.
  auto write = std::move(f->background.front());
  f->background.pop_front();
  write();
  CHECK(first->reply().outcome() == v1::OK);
  CHECK(f->Reports(v1::ShardReport::kMembership).size() == 1);
  RunBackground(*f);
  CHECK(f->Reports(v1::ShardReport::kAttached)[0].attached().version().count() >= 1);
  CHECK(second->reply().outcome() == v1::OK);
  CHECK(f->Push({0, 1})->reply().outcome() == v1::FENCED);
  CHECK(f->Weights() == All(2));
}

TEST_CASE("A connection that ends takes nothing back that was decided on") {
  const auto f = Incarnation();
  f->Start();
  f->hold_background = true;
  const auto push = f->Push({0, 0});
  f->shard->End(ShardFixture::kSession);
  CHECK(push->status().code() == absl::StatusCode::kCancelled);
  RunBackground(*f);
  CHECK(push->times == 1);
  CHECK(f->Weights() == All(1));
  CHECK(f->Push({0, 0})->reply().version().count() == 1);
}

TEST_CASE("A restored shard knows every outcome, clock and batch, of members who have come and gone too") {
  auto f = Incarnation();
  f->Start();
  f->Push(OfBatch(0, 0, 4));
  CHECK(f->Push(OfBatch(1, 0, 4))->reply().outcome() == v1::DUPLICATE_BATCH);
  TestPush bad{1, 1};
  bad.bad_element = 0;
  const auto refused = f->Push(bad);
  CHECK(refused->reply().outcome() == v1::REFUSED);
  CHECK(refused->reply().version().count() == 1);
  TestPush stale{1, 2};
  stale.base_incarnation = 5;
  CHECK(f->Push(stale)->reply().outcome() == v1::STALE_VERSION);
  // Worker 0 leaves, and a new incarnation of it joins.
  f->Members(2, {{0, 500, 0, true}, {1}});
  TestPush joined{0, 1, 0, 500};
  joined.epoch = 2;
  CHECK(f->Push(joined)->reply().outcome() == v1::OK);
  const v1::ShardStats before = f->Stats();

  f->files->Crash();
  auto g = Incarnation(f->files);
  REQUIRE(g->Install() == "");
  g->Members(3, {{0, 500, 0}, {1}});
  CHECK(g->Weights() == All(2));
  const v1::ShardStats after = g->Stats();
  CHECK(after.version().count() == 2);
  CHECK(after.pushes_applied() == before.pushes_applied());
  CHECK(after.pushes_refused() == before.pushes_refused());
  CHECK(after.pushes_lost() == 0);
  REQUIRE(after.clocks_size() == 2);
  for (int i = 0; i < 2; ++i) CHECK(after.clocks(i).clock() == before.clocks(i).clock());
  joined.epoch = 3;
  CHECK(g->Push(joined)->reply().version().count() == 2);
  TestPush again = OfBatch(1, 0, 4);
  again.epoch = 3;
  CHECK(g->Push(again)->reply().outcome() == v1::DUPLICATE_BATCH);
  bad.epoch = 3;
  const auto repeated = g->Push(bad);
  CHECK_THAT(repeated->reply().reason(), Contains("w[0]"));
  CHECK(repeated->reply().version().count() == 1);
  again.clock = 3;
  CHECK(g->Push(again)->reply().outcome() == v1::DUPLICATE_BATCH);
}

TEST_CASE("A worker that was joining when its shard was restored has lost nothing below its first clock") {
  auto f = Incarnation();
  f->Start();
  f->Push({0, 0});
  f->Push({1, 0});
  // Worker 2 gets its place on this shard, and the shard dies before the start clock is decided.
  f->Members(2, {{0}, {1}, {2, 500, 0, true}});
  f->files->Crash();

  auto g = Incarnation(f->files);
  REQUIRE(g->Install() == "");
  g->Members(3, {{0}, {1}, {2, 500, 0, true}});
  // The other shards had a higher clock.
  TestMember joined{2, 500, 12};
  joined.first_clock = 12;
  g->Members(4, {{0}, {1}, joined});
  v1::PullRequest pull;
  *pull.mutable_caller() = g->CallerOf(2, 4);
  pull.mutable_caller()->set_incarnation(500);
  pull.set_clock(12);
  pull.set_answered_clock(12);
  CHECK(g->PullRequest(pull)->reply().header.outcome() == v1::OK);
  CHECK(g->Stats().pushes_lost() == 0);
}

// The segments of the only shard's log.
std::vector<std::string> Segments(ShardFixture& f) {
  std::vector<std::string> segments = *f.files->List(LogFolder(ShardFixture::kCheckpoints, 0, 1));
  segments.erase(std::remove_if(segments.begin(), segments.end(),
                                [](const std::string& name) { return !absl::EndsWith(name, ".log"); }),
                 segments.end());
  return segments;
}

TEST_CASE("A log follows its checkpoints, and what is older goes when the next one is taken") {
  auto f = Incarnation();
  f->Start();
  v1::ControlMessage take;
  f->Push({0, 0});
  f->TakeCheckpoint(3);
  v1::Restore restore = ShardFixture::Complete(3, {f.get()});
  f->Push({0, 1});
  CHECK(Segments(*f).size() == 2);
  f->files->Crash();
  auto g = NextIncarnation(*f, &restore);
  CHECK(g->Weights() == All(2));
  g->Push({1, 0});
  CHECK(Segments(*g).size() == 3);

  // A checkpoint never completes: the next incarnation continues from the previous one.
  REQUIRE(BeginCheckpoint(*g->files, ShardFixture::kCheckpoints, 5).ok());
  take.mutable_checkpoint()->set_step(5);
  take.mutable_checkpoint()->set_complete(4);
  g->Control(take);
  g->Push({1, 1});
  g->files->Crash();
  auto h = NextIncarnation(*g, &restore);
  CHECK(h->Weights() == All(4));
  CHECK(h->Stats().pushes_lost() == 0);

  REQUIRE(BeginCheckpoint(*h->files, ShardFixture::kCheckpoints, 6).ok());
  take.mutable_checkpoint()->set_step(6);
  h->Control(take);
  restore = ShardFixture::Complete(6, {h.get()});
  h->Push({0, 2});
  const size_t segments = Segments(*h).size();
  REQUIRE(BeginCheckpoint(*h->files, ShardFixture::kCheckpoints, 7).ok());
  take.mutable_checkpoint()->set_step(7);
  take.mutable_checkpoint()->set_complete(7);
  h->Control(take);
  CHECK(Segments(*h).size() < segments);
  auto i = NextIncarnation(*h, &restore);
  CHECK(i->Weights() == All(5));

  // A job with a different number of shards cannot read the records behind the checkpoint.
  auto two = Incarnation(i->files);
  two->install.set_num_shards(2);
  CHECK_THAT(two->Install(&restore), Contains("of a job with 1 shards; this one has 2"));
  // A checkpoint that has everything can be used.
  REQUIRE(BeginCheckpoint(*i->files, ShardFixture::kCheckpoints, 8).ok());
  take.mutable_checkpoint()->set_step(8);
  take.mutable_checkpoint()->set_complete(0);
  i->Control(take);
  restore = ShardFixture::Complete(8, {i.get()});
  CHECK(two->Install(&restore) == "");
  // A missing segment is noticed.
  REQUIRE(i->files->Remove(JoinPath(LogFolder(ShardFixture::kCheckpoints, 0, 1), Segments(*i).back())).ok());
  CHECK_THAT(Incarnation(i->files)->Install(&restore), Contains("is missing"));
}

void Flip(FaultyFileSystem& files, const std::string& path, size_t at) {
  std::string bad = files.Contents(path);
  REQUIRE(at < bad.size());
  bad[at] ^= 1;
  files.SetContents(path, bad);
}

// A shard with checkpoints 3 and 5, and pushes before, between and after them; the newer checkpoint is
// damaged.
struct DamagedNewest {
  DamagedNewest() {
    f->Start();
    f->Push({0, 0});
    f->TakeCheckpoint(3);
    older = ShardFixture::Complete(3, {f.get()});
    f->Push({0, 1});
    f->TakeCheckpoint(5);
    newest = ShardFixture::Complete(5, {f.get()});
    f->Push({0, 2});
    const std::string path = JoinPath(CheckpointFolder(ShardFixture::kCheckpoints, 5), ShardFileName(0, 1));
    Flip(*f->files, path, f->files->Contents(path).size() - 3);
  }
  std::string Log(const std::string& segment) const {
    return JoinPath(LogFolder(ShardFixture::kCheckpoints, 0, 1), segment);
  }
  std::unique_ptr<ShardFixture> f = Incarnation();
  v1::Restore older, newest;
};

TEST_CASE("A shard says that its checkpoint is damaged, and loads the one before with all that the log has") {
  DamagedNewest of;
  auto g = Incarnation(of.f->files);
  CHECK_THAT(g->Install(&of.newest), Contains("shard-00000-of-00001.safetensors: tensor '"));
  CHECK(g->last_installed.damaged());
  CHECK_FALSE(g->last_installed.permanent());
  CHECK(g->Install(&of.older) == "");
  CHECK_FALSE(g->last_installed.damaged());
  CHECK(g->Weights() == All(3));
  // A missing file counts as damage, too.
  REQUIRE(of.f->files->Remove(JoinPath(CheckpointFolder(ShardFixture::kCheckpoints, 5), ShardFileName(0, 1)))
              .ok());
  CHECK_THAT(g->Install(&of.newest), Contains("shard-00000-of-00001.safetensors"));
  CHECK(g->last_installed.damaged());
}

TEST_CASE("Where the log does not reach back to the checkpoint before, that one is refused for good") {
  DamagedNewest of;
  const std::vector<std::string> segments = Segments(*of.f);
  REQUIRE(segments.size() == 3);
  std::string expected;
  SECTION("a segment is gone") {
    for (size_t i = 0; i < 2; ++i) REQUIRE(of.f->files->Remove(of.Log(segments[i])).ok());
    expected = segments[1] + " is missing";
  }
  SECTION("the log is gone") {
    for (const std::string& segment : segments) REQUIRE(of.f->files->Remove(of.Log(segment)).ok());
    expected =
        "the log does not reach back to checkpoint 3, which is the newest whole one, since "
        "/checkpoints/step-00000005 is damaged";
  }
  auto g = Incarnation(of.f->files);
  CHECK_THAT(g->Install(&of.older), Contains(expected) && Contains("would be lost"));
  CHECK(g->last_installed.permanent());
  CHECK_FALSE(g->last_installed.damaged());
  // If the user removes the damaged checkpoint and the log, the older checkpoint is installed.
  for (const std::string& segment : Segments(*g)) REQUIRE(of.f->files->Remove(of.Log(segment)).ok());
  REQUIRE(RemoveCheckpoint(*of.f->files, CheckpointFolder(ShardFixture::kCheckpoints, 5)).ok());
  CHECK(g->Install(&of.older) == "");
  CHECK(g->Weights() == All(1));
}

TEST_CASE("A damaged record in the middle of the log is refused for good, with its file and place") {
  DamagedNewest of;
  const std::string path = of.Log(Segments(*of.f)[1]);
  Flip(*of.f->files, path, of.f->files->Contents(path).size() - 3);
  auto g = Incarnation(of.f->files);
  CHECK_THAT(g->Install(&of.older), Contains(path + ": the record at byte ") && Contains("is damaged"));
  CHECK(g->last_installed.permanent());
  CHECK_FALSE(g->last_installed.damaged());
}

TEST_CASE("An incarnation without the log takes up what one with it has left") {
  auto f = Incarnation();
  f->Start();
  f->Push({0, 0});
  auto g = Incarnation(f->files);
  g->config.mutable_server()->clear_durability();
  g->Create();
  REQUIRE(g->Install() == "");
  g->Members(2, {{0}, {1}});
  CHECK(g->Weights() == All(1));
  auto two = Incarnation(f->files);
  two->install.set_num_shards(2);
  CHECK_THAT(two->Install(), Contains("of a job with 1 shards; this one has 2"));
}

TEST_CASE("A shard whose log finds no room when it starts waits for it, and then says that it cannot go on") {
  auto f = Incarnation();
  const uint64_t used = f->files->bytes_used();
  f->files->SetCapacity(used);
  *f->install.mutable_model() = ToProto(f->model);
  f->install.set_job_config(f->config.SerializeAsString());
  v1::ControlMessage message;
  *message.mutable_install() = f->install;
  f->Control(message);
  const auto wait = [&](absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Seconds(1)) {
      f->clock.Advance(absl::Seconds(1));
      f->shard->Tick();
    }
  };
  wait(absl::Seconds(50));
  CHECK(f->Reports(v1::ShardReport::kInstalled).empty());
  CHECK(f->Reports(v1::ShardReport::kFailed).empty());
  SECTION("there is room") {
    f->files->SetCapacity(1 << 20);
    wait(absl::Seconds(2));
    const auto installed = f->Reports(v1::ShardReport::kInstalled);
    REQUIRE(installed.size() == 1);
    CHECK(installed[0].installed().error() == "");
    f->Members(1, {{0}, {1}});
    f->Push({0, 0});
    CHECK(f->Weights() == All(1));
  }
  SECTION("there is none") {
    wait(absl::Seconds(15));
    const auto failed = f->Reports(v1::ShardReport::kFailed);
    REQUIRE(failed.size() == 1);
    CHECK_THAT(failed[0].failed().error(),
               Contains("storage failed: shard 0 cannot write its log: there was no room within "
                        "checkpoint.save_wait_seconds = 60: "));
    CHECK_FALSE(failed[0].failed().replaced());
  }
}

TEST_CASE("A durable push waits for memory that readers hold") {
  const auto f = Incarnation();
  f->Start();
  std::vector<PullAnswerPtr> held = {f->Pull(0, 0)};
  for (uint64_t clock = 0; clock < 2; ++clock) {
    f->Push({0, clock});
    held.push_back(f->Pull(0, clock + 1));
  }
  const auto push = f->Push({0, 2});
  CHECK_FALSE(push->there());
  held.clear();
  f->shard->Tick();
  CHECK(push->reply().outcome() == v1::OK);
  CHECK(f->Weights() == All(3));
}

TEST_CASE("A log that cannot be written fails the shard, and nothing of it is acknowledged") {
  const auto f = Incarnation();
  f->Start();
  CHECK(f->Push({0, 0})->reply().outcome() == v1::OK);
  f->files->SetCapacity(f->files->bytes_used() + 100);
  const auto push = f->Push({0, 1});
  CHECK(push->reply().outcome() == v1::JOB_OVER);
  CHECK_THAT(push->reply().reason(),
             Contains("cannot write its log") && Contains("/checkpoints/log/shard-0"));
  CHECK(f->Push({1, 0})->reply().outcome() == v1::JOB_OVER);
  const auto failed = f->Reports(v1::ShardReport::kFailed);
  REQUIRE(failed.size() == 1);
  CHECK_THAT(failed[0].failed().error(), Contains("cannot write its log"));
  // A later coordinator learns of the failure, too.
  v1::ControlMessage hello;
  hello.mutable_hello()->set_coordinator_incarnation(2);
  f->Control(hello);
  CHECK(f->Reports(v1::ShardReport::kFailed).size() == 1);
}

TEST_CASE(
    "A shard whose successor has taken its log over acknowledges nothing more, and says that it was "
    "replaced") {
  const auto f = Incarnation();
  f->install.set_coordinator(7);
  f->install.set_number(1);
  f->Start();
  CHECK(f->Push({0, 0})->reply().outcome() == v1::OK);
  // Another process of the same index starts while this one can still be reached.
  const auto successor = Incarnation(f->files);
  successor->install = f->install;
  successor->install.set_number(2);
  REQUIRE(successor->Install() == "");
  CHECK(successor->Weights() == All(1));
  const auto late = f->Push({1, 0});
  CHECK(late->reply().outcome() == v1::JOB_OVER);
  const auto failed = f->Reports(v1::ShardReport::kFailed);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].failed().replaced());
  CHECK_THAT(failed[0].failed().error(), Contains("a later incarnation of the shard has taken the log over"));
  successor->Members(1, {{0}, {1}});
  CHECK(successor->Push({1, 0})->reply().outcome() == v1::OK);
}

TEST_CASE("A shard whose next segment another process has begun says that it was replaced") {
  const auto f = Incarnation();
  f->Start();
  CHECK(f->Push({0, 0})->reply().outcome() == v1::OK);
  const std::string folder = LogFolder(ShardFixture::kCheckpoints, 0, 1);
  REQUIRE(f->files->WriteFile(JoinPath(folder, "00000002.log"), "another's").ok());
  v1::ControlMessage take;
  take.mutable_checkpoint()->set_step(1);
  f->Control(take);
  const auto failed = f->Reports(v1::ShardReport::kFailed);
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].failed().replaced());
  CHECK_THAT(failed[0].failed().error(), Contains("00000002.log"));
}

TEST_CASE(
    "A shard that is over while it reads its log begins no segment, which may be another process's to "
    "begin") {
  const bool over = GENERATE(true, false);
  const auto f = Incarnation();
  f->hold_background = true;
  v1::ControlMessage message;
  *message.mutable_install() = f->install;
  *message.mutable_install()->mutable_model() = ToProto(f->model);
  message.mutable_install()->set_job_config(f->config.SerializeAsString());
  f->Control(message);
  if (over) {
    message.mutable_shutdown()->set_failure("replaced");
    f->Control(message);
  }
  RunBackground(*f);
  const auto names = f->files->List(LogFolder(ShardFixture::kCheckpoints, 0, 1));
  CHECK((names.ok() && !names->empty()) != over);
}

TEST_CASE("A disk that hangs is told of while it does, and fails the shard in the end") {
  const auto f = Incarnation();
  f->config.mutable_cluster()->set_wait_seconds(30);
  f->Create();
  f->Start();
  f->hold_background = true;
  const auto push = f->Push({0, 0});
  f->Members(2, {{0}});  // waits for the log, too
  f->clock.Advance(absl::Seconds(29));
  f->shard->Tick();
  CHECK_FALSE(push->there());
  const v1::ShardStats stats = f->Stats();
  REQUIRE(stats.waits_size() == 2);
  CHECK(stats.waits(0).calls() == "a push of worker:0 at clock 0");
  CHECK(stats.waits(0).seconds() == 29);
  CHECK(stats.waits(1).calls() == "a message of the coordinator");
  for (const v1::Wait& wait : stats.waits()) CHECK_THAT(wait.reason(), Contains("the log's disk"));
  f->clock.Advance(absl::Seconds(1));
  f->shard->Tick();
  CHECK(push->reply().outcome() == v1::JOB_OVER);
  CHECK_THAT(push->reply().reason(), Contains("the disk has answered none of 1 writes for 30s"));
  CHECK(f->Reports(v1::ShardReport::kFailed).size() == 1);
  // A late result of the disk changes nothing.
  f->hold_background = false;
  RunBackground(*f);
  CHECK(f->Push({0, 1})->reply().outcome() == v1::JOB_OVER);
}

// Incarnations of a shard, each ended by a disk that fails at some operation and a crash of the machine. Two
// workers push again what was not answered, and continue.
TEST_CASE("After a crash at any operation of the disk no acknowledged push is lost and none applied twice") {
  const auto files = std::make_shared<FaultyFileSystem>(7);
  RandomStream random(11, 0);
  std::map<uint32_t, uint64_t> answered;  // by worker, its next clock
  std::unique_ptr<ShardFixture> f;
  absl::optional<v1::Restore> restore;
  uint64_t step = 1, complete = 0, crashes = 0;
  const auto ones = [](const std::vector<float>& weights) {
    return std::all_of(weights.begin(), weights.end(), [&](float w) { return w == weights[0]; });
  };
  for (uint64_t start = 0; start < 120; ++start) {
    files->SetFault(nullptr);
    f = Incarnation(files);
    const std::string error = f->Install(restore.has_value() ? &*restore : nullptr);
    INFO("start " << start << ": " << error);
    REQUIRE(error == "");
    f->Members(1, {{0}, {1}});
    const v1::ShardStats stats = f->Stats();
    REQUIRE(stats.pushes_lost() == 0);
    const std::vector<float> weights = f->Weights();
    uint64_t sum = 0;
    for (const v1::WorkerClock& clock : stats.clocks()) {
      sum += clock.clock();
      // Beside the answered pushes the shard has at most the one that was not answered.
      REQUIRE(clock.clock() >= answered[clock.worker()]);
      REQUIRE(clock.clock() <= answered[clock.worker()] + 1);
    }
    REQUIRE(ones(weights));
    REQUIRE(static_cast<uint64_t>(weights[0]) == sum);
    const uint64_t end = files->operations() + 1 + random.Next() % 60;
    files->SetFault([end](const FaultyFileSystem::Operation& operation) {
      return operation.number < end ? absl::OkStatus() : absl::UnavailableError("no power");
    });
    for (bool up = true; up;) {
      const uint32_t worker = random.Next() % 2;
      if (random.Next() % 8 == 0) {
        ++step;
        if (!BeginCheckpoint(*files, ShardFixture::kCheckpoints, step).ok()) break;
        v1::ControlMessage take;
        take.mutable_checkpoint()->set_step(step);
        take.mutable_checkpoint()->set_complete(complete);
        f->Control(take);
        const auto written = f->Reports(v1::ShardReport::kCheckpoint);
        if (written.empty() || !written[0].checkpoint().error().empty()) break;
        v1::CheckpointManifest manifest;
        manifest.set_step(step);
        *manifest.mutable_model() = ToProto(f->model);
        v1::JobConfig& config = *manifest.mutable_job()->mutable_config();
        config = f->config;
        config.mutable_model()->add_layers()->set_type(v1::LayerConfig::LAYER_RELU);
        config.mutable_data()->set_format(v1::DataConfig::FORMAT_DIGITS);
        manifest.mutable_job()->set_committed_steps(step);
        *manifest.add_files() = written[0].checkpoint().record();
        if (!CommitCheckpoint(*files, ShardFixture::kCheckpoints, manifest).ok()) break;
        complete = step + 1;
        restore = v1::Restore();
        restore->set_step(step);
        continue;
      }
      const auto answer = f->Push({worker, answered[worker]});
      up = answer->reply().outcome() == v1::OK;
      if (up) ++answered[worker];
    }
    ++crashes;
    files->Crash();
  }
  CHECK(crashes == 120);
  CHECK(answered[0] + answered[1] > 300);
}

// An incarnation with the table "users".
std::unique_ptr<ShardFixture> WithTable(std::shared_ptr<FaultyFileSystem> files = nullptr) {
  auto f = std::make_unique<ShardFixture>(kAsync);
  if (files != nullptr) f->files = std::move(files);
  f->config.mutable_server()->set_durability(v1::ServerConfig::DURABILITY_LOG);
  f->AddUsers();
  REQUIRE(f->files->MakeFolder(ShardFixture::kCheckpoints).ok());
  REQUIRE(f->files->SyncFolder("/").ok());
  f->Create();
  return f;
}

// Reads these rows at the newest version, of 2 values each.
std::vector<float> Read(ShardFixture& f, const std::vector<TestRows>& rows) {
  f.Pin(500, 100);
  v1::PullRequest request;
  *request.mutable_caller() = f.CallerOf(0);
  request.set_pin(500);
  const PullAnswerPtr answer = f.PullRows(request, rows);
  v1::ControlMessage unpin;
  unpin.mutable_unpin()->set_pin(500);
  f.Control(unpin);
  size_t keys = 0;
  for (const TestRows& of_table : rows) keys += of_table.keys.size();
  const float* const values = answer->reply().rows->values.get();
  return {values, values + 2 * keys};
}

// The rows of keys 7, 8 and 9.
std::vector<float> Rows(ShardFixture& f) { return Read(f, {{0, {7, 8, 9}, {}}}); }

TEST_CASE("The rows of pushes are in the log, and are there again after a crash") {
  auto f = WithTable();
  f->Start();
  REQUIRE(f->PushRows({0, 0}, {{0, {7, 9}, {1, 2, 3, 4}}})->reply().outcome() == v1::OK);
  REQUIRE(f->Push({1, 0})->reply().outcome() == v1::OK);
  f->Settle();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(f->PushRows({0, 1}, {{0, {8}, {nan, 1}}})->reply().outcome() == v1::REFUSED);
  REQUIRE(f->PushRows({1, 1}, {{0, {9}, {1, 1}}})->reply().version().count() == 3);
  const std::vector<float> rows = {4, 3, 5, 5, 1, 0};
  CHECK(Rows(*f) == rows);
  const auto files = f->files;
  f = nullptr;
  files->Crash();

  f = WithTable(files);
  REQUIRE(f->Install() == "");
  f->Members(1, {{0}, {1}});
  CHECK(f->Stats().version().count() == 3);
  CHECK(Rows(*f) == rows);
  CHECK(f->Weights() == All(3));
  // Tables and dense weights continue from the same version.
  TestPush again{1, 1};
  CHECK(f->PushRows(again, {{0, {9}, {1, 1}}})->reply().outcome() == v1::OK);  // a repeat
  CHECK(Rows(*f) == rows);
  CHECK(f->PushRows({0, 2}, {{0, {8}, {1, 1}}})->reply().version().count() == 4);
  CHECK(Rows(*f) == std::vector<float>{4, 3, 4, 4, 1, 0});
}

// An incarnation with the tables "users" and "items", in this order or reversed.
std::unique_ptr<ShardFixture> WithTables(bool items_first,
                                         std::shared_ptr<FaultyFileSystem> files = nullptr) {
  auto f = WithTable(std::move(files));
  v1::TableConfig& items = *f->config.add_tables();
  items = f->config.tables(0);
  items.set_name("items");
  if (items_first) f->config.mutable_tables()->SwapElements(0, 1);
  f->Create();
  return f;
}

// The first values of key 7, by table.
std::vector<float> SevenOf(ShardFixture& f) {
  const std::vector<float> values = Read(f, {{0, {7}, {}}, {1, {7}, {}}});
  return {values[0], values[2]};
}

TEST_CASE("The rows in the log are of the tables that their segment names, whatever the job's order is") {
  auto f = WithTables(/*items_first=*/false);
  f->Start();
  REQUIRE(f->PushRows({0, 0}, {{0, {7}, {1, 1}}, {1, {7}, {2, 2}}})->reply().outcome() == v1::OK);
  REQUIRE(f->PushRows({1, 0}, {{1, {7}, {0.5, 0.5}}})->reply().outcome() == v1::OK);
  CHECK(SevenOf(*f) == std::vector<float>{4, 2.5});
  bool items_first = true;
  float items = 2.5;
  // Each incarnation reads the segments of all earlier ones, in either order.
  for (uint64_t clock = 1; clock < 4; ++clock) {
    CAPTURE(clock);
    f = WithTables(items_first, f->files);
    REQUIRE(f->Install() == "");
    f->Members(1, {{0}, {1}});
    const auto expected = [&] {
      return items_first ? std::vector<float>{items, 4} : std::vector<float>{4, items};
    };
    CHECK(SevenOf(*f) == expected());
    const uint32_t table = items_first ? 0 : 1;
    REQUIRE(f->PushRows({0, clock}, {{table, {7}, {0.25, 0.25}}})->reply().outcome() == v1::OK);
    items -= 0.25f;
    CHECK(SevenOf(*f) == expected());
    items_first = !items_first;
  }
}

TEST_CASE("A log of other tables than the job's is refused, by their names") {
  auto f = WithTables(/*items_first=*/false);
  f->Start();
  REQUIRE(f->PushRows({0, 0}, {{0, {7}, {1, 2}}})->reply().outcome() == v1::OK);
  const auto files = f->files;
  f = WithTable(files);
  CHECK_THAT(f->Install(),
             Contains("00000001.log: the log is of the embedding tables users (dim 2), items (dim 2); "
                      "the job's are users (dim 2). "));
  f = WithTables(/*items_first=*/true, files);
  f->config.mutable_tables(0)->set_dim(3);
  f->Create();
  CHECK_THAT(f->Install(), Contains("the job's are items (dim 3), users (dim 2). "));
  f->config.clear_tables();
  f->Create();
  CHECK_THAT(f->Install(), Contains("holds rows of embedding tables, and this job's config has no tables"));
}

// Writes a log of one push of two rows in the form from before segments named their tables, without some
// bytes at its end.
void WriteUnnamed(FaultyFileSystem& files, const ShardFixture& f, size_t missing) {
  PushLog::Options options;
  options.files = &files;
  options.folder = LogFolder(ShardFixture::kCheckpoints, 0, 1);
  options.description.set_num_shards(1);
  options.description.set_model_hash(f.model.Hash());
  options.executor = [](const std::function<void()>& work) { work(); };
  REQUIRE(files.MakeFolder(ParentFolder(options.folder)).ok());
  const auto log = PushLog::Begin(std::move(options));
  REQUIRE(log.ok());
  v1::LoggedPush record;
  *record.mutable_push()->mutable_caller() = f.CallerOf(0);
  record.mutable_push()->set_examples(1);
  record.mutable_push()->set_elements(40);
  record.mutable_push()->add_rows()->set_keys(1);
  record.mutable_push()->add_rows()->set_keys(1);
  record.mutable_push()->mutable_rows(1)->set_table(1);
  record.set_outcome(v1::OK);
  record.set_version(1);
  const auto rows = std::make_shared<PushedRows>(RowsOf({{0, {7}, {1, 1}}, {1, {7}, {2, 2}}}));
  PushLog::Rows bytes = {rows->bytes(), rows};
  bytes.bytes.back().remove_suffix(missing);
  const auto gradient = std::make_shared<std::vector<float>>(All(1));
  absl::Status written;
  (*log)->Append(
      record, {gradient, gradient->data()}, gradient->size(),
      [&](const absl::Status& status) { written = status; }, bytes);
  REQUIRE(written.ok());
}

TEST_CASE("The rows of a log that does not name its tables are of the job's tables by their order") {
  auto f = WithTables(/*items_first=*/GENERATE(false, true));
  WriteUnnamed(*f->files, *f, /*missing=*/0);
  REQUIRE(f->Install() == "");
  CHECK(SevenOf(*f) == std::vector<float>{4, 3});
}

TEST_CASE("A record with fewer rows than its push has is damage") {
  auto f = WithTables(/*items_first=*/false);
  WriteUnnamed(*f->files, *f, /*missing=*/4);
  CHECK_THAT(f->Install(), Contains("version 1: rows: 28 bytes of 32"));
}

}  // namespace
}  // namespace weir

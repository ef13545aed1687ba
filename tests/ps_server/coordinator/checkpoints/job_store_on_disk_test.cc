// The coordinator's store on a disk that fills, fails, and loses data that was not synced.
#include <algorithm>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "catch2/catch.hpp"
#include "common/base/checksums.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/model/wire_model.h"
#include "ps_server/coordinator/checkpoints/job_store.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

using Catch::Contains;
using Kind = FaultyFileSystem::Kind;

const ModelSpec& Model() {
  static const ModelSpec model{{{"w", {40}, TensorKind::kParameter, Initializer::Zeros()}}};
  return model;
}

// Opens a store that does blocking work at once.
absl::StatusOr<std::unique_ptr<JobStore>> Open(FileSystem& fs, int keep = 3, v1::JobIdentity job = {}) {
  JobStoreOnDisk::Options options;
  options.job = std::move(job);
  options.file_system = &fs;
  options.directory = "/runs/7";
  options.keep = keep;
  options.run = [](const std::function<void()>& work) { work(); };
  return JobStoreOnDisk::Open(std::move(options));
}

absl::Status Reserve(JobStore& store, const JobStore::Numbers& up_to) {
  absl::Status result = absl::UnknownError("no answer");
  store.Reserve(up_to, [&](absl::Status status) { result = std::move(status); });
  return result;
}

absl::Status Begin(JobStore& store, uint64_t step) {
  absl::Status result = absl::UnknownError("no answer");
  store.Begin(step, [&](absl::Status status) { result = std::move(status); });
  return result;
}

// Writes a shard's file under this incarnation, with this value in every element.
absl::StatusOr<v1::CheckpointFile> WriteShard(FileSystem& fs, uint64_t step, float value,
                                              uint64_t incarnation) {
  const std::vector<float> weights(40, value);
  ShardSnapshot snapshot;
  snapshot.model = Model();
  snapshot.state.set_num_shards(1);
  snapshot.state.mutable_version()->set_incarnation(incarnation);
  snapshot.state.mutable_version()->set_count(step);
  snapshot.weights = weights;
  return WriteShardFile(fs, "/runs/7", step, snapshot);
}

// Writes the shard's file, and commits the checkpoint.
absl::Status Commit(JobStore& store, FileSystem& fs, uint64_t step, float value, uint64_t incarnation) {
  v1::CheckpointManifest manifest;
  manifest.set_step(step);
  *manifest.mutable_model() = ToProto(Model());
  manifest.mutable_job()->set_committed_steps(step);
  manifest.mutable_job()->set_epoch(5);
  auto file = WriteShard(fs, step, value, incarnation);
  if (!file.ok()) return file.status();
  *manifest.add_files() = *file;
  absl::Status result = absl::UnknownError("no answer");
  store.Commit(manifest, [&](absl::Status status) { result = std::move(status); });
  return result;
}

absl::Status Save(JobStore& store, FileSystem& fs, uint64_t step, float value = 1.5f,
                  uint64_t incarnation = 7) {
  const absl::Status begun = Begin(store, step);
  return begun.ok() ? Commit(store, fs, step, value, incarnation) : begun;
}

// The newest record of the folder's owner.
std::string NewestRecord(FileSystem& fs) {
  return JoinPath("/runs/7/coordinator", fs.List("/runs/7/coordinator")->back());
}

// The value of every element in the checkpoint of this step.
float ValueOf(FileSystem& fs, uint64_t step) {
  const auto reader = CheckpointReader::Open(fs, CheckpointFolder("/runs/7", step));
  REQUIRE(reader.status() == absl::OkStatus());
  std::vector<float> weights(40);
  REQUIRE(reader->LoadWeights(Model(), 0, 1, absl::MakeSpan(weights)) == absl::OkStatus());
  for (const float weight : weights) REQUIRE(weight == weights[0]);
  return weights[0];
}

// The process that uses the disk hangs before the `at`-th operation, until `meanwhile` is over.
class Hang {
 public:
  Hang(FaultyFileSystem& fs, int at, std::function<void()> meanwhile) : fs_(fs) {
    fs.SetPause([this, at, meanwhile = std::move(meanwhile)](FaultyFileSystem::Moment moment) {
      if (over_ || moment == FaultyFileSystem::Moment::kAfter || count_++ != at) return;
      over_ = true;  // `meanwhile` itself does not hang
      meanwhile();
    });
  }
  ~Hang() { fs_.SetPause(nullptr); }
  bool hung() const { return over_; }

 private:
  FaultyFileSystem& fs_;
  int count_ = 0;
  bool over_ = false;
};

v1::JobIdentity JobOf(uint64_t id, const std::string& name) {
  v1::JobIdentity job;
  job.set_id(id);
  job.set_name(name);
  return job;
}

TEST_CASE("A folder's job keeps its identity, whoever opens it, until a job of another name begins there") {
  FaultyFileSystem fs(1);
  const auto opened = [&](uint64_t id, const std::string& name) {
    auto store = Open(fs, 3, JobOf(id, name));
    REQUIRE(store.ok());
    return (*store)->opened().job.id();
  };
  CHECK(opened(1, "digits") == 1);
  CHECK(opened(2, "digits") == 1);
  fs.Crash();
  CHECK(opened(3, "digits") == 1);
  // Nothing was saved, so a different job may begin.
  CHECK(opened(4, "another") == 4);
  CHECK(opened(5, "another") == 4);
}

TEST_CASE("A checkpoint says whose it is, also where it was copied to") {
  FaultyFileSystem fs(1);
  {
    auto store = Open(fs, 3, JobOf(1, "digits"));
    REQUIRE(store.ok());
    REQUIRE(Begin(**store, 10).ok());
    v1::CheckpointManifest manifest;
    manifest.set_step(10);
    *manifest.mutable_model() = ToProto(Model());
    manifest.mutable_job()->set_committed_steps(10);
    *manifest.mutable_job()->mutable_identity() = (*store)->opened().job;
    const auto file = WriteShard(fs, 10, 1, 7);
    REQUIRE(file.ok());
    *manifest.add_files() = *file;
    absl::Status committed = absl::UnknownError("no answer");
    (*store)->Commit(manifest, [&](absl::Status status) { committed = std::move(status); });
    REQUIRE(committed.ok());
  }
  SECTION("the records are there") {}
  SECTION("they are not") {
    const auto records = fs.List("/runs/7/coordinator");
    for (const std::string& name : *records) {
      REQUIRE(fs.Remove(JoinPath("/runs/7/coordinator", name)).ok());
    }
  }
  // If the names differ, the coordinator refuses to continue (CanGoOn()).
  const std::string name = GENERATE("digits", "another");
  auto store = Open(fs, 3, JobOf(2, name));
  REQUIRE(store.ok());
  CHECK((*store)->opened().job.id() == 1);
  CHECK((*store)->opened().newest.has_value());
}

TEST_CASE("Each incarnation of the coordinator is a later one, and begins where no number was used") {
  FaultyFileSystem fs(1);
  JobStore::Numbers used;
  for (uint64_t incarnation = 1; incarnation <= 4; ++incarnation) {
    auto store = Open(fs);
    REQUIRE(store.ok());
    const JobStore::Opened opened = (*store)->opened();
    CHECK(opened.coordinator_incarnation == incarnation);
    CHECK_FALSE(opened.newest.has_value());
    CHECK(opened.used.epoch >= used.epoch);
    CHECK(opened.used.incarnation >= used.incarnation);
    CHECK(opened.reserved.epoch >= opened.used.epoch + 1000);
    used = opened.reserved;
    if (incarnation == 2) {
      used = {used.epoch + 5000, used.incarnation + 10};
      CHECK(Reserve(**store, used).ok());
    }
    if (incarnation == 3) fs.Crash();
  }
}

TEST_CASE("Whatever the disk does, and whenever it loses its power, no number comes twice") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    FaultyFileSystem fs(seed);
    JobStore::Numbers used;
    uint64_t incarnation = 0;
    for (int start = 0; start < 5; ++start) {
      fs.SetFault([&](const FaultyFileSystem::Operation& operation) {
        return (operation.number * 2654435761u + seed) % 11 == 0 ? absl::DataLossError("I/O error")
                                                                 : absl::OkStatus();
      });
      if (auto store = Open(fs); store.ok()) {
        const JobStore::Opened opened = (*store)->opened();
        REQUIRE(opened.coordinator_incarnation > incarnation);
        REQUIRE(opened.used.epoch >= used.epoch);
        REQUIRE(opened.used.incarnation >= used.incarnation);
        incarnation = opened.coordinator_incarnation;
        used = opened.reserved;
        const JobStore::Numbers more = {used.epoch + 700, used.incarnation + 900};
        if (Reserve(**store, more).ok()) used = more;
      }
      fs.Crash();
    }
    fs.SetFault(nullptr);
    CHECK(Open(fs).ok());
  }
}

void CheckReplaced(JobStore& old, FileSystem& fs) {
  for (const absl::Status& status : {Reserve(old, {90000, 90000}), Begin(old, 50), Save(old, fs, 60)}) {
    CHECK(status.code() == absl::StatusCode::kAborted);
    CHECK_THAT(std::string(status.message()), Contains("/runs/7 belongs to another ps:0 now, process "));
  }
}

TEST_CASE("A coordinator that has been replaced can neither reserve, begin nor commit") {
  FaultyFileSystem fs(1);
  auto old = Open(fs);
  CHECK(Begin(**old, 1).ok());
  auto now = Open(fs);
  CHECK(Commit(**old, fs, 1, 1, 7).code() != absl::StatusCode::kOk);
  CheckReplaced(**old, fs);
  CHECK_THAT(std::string(Reserve(**old, {9000, 9000}).message()), Contains("(incarnation 2)"));
  CHECK(Save(**now, fs, 1).ok());
  CHECK(Open(fs).value()->opened().used.epoch < 9000);
}

TEST_CASE(
    "Wherever a coordinator hangs while it is replaced, it changes nothing that its successor counts on") {
  enum class Successor { kOpens, kSavesTheSame, kSavesLater, kBegins, kWrites };
  const Successor successor = GENERATE(Successor::kOpens, Successor::kSavesTheSame, Successor::kSavesLater,
                                       Successor::kBegins, Successor::kWrites);
  const bool again = GENERATE(false, true);  // the successor's step is there already, and does not count
  CAPTURE(successor, again);
  int before = 0, after = 0;
  for (int at = 0;; ++at) {
    CAPTURE(at);
    FaultyFileSystem fs(static_cast<uint64_t>(at));
    for (uint64_t step : {3, 8}) {
      if (step == 3 || again) REQUIRE(Save(**Open(fs, 2), fs, step) == absl::OkStatus());
    }
    if (again) fs.SetContents("/runs/7/step-00000008/manifest.json", "{}");
    auto old = Open(fs, 2);
    REQUIRE(old.ok());
    std::unique_ptr<JobStore> now;
    uint64_t newest = 0;
    const Hang hang(fs, at, [&] {
      now = *Open(fs, 2);
      newest = now->opened().newest->step();
      const uint64_t next = newest + (successor == Successor::kSavesLater ? 9 : newest == 3 ? 5 : 1);
      if (successor == Successor::kSavesTheSame || successor == Successor::kSavesLater) {
        REQUIRE(Save(*now, fs, next, 2.5f, 9) == absl::OkStatus());
        newest = next;
      }
      if (successor == Successor::kBegins) REQUIRE(Begin(*now, next) == absl::OkStatus());
      if (successor == Successor::kWrites) {
        REQUIRE(Begin(*now, next) == absl::OkStatus());
        REQUIRE(WriteShard(fs, next, 2.5f, 9).ok());
      }
    });
    const absl::Status saved = Save(**old, fs, 8);
    if (!hang.hung()) break;
    // The checkpoint was there before the successor looked, or never counts.
    const bool found = now->opened().newest->step() == 8;
    ++(found ? after : before);
    CHECK((!saved.ok() || found));
    CHECK((found || newest == 3 || ValueOf(fs, newest) == 2.5f));
    if (found) CHECK(ValueOf(fs, 8) == 1.5f);
    CheckReplaced(**old, fs);
    // The successor can continue.
    const uint64_t next = std::max<uint64_t>(newest, 8) + 1;
    if (Save(*now, fs, next, 3.5f, 11) != absl::OkStatus())
      REQUIRE(Save(*now, fs, next, 3.5f, 11) == absl::OkStatus());
    CHECK(Open(fs, 2).value()->opened().newest->step() == next);
    CHECK(ValueOf(fs, next) == 3.5f);
  }
  CHECK(before > 30);
  CHECK(after > 0);
}

TEST_CASE("A successor that hangs while it is replaced, too, takes nothing from its own successor") {
  for (int first = 0;; first += 3) {
    bool any = false;
    for (int second = 0;; ++second) {
      CAPTURE(first, second);
      FaultyFileSystem fs(static_cast<uint64_t>(second));
      REQUIRE(Save(**Open(fs), fs, 3) == absl::OkStatus());
      auto old = Open(fs);
      absl::StatusOr<std::unique_ptr<JobStore>> middle = absl::UnknownError("");
      std::unique_ptr<JobStore> last;
      bool deep = false;
      const Hang hang(fs, first, [&] {
        any = true;
        {
          const Hang inner(fs, second, [&] {
            last = *Open(fs);
            REQUIRE(Save(*last, fs, 8, 2.5f, 9) == absl::OkStatus());
          });
          middle = Open(fs);
          deep = inner.hung();
        }
      });
      (void)Save(**old, fs, 8);
      if (!any || !deep) break;
      CHECK(ValueOf(fs, 8) == 2.5f);
      CheckReplaced(**old, fs);
      // The second store was replaced, or has replaced the third: one of the two has the job.
      const bool newer =
          middle.ok() && (*middle)->opened().coordinator_incarnation > last->opened().coordinator_incarnation;
      CHECK(Reserve(*last, {50000, 50000}).ok() != newer);
      if (middle.ok()) CHECK(Reserve(**middle, {50000, 50000}).ok() == newer);
    }
    if (!any) break;
  }
}

TEST_CASE(
    "Two that open a store at once get different numbers, and one of them has it, wherever either hangs") {
  for (int at = 0;; ++at) {
    CAPTURE(at);
    FaultyFileSystem fs(static_cast<uint64_t>(at));
    if (at % 2 == 0) REQUIRE(Save(**Open(fs), fs, 3) == absl::OkStatus());
    absl::StatusOr<std::unique_ptr<JobStore>> b = absl::UnknownError("");
    absl::Status reserved;
    const Hang hang(fs, at, [&] {
      b = Open(fs);
      REQUIRE(b.ok());
      reserved = Reserve(**b, {7000, 7000});
    });
    auto a = Open(fs);
    if (!hang.hung()) break;
    REQUIRE(reserved.ok());
    const bool a_has_it = a.ok() && Reserve(**a, {20000, 20000}).ok();
    CHECK(Reserve(**b, {20000, 20000}).ok() != a_has_it);
    if (!a.ok()) {
      CHECK(a.status().code() == absl::StatusCode::kAborted);
      continue;
    }
    const JobStore::Opened& one = (*a)->opened();
    const JobStore::Opened& other = (*b)->opened();
    CHECK(one.coordinator_incarnation != other.coordinator_incarnation);
    CHECK((one.coordinator_incarnation > other.coordinator_incarnation) == a_has_it);
    // The two stores never share a number.
    CHECK((a_has_it ? one.used.epoch >= 7000 : other.used.epoch >= one.reserved.epoch));
  }
}

TEST_CASE(
    "A store that somebody has who certainly runs is refused, with whom; one of a dead process is taken") {
  FaultyFileSystem fs(1);
  bool runs = true;
  const auto open = [&](const std::string& host, uint64_t pid) {
    JobStoreOnDisk::Options options;
    options.file_system = &fs;
    options.directory = "/runs/7";
    options.holder.set_host(host);
    options.holder.set_pid(pid);
    options.holder.set_since(1790000000);
    options.certainly_runs = [&runs](const v1::FolderHolder& holder) { return runs && holder.pid() != 0; };
    options.run = [](const std::function<void()>& work) { work(); };
    return JobStoreOnDisk::Open(std::move(options));
  };
  auto first = open("gpu-3", 4711);
  REQUIRE(first.ok());
  const auto second = open("gpu-3", 4712);
  CHECK(second.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(second.status().message()),
             Contains("checkpoint.directory: /runs/7 is in use by another ps:0, process 4711 on gpu-3, since "
                      "2026-09-21T14:13:20Z"));
  CHECK(Save(**first, fs, 3).ok());
  runs = false;
  auto third = open("gpu-4", 12);
  REQUIRE(third.ok());
  CHECK((*third)->opened().newest->step() == 3);
  CHECK_THAT(std::string(Reserve(**first, {9000, 9000}).message()), Contains("process 12 on gpu-4, since"));
}

TEST_CASE("A folder of an earlier version of Weir is gone on with") {
  FaultyFileSystem fs(1);
  REQUIRE(fs.MakeFolder("/runs").ok());
  REQUIRE(fs.MakeFolder("/runs/7").ok());
  REQUIRE(fs.SyncFolder("/").ok());
  // The file as version 0.1 wrote it.
  const std::string content =
      "{\n\"memory\": {\n  \"coordinator_incarnation\": 4,\n  \"epoch_limit\": 5000,\n  "
      "\"incarnation_limit\": 6000\n}\n";
  REQUIRE(fs.WriteFile("/runs/7/coordinator.json",
                       absl::StrFormat("%s,\n\"crc32c\": \"%08x\"\n}\n", content, Crc32c(content)))
              .ok());
  for (uint64_t incarnation : {5, 6}) {
    const auto store = Open(fs);
    REQUIRE(store.status() == absl::OkStatus());
    CHECK((*store)->opened().coordinator_incarnation == incarnation);
    CHECK((*store)->opened().used.epoch >= 5000);
    CHECK((*store)->opened().used.incarnation >= 6000);
    CHECK(*fs.List("/runs/7") == std::vector<std::string>{"coordinator"});
    fs.Crash();
  }
}

TEST_CASE("Records do not pile up") {
  FaultyFileSystem fs(1);
  auto store = Open(fs);
  for (uint64_t step = 1; step <= 30; ++step) REQUIRE(Save(**store, fs, step) == absl::OkStatus());
  CHECK(fs.List("/runs/7/coordinator")->size() == 8);
}

TEST_CASE("The newest complete checkpoint is found, the old ones go") {
  FaultyFileSystem fs(1);
  {
    auto store = Open(fs, 2);
    for (uint64_t step : {3, 5, 8}) REQUIRE(Save(**store, fs, step) == absl::OkStatus());
    absl::Status begun;
    (*store)->Begin(9, [&](absl::Status status) { begun = std::move(status); });
    CHECK(begun.ok());
    CHECK((*store)->FolderOf(8) == "/runs/7/step-00000008");
  }
  CHECK(fs.List("/runs/7").value() ==
        std::vector<std::string>{"coordinator", "step-00000005", "step-00000008", "step-00000009"});
  auto store = Open(fs, 2);
  REQUIRE((*store)->opened().newest.has_value());
  CHECK((*store)->opened().newest->step() == 8);
  CHECK((*store)->opened().newest->incarnation() == 1);
  // A step whose checkpoint the job does not use can be saved anew.
  fs.SetContents("/runs/7/step-00000008/manifest.json", "{}");
  auto again = Open(fs, 2);
  CHECK((*again)->opened().newest->step() == 5);
  CHECK(Save(**again, fs, 8).ok());
  CHECK(Open(fs)->get()->opened().newest->step() == 8);
}

TEST_CASE("A coordinator that is replaced right after its commit removes nothing that its successor made") {
  FaultyFileSystem fs(1);
  const auto old = *Open(fs, /*keep=*/2);
  REQUIRE(Save(*old, fs, 5) == absl::OkStatus());
  REQUIRE(Begin(*old, 6) == absl::OkStatus());
  v1::CheckpointManifest manifest;
  manifest.set_step(6);
  *manifest.mutable_model() = ToProto(Model());
  manifest.mutable_job()->set_committed_steps(6);
  *manifest.add_files() = *WriteShard(fs, 6, 1.5f, 7);
  // The old store hangs between its commit and the removal of older checkpoints.
  std::unique_ptr<JobStore> next;
  old->Commit(manifest, [&](const absl::Status& status) {
    REQUIRE(status == absl::OkStatus());
    next = *Open(fs, /*keep=*/9);
    for (const uint64_t step : {7, 8, 9, 10}) REQUIRE(Save(*next, fs, step) == absl::OkStatus());
  });
  REQUIRE(next != nullptr);
  for (const uint64_t step : {7, 8, 9, 10}) CHECK(ValueOf(fs, step) == 1.5f);
}

TEST_CASE("Checkpoints that were copied without the records say which epochs were used") {
  FaultyFileSystem fs(1);
  CHECK(Save(**Open(fs), fs, 3).ok());
  const std::vector<std::string> records = *fs.List("/runs/7/coordinator");
  for (const std::string& name : records) CHECK(fs.Remove(JoinPath("/runs/7/coordinator", name)).ok());
  auto store = Open(fs);
  CHECK((*store)->opened().coordinator_incarnation == 2);
  CHECK((*store)->opened().used.epoch == 5);
}

TEST_CASE("Damage is refused, never read as something else") {
  FaultyFileSystem fs(1);
  CHECK(Save(**Open(fs), fs, 3).ok());
  const std::string path = NewestRecord(fs);
  const std::string good = fs.Contents(path);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] ^= 1;
    fs.SetContents(path, bad);
    const auto store = Open(fs);
    REQUIRE(store.status().code() == absl::StatusCode::kDataLoss);
    CHECK_THAT(std::string(store.status().message()), Contains(path) && Contains("damaged"));
    fs.SetContents(path, good.substr(0, i));
    REQUIRE(Open(fs).status().code() == absl::StatusCode::kDataLoss);
  }
  fs.SetContents(path, good);
  // All checkpoints are damaged: the open fails instead of starting anew in silence.
  fs.SetContents("/runs/7/step-00000003/manifest.json", "{}");
  CHECK(Open(fs).status().code() == absl::StatusCode::kDataLoss);
}

// A bit flips in the data of this step's checkpoint.
void Flip(FaultyFileSystem& fs, uint64_t step) {
  const std::string path = JoinPath(CheckpointFolder("/runs/7", step), ShardFileName(0, 1));
  std::string bad = fs.Contents(path);
  bad[bad.size() - 3] ^= 1;
  fs.SetContents(path, bad);
}

absl::StatusOr<v1::CheckpointManifest> PassOver(JobStore& store, uint64_t step) {
  absl::StatusOr<v1::CheckpointManifest> result = absl::UnknownError("no answer");
  store.PassOver(step, "shard-00000-of-00001.safetensors: tensor 'w' is damaged",
                 [&](absl::StatusOr<v1::CheckpointManifest> found) { result = std::move(found); });
  return result;
}

TEST_CASE("A damaged newest checkpoint is marked, and the newest whole one before it is the job's") {
  FaultyFileSystem fs(1);
  auto store = Open(fs, 2);
  for (uint64_t step : {3, 4, 5, 6}) REQUIRE(Save(**store, fs, step, static_cast<float>(step)).ok());
  for (uint64_t step : {7, 8}) REQUIRE(Save(**Open(fs, 9), fs, step).ok());
  store = Open(fs, 2);
  for (uint64_t step : {7, 8}) Flip(fs, step);
  const auto found = PassOver(**store, 8);
  REQUIRE(found.status() == absl::OkStatus());
  CHECK(found->step() == 6);
  CHECK_THAT(fs.Contents("/runs/7/step-00000008/damaged.txt"), Contains("tensor 'w' is damaged"));
  CHECK_THAT(fs.Contents("/runs/7/step-00000007/damaged.txt"), Contains("is damaged: its checksum is"));
  // The next start need not read the damaged checkpoints, and does not use their numbers again.
  store = Open(fs, 2);
  REQUIRE((*store)->opened().newest.has_value());
  CHECK((*store)->opened().newest->step() == 6);
  // The damaged checkpoints stay, and do not count: two whole ones are kept.
  REQUIRE(Save(**store, fs, 9).ok());
  const auto left = FindCheckpoints(fs, "/runs/7");
  std::vector<uint64_t> steps;
  for (const CheckpointEntry& entry : *left) steps.push_back(entry.step);
  CHECK(steps == std::vector<uint64_t>{6, 7, 8, 9});
  CHECK(ValueOf(fs, 6) == 6);
  // As any checkpoints, they are removed once there are enough newer ones.
  REQUIRE(Save(**store, fs, 10).ok());
  CHECK(FindCheckpoints(fs, "/runs/7")->size() == 2);
}

TEST_CASE("A job that comes to the step of a damaged checkpoint again saves it again") {
  FaultyFileSystem fs(1);
  auto store = Open(fs);
  for (uint64_t step : {3, 4}) REQUIRE(Save(**store, fs, step).ok());
  Flip(fs, 4);
  REQUIRE(PassOver(**store, 4)->step() == 3);
  REQUIRE(Save(**store, fs, 4, 2.5f).ok());
  CHECK(ValueOf(fs, 4) == 2.5f);
  CHECK(Open(fs).value()->opened().newest->step() == 4);
}

TEST_CASE("Without a whole checkpoint there is none to go on from, now and at each later start") {
  FaultyFileSystem fs(1);
  auto store = Open(fs);
  for (uint64_t step : {3, 4}) {
    REQUIRE(Save(**store, fs, step).ok());
    Flip(fs, step);
  }
  for (const absl::Status& status : {PassOver(**store, 4).status(), Open(fs).status()}) {
    CHECK(status.code() == absl::StatusCode::kDataLoss);
    CHECK_THAT(std::string(status.message()),
               Contains("/runs/7/step-00000003") && Contains("is damaged") && Contains("from a copy"));
  }
  // The checkpoint is put back from a copy.
  Flip(fs, 3);
  REQUIRE(fs.Remove("/runs/7/step-00000003/damaged.txt").ok());
  CHECK(Open(fs).value()->opened().newest->step() == 3);
}

TEST_CASE("A checkpoint that is whole here is not marked, and neither is one by a store that was replaced") {
  FaultyFileSystem fs(1);
  auto old = Open(fs);
  for (uint64_t step : {3, 4}) REQUIRE(Save(**old, fs, step).ok());
  CHECK(PassOver(**old, 4).status().code() == absl::StatusCode::kFailedPrecondition);
  auto now = Open(fs);
  Flip(fs, 4);
  CHECK(PassOver(**old, 4).status().code() == absl::StatusCode::kAborted);
  CHECK(fs.Contents("/runs/7/step-00000004/damaged.txt").empty());
  CHECK(now.value()->opened().newest->step() == 4);
}

TEST_CASE("A disk without room for the mark is no hindrance; the mark comes with the next checkpoint") {
  FaultyFileSystem fs(1);
  auto store = Open(fs, 1);
  for (uint64_t step : {3, 4}) REQUIRE(Save(**store, fs, step).ok());
  REQUIRE(Save(**Open(fs, 9), fs, 5).ok());
  store = Open(fs, 1);
  Flip(fs, 5);
  fs.SetFault([](const FaultyFileSystem::Operation& operation) {
    return operation.kind == Kind::kAppend && absl::StrContains(operation.path, "damaged.txt")
               ? absl::ResourceExhaustedError("no space left")
               : absl::OkStatus();
  });
  REQUIRE(PassOver(**store, 5)->step() == 4);
  CHECK(fs.Contents("/runs/7/step-00000005/damaged.txt").empty());
  fs.SetFault(nullptr);
  REQUIRE(Save(**store, fs, 6).ok());
  CHECK(FindCheckpoints(fs, "/runs/7")->size() == 1);
}

TEST_CASE("A full disk leaves the last checkpoint, and the store goes on when there is room") {
  FaultyFileSystem fs(1);
  auto store = Open(fs);
  CHECK(Save(**store, fs, 3).ok());
  fs.SetCapacity(fs.bytes_used() + 50);
  CHECK(Save(**store, fs, 4).code() == absl::StatusCode::kResourceExhausted);
  CHECK(Reserve(**store, {50000, 50000}).code() == absl::StatusCode::kResourceExhausted);
  fs.SetCapacity(1 << 20);
  CHECK(Reserve(**store, {50000, 50000}).ok());
  CHECK(Save(**store, fs, 4).ok());
}

TEST_CASE("What came to nothing is cleared away at once, on a disk that is full to the last byte, too") {
  FaultyFileSystem fs(1);
  auto store = Open(fs);
  REQUIRE(Save(**store, fs, 3).ok());
  REQUIRE(Begin(**store, 4).ok());
  const uint64_t before = fs.bytes_used();
  SECTION("what a shard has written") {
    REQUIRE(WriteShard(fs, 4, 2.5f, 7).ok());
    REQUIRE(fs.WriteFile("/runs/7/step-00000004/.shard-00001-of-00002.safetensors.tmp-8", "half").ok());
    fs.SetCapacity(fs.bytes_used());
    (*store)->Discard(4);
    CHECK_FALSE(fs.List("/runs/7/step-00000004").ok());
    CHECK(fs.bytes_used() == before);
  }
  SECTION("nothing, or no folder") {
    fs.SetCapacity(fs.bytes_used());
    (*store)->Discard(4);
    (*store)->Discard(4);
    CHECK_FALSE(fs.List("/runs/7/step-00000004").ok());
  }
  SECTION("but not what somebody else has put there") {
    REQUIRE(fs.WriteFile("/runs/7/step-00000004/notes.txt", "mine").ok());
    (*store)->Discard(4);
    CHECK(fs.Contents("/runs/7/step-00000004/notes.txt") == "mine");
  }
  // A complete checkpoint stays.
  (*store)->Discard(3);
  CHECK(LatestComplete(fs, "/runs/7")->manifest.step() == 3);
  fs.SetCapacity(1 << 20);
  CHECK(Save(**store, fs, 4).ok());
  CHECK(LatestComplete(fs, "/runs/7")->manifest.step() == 4);
}

TEST_CASE("A store that was replaced clears nothing away, on a full disk, too") {
  FaultyFileSystem fs(1);
  auto old = Open(fs);
  REQUIRE(Begin(**old, 4).ok());
  auto now = Open(fs);
  REQUIRE(Begin(**now, 4).ok());
  const auto file = WriteShard(fs, 4, 2.5f, 7);
  REQUIRE(file.ok());
  if (GENERATE(true, false)) fs.SetCapacity(fs.bytes_used());
  (*old)->Discard(4);
  fs.SetCapacity(1 << 20);
  CHECK(fs.List("/runs/7/step-00000004")->size() == 1);
}

TEST_CASE("By itself a store works on a thread of its own, and ends when all is done") {
  FaultyFileSystem fs(1);
  JobStoreOnDisk::Options options;
  options.file_system = &fs;
  options.directory = "/runs/7";
  auto store = JobStoreOnDisk::Open(options);
  REQUIRE(store.ok());
  std::promise<absl::Status> begun;
  (*store)->Begin(1, [&](absl::Status status) { begun.set_value(std::move(status)); });
  store->reset();
  auto result = begun.get_future();
  REQUIRE(result.wait_for(std::chrono::seconds(0)) == std::future_status::ready);
  CHECK(result.get().ok());
}

TEST_CASE("A directory that cannot be made is named") {
  FaultyFileSystem fs(1);
  fs.SetFault([](const FaultyFileSystem::Operation& operation) {
    return operation.kind == Kind::kMakeFolder
               ? absl::PermissionDeniedError(absl::StrCat(operation.path, ": no"))
               : absl::OkStatus();
  });
  const auto store = Open(fs);
  CHECK(store.status().code() == absl::StatusCode::kPermissionDenied);
  CHECK_THAT(std::string(store.status().message()), Contains("checkpoint.directory") && Contains("/runs/7"));
}

}  // namespace
}  // namespace weir

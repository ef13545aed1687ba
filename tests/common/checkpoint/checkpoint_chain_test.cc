// Checkpoints that hold what has changed since the one before: chains of them, what is left when a link is
// damaged, and which links stay.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/table_writer.h"
#include "common/model/key_bucket.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"
#include "tests/common/faulty_file_system.h"
#include "tests/common/forwarding_file_system.h"

namespace weir {
namespace {

constexpr char kDir[] = "/c";

bool Says(const absl::Status& status, const std::string& text) {
  INFO(status);
  return absl::StrContains(status.message(), text);
}

struct Entry {
  uint64_t updated;
  std::vector<float> words;  // of a row: 2 values, 1 slot
  uint64_t pushes;           // of a counter
  bool operator==(const Entry& other) const {
    return updated == other.updated && words == other.words && pushes == other.pushes;
  }
};
using Entries = std::map<uint64_t, Entry>;

// A job of two shards with one table, "t", as plain maps.
class PlainJob {
 public:
  explicit PlainJob(FileSystem& fs) : fs_(fs) {}

  Entries rows, counters;
  uint64_t version = 0;

  // Makes a version in which some rows and counters are made, change and go.
  void Update(uint64_t some, uint64_t gone) {
    ++version;
    for (uint64_t i = 0; i < some; ++i) {
      const uint64_t key = random_.NextBelow(300);
      const float value = UniformFloat(random_.Next());
      Change(rows, removed_rows_, key, {version, {value, -value, value * 3}, 0});
      const uint64_t counted = 1000 + random_.NextBelow(90);
      Change(counters, removed_counters_, counted, {version, {}, 1 + random_.NextBelow(9)});
    }
    for (uint64_t i = 0; i < gone; ++i) {
      Remove(rows, removed_rows_, random_.NextBelow(300));
      Remove(counters, removed_counters_, 1000 + random_.NextBelow(90));
    }
  }

  // Writes a checkpoint; `delta`: of what has changed since the last one.
  absl::Status Save(uint64_t step, bool delta,
                    const std::function<void(v1::CheckpointManifest&)>& spoil = nullptr,
                    std::optional<uint64_t> best = std::nullopt) {
    StoredJob dense{TestModel(20), {}, 1};
    dense.version = version;
    absl::Status status = fs_.HoldsFolders(kDir) ? BeginCheckpoint(fs_, kDir, step) : BeginInObjects(step);
    v1::CheckpointManifest manifest = dense.Manifest(step);
    for (uint32_t shard = 0; shard < 2 && status.ok(); ++shard) {
      absl::StatusOr<v1::CheckpointFile> file = dense.WriteShard(fs_, kDir, step, shard, 2);
      if (!file.ok()) return file.status();
      absl::StatusOr<v1::CheckpointTable> table = WriteTable(step, shard, delta);
      if (!table.ok()) return table.status();
      *file->add_tables() = *table;
      *manifest.add_files() = *file;
    }
    if (delta) manifest.add_chain()->set_step(saved_step_);
    if (best.has_value()) manifest.mutable_job()->mutable_best()->set_checkpoint(*best);
    if (spoil) spoil(manifest);
    if (status.ok()) status = CommitCheckpoint(fs_, kDir, manifest);
    if (!status.ok()) return status;
    saved_ = version;
    saved_step_ = step;
    removed_rows_.clear();
    removed_counters_.clear();
    return status;
  }

  // Whether all shards of so many, together, have the job's state from this folder.
  absl::Status CheckLoaded(const std::string& folder, uint32_t shards) const {
    const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(fs_, folder);
    if (!reader.ok()) return reader.status();
    Entries got_rows, got_counters;
    for (uint32_t shard = 0; shard < shards; ++shard) {
      const auto taker = [&](Entries& to) {
        return [&, shard](const TableEntries& from) {
          for (size_t i = 0; i < from.keys.size(); ++i) {
            Entry entry{from.updated[i], {}, 0};
            if (!from.values.empty()) {
              entry.words = {from.values[2 * i], from.values[2 * i + 1], from.slots[i]};
            } else {
              entry.pushes = from.pushes[i];
            }
            if (ShardOfKey(from.keys[i], shards) != shard || !to.emplace(from.keys[i], entry).second) {
              return absl::InternalError("a key of another shard, or twice");
            }
          }
          return absl::OkStatus();
        };
      };
      const absl::Status loaded =
          reader->LoadTable(/*index=*/0, shard, shards, {taker(got_rows), taker(got_counters)});
      if (!loaded.ok()) return loaded;
    }
    if (reader->RowsOf(0) != rows.size()) return absl::InternalError("RowsOf");
    if (got_rows != rows) return absl::InternalError("other rows");
    return got_counters == counters ? absl::OkStatus() : absl::InternalError("other counters");
  }

 private:
  // As BeginAttempt() does, but for the reservation.
  absl::Status BeginInObjects(uint64_t step) {
    if (const absl::Status made = fs_.MakeFolder(kDir); !made.ok()) return made;
    return fs_.MakeFolder(CheckpointFolder(kDir, step, ++attempt_));
  }
  static void Change(Entries& entries, std::set<uint64_t>& removed, uint64_t key, Entry entry) {
    entries[key] = std::move(entry);
    removed.erase(key);
  }
  static void Remove(Entries& entries, std::set<uint64_t>& removed, uint64_t key) {
    if (entries.erase(key) > 0) removed.insert(key);
  }
  // What a section has of a shard, in its order, from this version on.
  static std::vector<std::pair<uint64_t, Entry>> Sorted(const Entries& entries, uint32_t shard,
                                                        uint64_t from) {
    std::vector<std::pair<uint64_t, Entry>> sorted;
    for (const auto& [key, entry] : entries) {
      if (ShardOfKey(key, 2) == shard && entry.updated >= from) {
        sorted.emplace_back(key, entry);
      }
    }
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      const auto place = [](uint64_t key) { return std::make_pair(BucketOfHash(HashKey(key)), key); };
      return place(a.first) < place(b.first);
    });
    return sorted;
  }
  static Entries KeysAlone(const std::set<uint64_t>& keys) {
    Entries entries;
    for (const uint64_t key : keys) entries[key] = {};
    return entries;
  }

  absl::StatusOr<v1::CheckpointTable> WriteTable(uint64_t step, uint32_t shard, bool delta) {
    const uint64_t from = delta ? saved_ + 1 : 0;
    const auto rows_here = Sorted(rows, shard, from), counters_here = Sorted(counters, shard, from);
    const auto gone = Sorted(delta ? KeysAlone(removed_rows_) : Entries(), shard, 0),
               uncounted = Sorted(delta ? KeysAlone(removed_counters_) : Entries(), shard, 0);
    v1::CheckpointTable record;
    *record.mutable_table() = TestTable("t", 2);
    record.set_slot_words(1);
    record.set_chunk_bytes(100);
    record.set_rows(rows_here.size());
    record.set_counters(counters_here.size());
    if (delta) {
      record.set_delta_since(saved_);
      record.set_removed_rows(gone.size());
      record.set_removed_counters(uncounted.size());
      record.set_total_rows(Sorted(rows, shard, 0).size());
      record.set_total_counters(Sorted(counters, shard, 0).size());
    }
    auto writer = TableWriter::Create(fs_, kDir, step, {shard, 2, 7}, 0, record);
    if (!writer.ok()) return writer.status();
    for (const auto& [key, entry] : rows_here) (*writer)->AddRow(key, entry.updated, entry.words);
    for (const auto& [key, entry] : counters_here) {
      (*writer)->AddCounter(key, entry.updated, static_cast<uint32_t>(entry.pushes));
    }
    for (const auto& [key, entry] : gone) (*writer)->AddRemoved(TableSection::kRemovedRows, key);
    for (const auto& [key, entry] : uncounted) (*writer)->AddRemoved(TableSection::kRemovedCounters, key);
    return (*writer)->Finish(absl::OkStatus());
  }

  FileSystem& fs_;
  RandomStream random_{RandomKey(3, "checkpoint_chain_test"), 0};
  std::set<uint64_t> removed_rows_, removed_counters_;
  uint64_t saved_ = 0, saved_step_ = 0, attempt_ = 40;
};

// Folders cannot be held, as in object storage.
class LikeObjects final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  bool HoldsFolders(const std::string&) const override { return false; }
};

std::string Folder(uint64_t step) { return CheckpointFolder(kDir, step); }

// A base at step 10 and deltas at 20, 30 and so on.
void SaveChain(PlainJob& job, int deltas) {
  for (int i = 0; i < 5; ++i) job.Update(60, 5);
  REQUIRE(job.Save(10, false) == absl::OkStatus());
  for (int i = 1; i <= deltas; ++i) {
    job.Update(12, 6);
    job.Update(3, 1);
    REQUIRE(job.Save(10 * static_cast<uint64_t>(i) + 10, true) == absl::OkStatus());
  }
}

TEST_CASE("A chain is the whole state after each of its links, on any number of shards, bit for bit") {
  FaultyFileSystem fs(1);
  PlainJob job(fs);
  for (int i = 0; i < 5; ++i) job.Update(60, 5);
  REQUIRE(job.Save(10, false) == absl::OkStatus());
  for (uint64_t step = 20; step <= 110; step += 10) {
    if (step != 50) job.Update(12, 6);  // otherwise nothing has changed
    if (step == 70) {
      job.Update(0, 400);  // nearly all are gone
    }
    REQUIRE(job.Save(step, true) == absl::OkStatus());
    for (uint32_t shards : {1, 2, 3}) {
      INFO(step << " on " << shards);
      CHECK(job.CheckLoaded(Folder(step), shards) == absl::OkStatus());
    }
    const auto reader = CheckpointReader::Open(fs, Folder(step));
    REQUIRE(reader.ok());
    CHECK(reader->manifest().chain_size() == static_cast<int>(step / 10) - 1);
    CHECK(reader->manifest().chain(0).folder() == "step-00000010");
    CHECK(reader->Verify() == absl::OkStatus());
    CHECK(reader->Export("/out").status() == absl::OkStatus());
  }
  CHECK(fs.Open(Folder(20) + "/shard-00001-of-00002.table-000.delta.safetensors").ok());
  // A chain has ten deltas at most.
  CHECK(Says(job.Save(120, true), "chain: must have 1 to 10 checkpoints"));
  job.Update(9, 3);
  REQUIRE(job.Save(130, false) == absl::OkStatus());
  CHECK(job.CheckLoaded(Folder(130), 2) == absl::OkStatus());
  CHECK(CheckpointReader::Open(fs, Folder(130))->manifest().chain().empty());
}

TEST_CASE("A chain with a damaged, missing or replaced link is refused by name, and an older one is taken") {
  FaultyFileSystem fs(1);
  PlainJob job(fs);
  SaveChain(job, 4);
  const std::string delta = "/shard-00000-of-00002.table-000.delta.safetensors";
  std::string expected;
  uint64_t newest = 0;  // that is complete
  SECTION("the base has no manifest") {
    REQUIRE(fs.Remove(Folder(10) + "/manifest.json").ok());
    expected = "/c/step-00000050 builds on it (link 1 of the 4 of its chain)";
  }
  SECTION("a delta is gone") {
    REQUIRE(RemoveCheckpoint(fs, Folder(30)).ok());
    expected = "/c/step-00000030/manifest.json";
    newest = 20;
  }
  SECTION("a delta has another one's name") {
    REQUIRE(fs.Remove(Folder(30) + "/manifest.json").ok());
    auto file = fs.Create(Folder(30) + "/manifest.json", FileSystem::Existing::kKeep);
    REQUIRE(file.ok());
    REQUIRE((*file)->Append(fs.Contents(Folder(20) + "/manifest.json")).ok());
    REQUIRE((*file)->Close().ok());
    expected = "/c/step-00000030 is a different checkpoint from the one that /c/step-00000050 builds on";
    newest = 20;
  }
  SECTION("a delta's file is gone") {
    REQUIRE(fs.Remove(Folder(30) + delta).ok());
    expected = Folder(30) + delta;
    newest = 20;
  }
  const auto found = LatestComplete(fs, kDir);
  if (newest == 0) {
    CHECK(absl::IsNotFound(found.status()));
    CHECK(Says(found.status(), expected));
  } else {
    REQUIRE(found.ok());
    CHECK(found->manifest.step() == newest);
    REQUIRE(!found->refused.empty());
    CHECK(Says(absl::DataLossError(found->refused[0]), expected));
  }
  const absl::Status loaded = job.CheckLoaded(Folder(50), 2);
  CHECK((absl::IsDataLoss(loaded) || absl::IsNotFound(loaded)));
  CHECK(Says(loaded, expected));
}

TEST_CASE("Damage within a link's file is found when it is read, and named") {
  for (const std::string table : {".table-000.delta", ".table-000"}) {
    FaultyFileSystem fs(1);
    PlainJob job(fs);
    SaveChain(job, 3);
    const std::string path =
        Folder(table == ".table-000" ? 10 : 30) + "/shard-00001-of-00002" + table + ".safetensors";
    std::string bytes = fs.Contents(path);
    bytes[bytes.size() - 3] ^= 1;
    REQUIRE(fs.Remove(path).ok());
    auto file = fs.Create(path, FileSystem::Existing::kKeep);
    REQUIRE(file.ok());
    REQUIRE((*file)->Append(bytes).ok());
    REQUIRE((*file)->Close().ok());
    const auto reader = CheckpointReader::Open(fs, Folder(40));
    REQUIRE(reader.ok());
    CHECK(absl::IsDataLoss(reader->Verify()));
    CHECK(Says(reader->Verify(), path + ": tensor '"));
    CHECK(Says(job.CheckLoaded(Folder(40), 3), path));
    // What builds on it is passed over, too.
    std::vector<std::string> damaged;
    const auto whole = FindWholeBefore(
        fs, kDir, 50, [&](const std::string& folder, const std::string&) { damaged.push_back(folder); });
    if (table == ".table-000") {
      CHECK(absl::IsDataLoss(whole.status()));
      CHECK(Says(whole.status(), path + ": tensor '"));
      CHECK(damaged == std::vector<std::string>{Folder(40), Folder(30), Folder(20), Folder(10)});
    } else {
      REQUIRE(whole.ok());
      CHECK(whole->folder == Folder(20));
      CHECK(damaged == std::vector<std::string>{Folder(40), Folder(30)});
    }
    CHECK(Says(FindWholeBefore(fs, Folder(40), 50).status(), "names one checkpoint"));
  }
}

TEST_CASE("A delta that does not fit its chain is not committed") {
  const auto save = [](const std::function<void(v1::CheckpointManifest&)>& spoil) {
    FaultyFileSystem fs(1);
    PlainJob job(fs);
    SaveChain(job, 2);
    job.Update(9, 3);
    const absl::Status status = job.Save(40, true, spoil);
    CHECK(LatestComplete(fs, kDir)->manifest.step() == 30);
    return status;
  };
  const auto table = [](v1::CheckpointManifest& m) { return m.mutable_files(1)->mutable_tables(0); };
  CHECK(
      Says(save([](auto& m) { m.clear_chain(); }), "chain: must have 1 to 10 checkpoints, since some file"));
  CHECK(Says(save([](auto& m) { m.mutable_chain(0)->set_step(20); }),
             "which does not fit: the table's version is"));
  CHECK(Says(save([](auto& m) { m.mutable_chain(0)->set_step(7); }), "checkpoint 40 builds on it"));
  CHECK(Says(save([&](auto& m) { table(m)->clear_delta_since(); }), "tables[0].name"));
  CHECK(Says(save([&](auto& m) { table(m)->set_delta_since(1000); }), "delta_since: must be at most"));
  CHECK(Says(save([&](auto& m) { table(m)->set_total_rows(0); }), "total_rows: must be in"));
  CHECK(Says(save([&](auto& m) { table(m)->set_slot_words(5); }), "slot_words"));
  CHECK(Says(save([&](auto& m) { table(m)->set_removed_rows(UINT64_MAX); }), "number of tensors"));
}

TEST_CASE("A manifest's chain has names of folders, never paths") {
  FaultyFileSystem fs(1);
  PlainJob job(fs);
  SaveChain(job, 2);
  const v1::CheckpointManifest right = CheckpointReader::Open(fs, Folder(30))->manifest();
  CHECK(CheckManifest(right) == absl::OkStatus());
  const auto check = [&](const std::function<void(v1::CheckpointManifest&)>& spoil) {
    v1::CheckpointManifest manifest = right;
    spoil(manifest);
    return CheckManifest(manifest);
  };
  for (const char* name : {"../step-00000010", "/c/step-00000010", "step-10", "step-00000011", "", ".."}) {
    CHECK(Says(check([&](auto& m) { m.mutable_chain(0)->set_folder(name); }), "chain[0]: '"));
  }
  CHECK(check([](auto& m) { m.mutable_chain(0)->set_folder("step-00000010.41"); }).ok());
  CHECK(Says(check([](auto& m) { m.mutable_chain()->SwapElements(0, 1); }), "chain[0]: '"));
  CHECK(Says(check([](auto& m) { *m.add_chain() = m.chain(0); }), "before"));
}

TEST_CASE("A chain whose removed keys are missing is not as large as it says, and is refused") {
  FaultyFileSystem fs(1);
  PlainJob job(fs);
  SaveChain(job, 1);
  job.Update(5, 20);
  REQUIRE(job.Save(30, true, [&](v1::CheckpointManifest& manifest) {
    for (v1::CheckpointFile& file : *manifest.mutable_files()) {
      file.mutable_tables(0)->set_total_rows(file.tables(0).total_rows() + 1);
    }
  }) == absl::OkStatus());
  const absl::Status loaded = job.CheckLoaded(Folder(30), 2);
  CHECK(absl::IsDataLoss(loaded));
  CHECK(Says(loaded, "its chain of 3 files has"));
}

TEST_CASE("Where a checkpoint's folder has the number of an attempt, a link has it, too") {
  FaultyFileSystem inner(1);
  LikeObjects fs(&inner);
  PlainJob job(fs);
  SaveChain(job, 3);
  const auto latest = LatestComplete(fs, kDir);
  REQUIRE(latest.ok());
  CHECK(latest->folder == "/c/step-00000040.44");
  REQUIRE(latest->manifest.chain_size() == 3);
  CHECK(latest->manifest.chain(0).folder() == "step-00000010.41");
  CHECK(latest->manifest.chain(2).folder() == "step-00000030.43");
  CHECK(job.CheckLoaded(latest->folder, 3) == absl::OkStatus());
  CHECK(RemoveOldCheckpoints(fs, kDir, 40, 1) == absl::OkStatus());
  CHECK(FindCheckpoints(fs, kDir)->size() == 4);
  CHECK(job.CheckLoaded(latest->folder, 1) == absl::OkStatus());
}

TEST_CASE("What a kept checkpoint builds on stays, however old") {
  FaultyFileSystem fs(1);
  PlainJob job(fs);
  SaveChain(job, 2);  // 10; 20, 30
  for (uint64_t step = 40; step <= 120; step += 10) {
    job.Update(12, 3);
    REQUIRE(job.Save(step, /*delta=*/step != 40 && step != 80 && step != 120, nullptr, 60) ==
            absl::OkStatus());
  }
  // Bases: 10, 40, 80, 120. The best is 60.
  const auto left = [&] {
    std::vector<uint64_t> steps;
    const auto entries = FindCheckpoints(fs, kDir);
    REQUIRE(entries.ok());
    for (const CheckpointEntry& entry : *entries) steps.push_back(entry.step);
    return steps;
  };
  const auto loadable = [&] {
    for (const uint64_t step : left()) {
      CHECK(CheckpointReader::Open(fs, Folder(step))->Verify() == absl::OkStatus());
    }
  };
  // A coordinator that was replaced long ago, and goes on: what is newer than it knows keeps its chain, too.
  REQUIRE(RemoveOldCheckpoints(fs, kDir, 50, 1, std::nullopt).ok());
  CHECK(left() == std::vector<uint64_t>{40, 50, 60, 70, 80, 90, 100, 110, 120});
  REQUIRE(RemoveOldCheckpoints(fs, kDir, 120, 2, 60).ok());
  CHECK(left() == std::vector<uint64_t>{40, 50, 60, 80, 90, 100, 110, 120});
  loadable();
  REQUIRE(RemoveOldCheckpoints(fs, kDir, 120, 2, std::nullopt).ok());
  CHECK(left() == std::vector<uint64_t>{80, 90, 100, 110, 120});
  loadable();
  REQUIRE(RemoveOldCheckpoints(fs, kDir, 120, 1, std::nullopt).ok());
  CHECK(left() == std::vector<uint64_t>{120});
}

}  // namespace
}  // namespace weir

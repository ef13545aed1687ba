#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

const StoredJob& Old() {
  static const StoredJob job{TestModel(100), {"m"}, 1, {TestTable("clicks", 2)}, 5};
  return job;
}
const StoredJob& New() {
  static const StoredJob job{TestModel(100), {"m"}, 2, {TestTable("clicks", 2)}, 5};
  return job;
}

// Step 20 after step 10, as a coordinator writes it: the old checkpoint is removed once the new one is there.
absl::Status WriteNew(FileSystem& fs) {
  const absl::Status status = New().Write(fs, "/c", 20, 2);
  return status.ok() ? RemoveOldCheckpoints(fs, "/c", 20, 1) : status;
}

// "" if the newest checkpoint is one of the two, whole; then `is_new` says which.
std::string CheckLatest(FileSystem& fs, bool* is_new) {
  const absl::StatusOr<FoundCheckpoint> latest = LatestComplete(fs, "/c");
  if (!latest.ok()) return latest.status().ToString();
  *is_new = latest->manifest.step() == 20;
  const absl::Status loaded = (*is_new ? New() : Old()).LoadAll(fs, latest->folder, *is_new ? 2 : 3);
  return loaded.ok() ? "" : loaded.ToString();
}

TEST_CASE(
    "A crash at any operation leaves the old checkpoint or the new one, whole, and a job that goes on") {
  uint64_t last = 0;
  {
    FaultyFileSystem fs(0);
    REQUIRE(Old().Write(fs, "/c", 10, 2).ok());
    const uint64_t first = fs.operations();
    REQUIRE(WriteNew(fs) == absl::OkStatus());
    last = fs.operations() - first;
  }
  REQUIRE(last > 30);
  int old_ones = 0, new_ones = 0;
  for (uint64_t at = 0; at <= last; ++at) {
    for (uint64_t seed = 0; seed < 10; ++seed) {
      FaultyFileSystem fs(seed);
      REQUIRE(Old().Write(fs, "/c", 10, 2).ok());
      const uint64_t first = fs.operations();
      fs.SetFault([&](const FaultyFileSystem::Operation& op) {
        return op.number - first >= at ? absl::UnavailableError("crash") : absl::OkStatus();
      });
      const bool done = WriteNew(fs).ok();
      fs.SetFault(nullptr);
      fs.Crash();
      bool is_new = false;
      const std::string wrong = CheckLatest(fs, &is_new);
      INFO("crash at operation " << at << " of " << last << ", seed " << seed);
      REQUIRE(wrong == "");
      if (done) REQUIRE(is_new);
      ++(is_new ? new_ones : old_ones);
      // The same step is written again, or a later one.
      if (is_new) REQUIRE(RemoveCheckpoint(fs, "/c/step-00000020") == absl::OkStatus());
      REQUIRE(WriteNew(fs) == absl::OkStatus());
      fs.Crash();
      REQUIRE(CheckLatest(fs, &is_new) == "");
      REQUIRE(is_new);
      REQUIRE(FindCheckpoints(fs, "/c")->size() == 1);
    }
  }
  CHECK(old_ones > 100);
  CHECK(new_ones > 50);
}

TEST_CASE("Any operation that fails is reported, and the checkpoint that is there stays") {
  for (uint64_t at = 0;; ++at) {
    FaultyFileSystem fs(at);
    REQUIRE(Old().Write(fs, "/c", 10, 2).ok());
    const uint64_t first = fs.operations();
    std::string path;
    fs.SetFault([&](const FaultyFileSystem::Operation& op) {
      if (op.number - first != at) return absl::OkStatus();
      path = op.path;
      return absl::UnknownError(op.path + ": Input/output error");
    });
    const absl::Status status = New().Write(fs, "/c", 20, 2);
    if (path.empty()) break;  // every path has had its turn
    fs.SetFault(nullptr);
    INFO("operation " << at << ", " << path << ": " << status);
    REQUIRE(absl::StrContains(status.message(), path + ": Input/output error"));
    bool is_new = false;
    REQUIRE(CheckLatest(fs, &is_new) == "");
    fs.Crash();
    REQUIRE(CheckLatest(fs, &is_new) == "");
  }
}

TEST_CASE("A disk that fills up at any byte: the error says so, and the checkpoint that is there stays") {
  FaultyFileSystem whole(1);
  REQUIRE(Old().Write(whole, "/c", 10, 2).ok());
  const uint64_t before = whole.bytes_used();
  REQUIRE(New().Write(whole, "/c", 20, 2).ok());
  const uint64_t needed = whole.bytes_used() - before;
  REQUIRE(needed > 3000);
  // All bytes would take a minute; 3 divides no size that matters.
  for (uint64_t room = 0; room < needed; room += 3) {
    FaultyFileSystem fs(1);
    REQUIRE(Old().Write(fs, "/c", 10, 2).ok());
    fs.SetCapacity(before + room);
    const absl::Status status = New().Write(fs, "/c", 20, 2);
    INFO("room for " << room << " bytes: " << status);
    REQUIRE(status.code() == absl::StatusCode::kResourceExhausted);
    REQUIRE(absl::StrContains(status.message(), "/c/step-00000020/."));
    REQUIRE(absl::StrContains(status.message(), "No space left on device"));
    bool is_new = true;
    REQUIRE(CheckLatest(fs, &is_new) == "");
    REQUIRE(!is_new);
    // Temporary files of the failed checkpoint are removed.
    const std::vector<std::string> names = *fs.List("/c/step-00000020");
    for (const std::string& name : names) REQUIRE(name[0] != '.');
    if (room % 99 != 0) continue;
    fs.SetCapacity(UINT64_MAX);
    REQUIRE(WriteNew(fs) == absl::OkStatus());
    REQUIRE(CheckLatest(fs, &is_new) == "");
    REQUIRE(is_new);
  }
}

TEST_CASE("A checkpoint that is half removed is none") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (uint64_t at = 0; at < 8; ++at) {
      FaultyFileSystem fs(seed);
      REQUIRE(Old().Write(fs, "/c", 10, 2).ok());
      REQUIRE(New().Write(fs, "/c", 20, 2).ok());
      const uint64_t first = fs.operations();
      fs.SetFault([&](const FaultyFileSystem::Operation& op) {
        return op.number - first >= at ? absl::UnavailableError("crash") : absl::OkStatus();
      });
      (void)RemoveCheckpoint(fs, "/c/step-00000020");
      fs.SetFault(nullptr);
      fs.Crash();
      bool is_new = false;
      INFO("crash at operation " << at << ", seed " << seed);
      REQUIRE(CheckLatest(fs, &is_new) == "");
      // Every folder with a manifest is whole.
      REQUIRE(LatestComplete(fs, "/c")->refused.empty());
    }
  }
}

}  // namespace
}  // namespace weir

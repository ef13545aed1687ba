// `weir checkpoint list`, `verify` and `weir export` as processes, on checkpoints of the library that servers
// use.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/cli/checkpointed_job.h"
#include "tests/cli/weir_process.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

class Folder {
 public:
  Folder() : path_(fs::path(std::getenv("TEST_TMPDIR")) / "runs-XXXXXX") {
    std::string name = path_.string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    path_ = name;
    REQUIRE(CheckpointedJob{}.Write(path_).ok());
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path(const std::string& name = "") const { return name.empty() ? path_ : path_ / name; }

 private:
  fs::path path_;
};

const char* const kFirstShard = "step-00000012/shard-00000-of-00002.safetensors";

// Each of two shards has about 500 of 1,000 elements: first the weights, then as many bytes of a slot.
constexpr int kInWeights = 3000;

void FlipByte(const std::string& path, int from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const char byte = static_cast<char>(file.get());
  file.seekp(-from_end, std::ios::end);
  file.put(static_cast<char>(byte ^ 1));
}

TEST_CASE("what is sound is said to be") {
  const Folder runs;
  for (const std::string& path : {runs.path(), runs.path("step-00000012")}) {
    const WeirResult verified = Weir({"checkpoint", "verify", path});
    INFO(verified.output);
    CHECK(verified.code == 0);
    CHECK_THAT(verified.output, Contains(runs.path("step-00000012") + ": ok (step 12, 2 files, "));
  }
  const WeirResult list = Weir({"checkpoint", "list", runs.path()});
  CHECK(list.code == 0);
  CHECK_THAT(list.output, Contains("step-00000012") && Contains("  complete\n"));
}

TEST_CASE("the best one is marked, and DIR/best means it") {
  const Folder runs;
  const WeirResult none = Weir({"checkpoint", "verify", runs.path("best")});
  CHECK(none.code == kExitConfig);
  CHECK_THAT(none.output, Contains("keeps no best weights (evaluation.keep_best), or has none yet"));
  REQUIRE(CheckpointedJob{}.Write(runs.path(), 24, /*best=*/12).ok());
  const WeirResult list = Weir({"checkpoint", "list", runs.path()});
  CHECK(list.code == 0);
  CHECK_THAT(list.output, Contains("  complete, best (epoch 0)\n") && Contains("  complete\n"));
  const WeirResult verified = Weir({"checkpoint", "verify", runs.path("best")});
  CHECK(verified.code == 0);
  CHECK_THAT(verified.output, Contains(runs.path("step-00000012") + ": ok (step 12, "));
}

TEST_CASE("damage is found, and the file and tensor are named") {
  const Folder runs;
  FlipByte(runs.path(kFirstShard), kInWeights);
  const WeirResult verified = Weir({"checkpoint", "verify", runs.path()});
  INFO(verified.output);
  CHECK(verified.code == 1);
  CHECK_THAT(verified.output, Contains("error: ") && Contains(kFirstShard) && Contains("tensor"));
  const WeirResult exported = Weir({"export", runs.path(), runs.path("out.safetensors")});
  CHECK(exported.code == 1);
  CHECK_FALSE(fs::exists(runs.path("out.safetensors")));
}

TEST_CASE("a checkpoint without its manifest is none, one with a damaged manifest neither") {
  const Folder runs;
  FlipByte(runs.path("step-00000012/manifest.json"), 1);
  const WeirResult damaged = Weir({"checkpoint", "list", runs.path()});
  CHECK(damaged.code == 0);
  CHECK_THAT(damaged.output, Contains("damaged: ") && Contains("manifest.json"));
  CHECK(Weir({"checkpoint", "verify", runs.path()}).code != 0);
  fs::remove(runs.path("step-00000012/manifest.json"));
  CHECK_THAT(Weir({"checkpoint", "list", runs.path()}).output, Contains("  incomplete\n"));
  CHECK(Weir({"checkpoint", "verify", runs.path()}).code == kExitConfig);
}

TEST_CASE("nothing is there") {
  for (const char* command : {"list", "verify"}) {
    const WeirResult none = Weir({"checkpoint", command, "/no/such/folder"});
    CHECK(none.code == kExitConfig);
    CHECK_THAT(none.output, Contains("/no/such/folder"));
  }
}

TEST_CASE("an export holds all tensors in one file") {
  const Folder runs;
  const WeirResult exported = Weir({"export", runs.path(), runs.path("out.safetensors")});
  INFO(exported.output);
  CHECK(exported.code == 0);
  CHECK_THAT(exported.output,
             Contains("out.safetensors: ") && Contains(" tensors of " + runs.path("step-00000012")));
  CHECK(fs::file_size(runs.path("out.safetensors")) > 1000 * sizeof(float));
  const WeirResult nowhere = Weir({"export", runs.path(), "/no/such/folder/out.safetensors"});
  CHECK(nowhere.code == kExitConfig);
  CHECK_THAT(nowhere.output, Contains("/no/such/folder/out.safetensors"));
}

TEST_CASE("embedding tables are verified, counted and exported") {
  const Folder runs;
  REQUIRE(CheckpointedJob{/*with_table=*/true}.Write(runs.path(), 24).ok());
  const WeirResult verified = Weir({"checkpoint", "verify", runs.path()});
  INFO(verified.output);
  CHECK(verified.code == 0);
  CHECK_THAT(verified.output, Contains("step-00000024: ok (step 24, 4 files, 1 table with 37 rows, "));
  const WeirResult exported = Weir({"export", runs.path(), runs.path("out.safetensors")});
  CHECK(exported.code == 0);
  CHECK_THAT(exported.output, Contains(" tensors and 1 table with 37 rows of "));
  FlipByte(runs.path("step-00000024/shard-00001-of-00002.table-000.safetensors"), 1);
  const WeirResult damaged = Weir({"checkpoint", "verify", runs.path()});
  CHECK(damaged.code == 1);
  CHECK_THAT(damaged.output, Contains("shard-00001-of-00002.table-000.safetensors: tensor 'counters/"));
}

}  // namespace
}  // namespace weir

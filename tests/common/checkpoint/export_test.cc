#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/system/subprocess.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

// The line that the script prints for a tensor.
std::string Line(const StoredJob& job, size_t tensor) {
  const TensorSpec& spec = job.model.tensors[tensor];
  std::string line = absl::StrCat(spec.name, " [", absl::StrJoin(spec.shape, ", "), "]");
  for (int64_t i = 0; i < spec.elements(); ++i) {
    const float value = job.Value(0, job.model.offset(tensor) + i);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    absl::StrAppendFormat(&line, " %08x", bits);
  }
  return line;
}

TEST_CASE("An export is one file that other programs open: names, shapes, values") {
  std::string dir = JoinPath(getenv("TEST_TMPDIR") != nullptr ? getenv("TEST_TMPDIR") : "/tmp", "exXXXXXX");
  REQUIRE(mkdtemp(&dir[0]) != nullptr);
  FileSystem& fs = FileSystem::Posix();
  for (uint32_t shards : {1, 3}) {
    const StoredJob job{TestModel(500), {"m", "v"}, shards};
    REQUIRE(job.Write(fs, dir, shards, shards) == absl::OkStatus());
    const auto reader = CheckpointReader::Open(fs, CheckpointFolder(dir, shards));
    REQUIRE(reader.status() == absl::OkStatus());
    const std::string out = JoinPath(dir, "out.safetensors");
    REQUIRE(reader->Export(out).status() == absl::OkStatus());
    CHECK(!fs.Open(out + ".tmp").ok());

    Subprocess::Options options;
    options.args = {"/usr/bin/python3", "tests/common/checkpoint/read_safetensors.py", out};
    const auto result = RunCommand(options, std::chrono::seconds(60));
    REQUIRE(result.ok());
    std::vector<std::string> expected = {absl::StrCat("format=pt weir.step=", shards)};
    for (size_t tensor = 0; tensor < job.model.tensors.size(); ++tensor) {
      expected.push_back(Line(job, tensor));
    }
    CHECK(result->output == absl::StrJoin(expected, "\n") + "\n");
  }
}

TEST_CASE("An export that fails leaves the file that was there") {
  FaultyFileSystem fs(1);
  const StoredJob job{TestModel(500), {}, 1};
  REQUIRE(job.Write(fs, "/c", 1, 2).ok());
  (void)*fs.Create("/out");
  fs.SetContents("/out", "before");
  fs.SetCapacity(fs.bytes_used() + 1000);
  const absl::Status full = CheckpointReader::Open(fs, "/c/step-00000001")->Export("/out").status();
  CHECK(full.code() == absl::StatusCode::kResourceExhausted);
  CHECK(fs.Contents("/out") == "before");
  CHECK(*fs.List("/") == std::vector<std::string>{"c", "out"});
  fs.SetCapacity(UINT64_MAX);
  CHECK(CheckpointReader::Open(fs, "/c/step-00000001")->Export("/out").ok());
  CHECK(fs.Contents("/out").size() > 2000);
}

}  // namespace
}  // namespace weir

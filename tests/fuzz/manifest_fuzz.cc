// A checkpoint's manifest: the input is the text before its checksum.
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/checksums.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"
#include "tests/common/faulty_file_system.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {
namespace {

constexpr char kFolder[] = "/c";

absl::StatusOr<v1::CheckpointManifest> Read(const std::string& text) {
  FaultyFileSystem files(1);
  FuzzCheck(files.MakeFolder(kFolder).ok() && files.WriteFile(JoinPath(kFolder, kManifestName), text).ok(),
            "a disk in memory takes a file");
  return ReadManifest(files, kFolder);
}

// What a checkpoint of this many shards has, without its checksum.
std::string Written(uint32_t shards) {
  FaultyFileSystem files(1);
  const StoredJob job = {TestModel(100), {"momentum"}, 1, {TestTable("clicks", 2)}};
  FuzzCheck(job.Write(files, "/", 5, shards).ok(), "a disk in memory takes a checkpoint");
  const std::string text = files.Contents(JoinPath(CheckpointFolder("/", 5), kManifestName));
  return text.substr(0, text.rfind(",\n\"crc32c\""));
}

}  // namespace

bool ReadInput(absl::string_view input) {
  Read(std::string(input)).status().IgnoreError();
  const absl::StatusOr<v1::CheckpointManifest> manifest =
      Read(absl::StrFormat("%s,\n\"crc32c\": \"%08x\"\n}\n", input, Crc32c(input)));
  if (!manifest.ok()) return false;
  FuzzCheck(ModelOf(*manifest).Validate().ok(), "its model is valid");
  FuzzCheck(PartitionOf(*manifest).shards() == manifest->num_shards(), "its partition has its shards");
  const std::string encoded = EncodeManifest(*manifest);
  const absl::StatusOr<v1::CheckpointManifest> again = Read(encoded);
  FuzzCheck(again.ok() && EncodeManifest(*again) == encoded, "a manifest that was written reads back equal");
  return true;
}

std::vector<std::string> Seeds() { return {Written(1), Written(3)}; }

std::vector<std::string> Words() {
  return {"\"manifest\"",   "\"format\"", "\"format_minor\"", "\"model\"",
          "\"tensors\"",    "\"shape\"",  "\"files\"",        "\"slots\"",
          "\"num_shards\"", "\"bytes\"",  "\"crc32c\"",       "18446744073709551615",
          "\"tables\"",     "\"rows\"",   "\"chunk_bytes\"",  "\"slot_words\""};
}

}  // namespace weir

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/random.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

constexpr const char kFolder[] = "/c/step-00000001";

// A small checkpoint that tests damage in every way.
class Patient {
 public:
  Patient() {
    REQUIRE(job_.Write(fs_, "/c", 1, 2) == absl::OkStatus());
    manifest_ = CheckpointReader::Open(fs_, kFolder)->manifest();
    names_ = *fs_.List(kFolder);
    for (const std::string& name : names_) {
      whole_.push_back(fs_.Contents(JoinPath(kFolder, name)));
    }
  }

  size_t files() const { return names_.size(); }
  size_t bytes(size_t file) const { return whole_[file].size(); }
  const std::string& whole(size_t file) const { return whole_[file]; }

  // "" if every reader refuses the damage and names its place; else the fault. `at`: the first damaged byte.
  std::string Examine(size_t file, std::string damaged, size_t at) {
    const std::string path = JoinPath(kFolder, names_[file]);
    fs_.SetContents(path, std::move(damaged));
    const std::string tensor = TensorAt(names_[file], at);
    std::string wrong;
    const auto refused = [&](const char* who, const absl::Status& status) {
      if (status.code() != absl::StatusCode::kDataLoss || !absl::StrContains(status.message(), path) ||
          !absl::StrContains(status.message(), tensor)) {
        wrong += std::string(who) + " says " + status.ToString() + "; expected " + path + " " + tensor + "\n";
      }
    };
    const absl::StatusOr<CheckpointReader> reader = CheckpointReader::Open(fs_, kFolder);
    refused("verify", reader.ok() ? reader->Verify() : reader.status());
    const bool unexported = tensor.empty() || absl::StartsWith(tensor, "tensor 'weir.") ||
                            absl::StartsWith(tensor, "tensor 'counters/") ||
                            absl::EndsWith(tensor, "/slots'");
    refused("export", reader.ok() && !unexported ? reader->Export("/out").status()
                      : reader.ok()              ? reader->Verify()
                                                 : reader.status());
    refused("load into 2", job_.LoadAll(fs_, kFolder, 2));
    refused("load into 3", job_.LoadAll(fs_, kFolder, 3));
    if (fs_.Open("/out").ok() || fs_.Open("/out.tmp").ok()) wrong += "something was exported\n";
    fs_.SetContents(path, whole_[file]);
    return wrong;
  }

 private:
  // "tensor 'x'" for a byte of a file; "" outside of tensors.
  std::string TensorAt(const std::string& name, size_t at) const {
    std::string found;
    const auto look = [&](const auto& file) {
      if (file.name() != name || at < file.header_bytes()) return;
      uint64_t end = file.header_bytes();
      for (const v1::CheckpointTensor& tensor : file.tensors()) {
        if (at < (end += tensor.bytes())) {
          found = "tensor '" + tensor.name() + "'";
          return;
        }
      }
    };
    for (const v1::CheckpointFile& file : manifest_.files()) {
      look(file);
      for (const v1::CheckpointTable& table : file.tables()) look(table);
    }
    return found;
  }

  FaultyFileSystem fs_{1};
  const StoredJob job_{TestModel(40), {"m"}, 1, {TestTable("clicks", 2)}, 5};
  v1::CheckpointManifest manifest_;
  std::vector<std::string> names_, whole_;
};

TEST_CASE("A checkpoint that was cut at any byte is refused, with the file and the tensor") {
  Patient patient;
  int cuts = 0;
  for (size_t file = 0; file < patient.files(); ++file) {
    for (size_t n = 0; n < patient.bytes(file); ++n, ++cuts) {
      const std::string wrong = patient.Examine(file, patient.whole(file).substr(0, n), n);
      if (!wrong.empty()) FAIL("cut at " << n << ": " << wrong);
    }
    CHECK(patient.Examine(file, patient.whole(file) + '\0', patient.bytes(file)).empty());
  }
  CHECK(cuts > 3000);
}

TEST_CASE("A checkpoint with any bit flipped is refused, with the file and the tensor") {
  Patient patient;
  size_t total = 0;
  for (size_t file = 0; file < patient.files(); ++file) total += patient.bytes(file);
  RandomStream random(RandomKey(1, "flips"), 0);
  for (int flip = 0; flip < 10'000; ++flip) {
    size_t file = 0, at = random.NextBelow(static_cast<uint32_t>(total));
    while (at >= patient.bytes(file)) at -= patient.bytes(file++);
    std::string damaged = patient.whole(file);
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random.NextBelow(8)));
    const std::string wrong = patient.Examine(file, std::move(damaged), at);
    if (!wrong.empty()) FAIL("byte " << at << ": " << wrong);
  }
}

}  // namespace
}  // namespace weir

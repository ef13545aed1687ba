// The header of a safetensors file.
#include "common/checkpoint/safetensors.h"
#include "tests/common/faulty_file_system.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {
namespace {

constexpr char kFile[] = "/f";

std::string Written(const std::vector<StoredTensor>& tensors) {
  FaultyFileSystem files(1);
  auto file = files.Create(kFile);
  auto writer = SafetensorsWriter::Create(**file, kFile, tensors, {{"framework", "weir"}});
  uint64_t bytes = 0;
  for (const StoredTensor& tensor : tensors) bytes += tensor.bytes;
  FuzzCheck((*writer)->Append(std::string(bytes, '\1')).ok() && (*writer)->Finish().ok(),
            "a file can be written");
  return files.Contents(kFile);
}

}  // namespace

bool ReadInput(absl::string_view input) {
  FaultyFileSystem files(1);
  FuzzCheck(files.WriteFile(kFile, input).ok(), "a disk in memory takes a file");
  const auto file = files.Open(kFile);
  const absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(**file, kFile);
  if (!header.ok()) return false;
  uint64_t end = 0;
  for (const StoredTensor& tensor : header->tensors) {
    FuzzCheck(tensor.offset == end, "the tensors follow one another");
    end += tensor.bytes;
  }
  FuzzCheck(header->bytes + end == input.size(), "header and tensors are the file");
  return true;
}

std::vector<std::string> Seeds() {
  return {Written({{"w", TensorType::kF32, {2, 3}, 0, 24}, {"step", TensorType::kU64, {}, 0, 8}}),
          Written({{"empty", TensorType::kF32, {0}, 0, 0}, {"i", TensorType::kI64, {1}, 0, 8}})};
}

std::vector<std::string> Words() {
  return {"\"__metadata__\"", "\"dtype\"", "\"shape\"", "\"data_offsets\"",
          "\"F32\"",          "\"I64\"",   "\"U64\"",   "18446744073709551615",
          "4294967296"};
}

}  // namespace weir

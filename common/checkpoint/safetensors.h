#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/system/file_system.h"

namespace weir {

// The file format of the safetensors library:
// - eight bytes with the header's length, little-endian;
// - the header, a JSON object with each tensor's type, shape and place, padded with spaces to a multiple of
//   eight;
// - the tensors' bytes, one after another without a gap, little-endian and row-major.

// The library's limit for a header, without the eight bytes in front of it.
constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

enum class TensorType { kF32, kBF16, kF16, kI64, kU64, kF64, kI32, kU32, kI16, kU16, kI8, kU8, kBool };

// "F32". Tensors of the types after kU64 are no weights: an export copies them from a file of the program's.
const char* NameOf(TensorType type);
// The metadata of an export: this and a tensor's further name, with the tensor's first name as the value.
constexpr char kAliasKey[] = "weir.alias.";

struct StoredTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<uint64_t> shape;  // empty is a scalar
  uint64_t offset = 0;          // of its first byte, counted from the end of the header
  uint64_t bytes = 0;

  friend bool operator==(const StoredTensor& a, const StoredTensor& b) {
    return a.name == b.name && a.type == b.type && a.shape == b.shape && a.offset == b.offset &&
           a.bytes == b.bytes;
  }
};

// The content of a header. Invariant of a header that was read: the tensors are in the order of their bytes,
// have distinct names, and follow one another without a gap from 0 to the end of the file. Each tensor has
// the bytes that its type and shape ask for.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  uint64_t bytes = 0;  // length in front of the tensors
};

// Reads and checks the header of a file. DataLoss says what is wrong, with `path`. Takes no memory for a
// length before it has seen that the file has that length; at most 100 MB.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const ReadableFile& file, const std::string& path);

// Writes a file, front to back, without a copy of the tensors. Not thread-safe.
class SafetensorsWriter {
 public:
  struct Checksums {
    uint64_t bytes = 0;
    uint32_t crc32c = 0;
    uint64_t header_bytes = 0;
    uint32_t header_crc32c = 0;
    std::vector<uint32_t> tensors;  // in their order
  };

  // Writes the header of an empty file, which outlives the writer; `path` is for messages. Uses each tensor's
  // name, type and shape; names are distinct, UTF-8, and not "__metadata__".
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      WritableFile& file, const std::string& path, std::vector<StoredTensor> tensors,
      const std::map<std::string, std::string>& metadata);

  // Writes the next bytes of the tensors, in any pieces; never more than the tensors have.
  absl::Status Append(absl::string_view bytes);
  absl::Status Append(absl::Span<const float> values) {
    return Append(
        absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  }

  // Syncs and closes the file. Called when all bytes have been written.
  absl::StatusOr<Checksums> Finish();

 private:
  SafetensorsWriter(WritableFile& file, std::vector<StoredTensor> tensors)
      : file_(file), tensors_(std::move(tensors)) {}
  void Note(absl::string_view bytes);
  // Notes the checksums of tensors that are complete.
  void NoteEnds();

  WritableFile& file_;
  const std::vector<StoredTensor> tensors_;
  Checksums sums_;
  // The tensor that is being written: the bytes that it lacks, and the checksum of those that are there.
  uint64_t missing_ = 0;
  uint32_t crc_ = 0;
};

}  // namespace weir

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/safetensors.h"
#include "common/model/model_spec.h"
#include "common/model/partition.h"
#include "common/system/file_system.h"
#include "proto/checkpoint.pb.h"

namespace weir {

// manifest.json: a JSON object with the CheckpointManifest and, last, the checksum of every byte before it.

constexpr DiskFormat kCheckpointFormat = {1, 6};

// InvalidArgument: no undamaged checkpoint has this manifest; names the field. In particular, every shard has
// one file, of this step and model, whose tensors are those of its part, and one of each table; in sync all
// files are of one version.
absl::Status CheckManifest(const v1::CheckpointManifest& manifest);

std::string EncodeManifest(const v1::CheckpointManifest& manifest);

// NotFound; DataLoss: damaged; Unimplemented: only a newer program reads the format. `crc32c`, if any, gets
// the checksum at the manifest's end.
absl::StatusOr<v1::CheckpointManifest> ReadManifest(FileSystem& fs, const std::string& folder,
                                                    uint32_t* crc32c = nullptr);

// These take a manifest that was checked.
ModelSpec ModelOf(const v1::CheckpointManifest& manifest);
Partition PartitionOf(const v1::CheckpointManifest& manifest);
std::vector<std::string> SlotsOf(const v1::CheckpointManifest& manifest);

// Records lengths and checksums of a written file in the manifest's entry for it, a v1::CheckpointFile or
// v1::CheckpointTable. `tensors`: in their order in the file.
template <typename File>
void RecordWritten(const SafetensorsWriter::Checksums& sums, const std::vector<StoredTensor>& tensors,
                   File& file) {
  file.set_bytes(sums.bytes);
  file.set_crc32c(sums.crc32c);
  file.set_header_bytes(sums.header_bytes);
  file.set_header_crc32c(sums.header_crc32c);
  for (size_t i = 0; i < tensors.size(); ++i) {
    v1::CheckpointTensor& tensor = *file.add_tensors();
    tensor.set_name(tensors[i].name);
    tensor.set_bytes(tensors[i].bytes);
    tensor.set_crc32c(sums.tensors[i]);
  }
}
// Opens a file that the manifest records, a v1::CheckpointFile or v1::CheckpointTable. DataLoss: its length
// differs; if it was cut within a tensor, names the tensor.
template <typename File>
absl::StatusOr<std::unique_ptr<ReadableFile>> OpenRecorded(FileSystem& fs, const std::string& folder,
                                                           const File& file);
// Checks that a table's file, or a shard's file and the files of its tables, are there in their full lengths.
absl::Status CheckRecorded(FileSystem& fs, const std::string& folder, const v1::CheckpointTable& table);
absl::Status CheckRecorded(FileSystem& fs, const std::string& folder, const v1::CheckpointFile& file);
// Reads the header of a file that was opened. DataLoss: it is damaged.
absl::StatusOr<SafetensorsHeader> ReadRecordedHeader(const ReadableFile& file, const std::string& path,
                                                     uint64_t header_bytes, uint32_t header_crc32c);
// DataLoss: the checksums differ; names the path and `where`.
absl::Status CheckCrc32c(const std::string& path, absl::string_view where, uint32_t seen, uint32_t recorded);

// A checkpoint's chain: the checkpoints that its deltas of embedding tables build on
// (docs/checkpoint_format.md). The first is the base. Their folders are beside the checkpoint's own. A
// manifest names each of them, with the checksum of its manifest. So a chain that differs from the one that
// was written is refused.

// As many as checkpoint.table_deltas may ask for.
constexpr int kMaxChain = 10;

struct ChainLink {
  std::string folder;
  v1::CheckpointManifest manifest;
};

// Reads the chain of a checkpoint whose manifest was checked, the base first. DataLoss: a link is missing,
// damaged, or not the one that is named, or does not have what the checkpoint builds on; names the link.
// Other errors: it cannot be read now, or only by a newer program.
absl::StatusOr<std::vector<ChainLink>> ReadChain(FileSystem& fs, const std::string& folder,
                                                 const v1::CheckpointManifest& manifest);

// A file with rows of a shard's table.
struct TableFile {
  std::string folder;
  const v1::CheckpointFile* file = nullptr;  // of the shard
  const v1::CheckpointTable* table = nullptr;
};
// The files that table `index` of a shard is made of, the oldest first, which alone has all rows. `chain`:
// ReadChain(); the result points into it and into `manifest`. DataLoss: as ReadChain(), which has checked
// this.
absl::StatusOr<std::vector<TableFile>> FilesOfTable(const std::string& folder,
                                                    const v1::CheckpointManifest& manifest,
                                                    const std::vector<ChainLink>& chain, uint32_t shard,
                                                    size_t index);
// Checks, as CheckRecorded() does, the files of the chain that the checkpoint's tables are made of.
absl::Status CheckChainFiles(FileSystem& fs, const std::string& folder,
                             const v1::CheckpointManifest& manifest, const std::vector<ChainLink>& chain);

// Completes the chain in the manifest of a checkpoint of `dir` that is to be committed. Of the chain, the
// manifest has only the step of the last link.
// Errors: as ReadChain().
absl::Status NameChain(FileSystem& fs, const std::string& dir, v1::CheckpointManifest& manifest);

}  // namespace weir

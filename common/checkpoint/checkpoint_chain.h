#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/system/file_system.h"
#include "proto/checkpoint.pb.h"

// A checkpoint's chain: the checkpoints that its deltas of embedding tables build on
// (docs/checkpoint_format.md). The first is the base. Their folders are beside the checkpoint's own. A
// manifest names each of them, with the checksum of its manifest. So a chain that differs from the one that
// was written is refused.
namespace weir {

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

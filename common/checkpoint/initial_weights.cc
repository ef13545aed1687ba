#include "common/checkpoint/initial_weights.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/checkpoint/table_layout.h"
#include "common/checkpoint/table_writer.h"
#include "common/model/key_bucket.h"
#include "common/model/wire_model.h"

namespace weir {
namespace {

constexpr uint64_t kStep = 0, kIncarnation = 1;

// The positions of the keys in the order of a table's file.
absl::StatusOr<std::vector<size_t>> InOrder(const InitialRows& rows) {
  std::vector<size_t> order(rows.keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto place = [&rows](size_t i) {
    return std::make_pair(BucketOfHash(HashKey(rows.keys[i])), rows.keys[i]);
  };
  std::sort(order.begin(), order.end(), [&place](size_t a, size_t b) { return place(a) < place(b); });
  for (size_t i = 1; i < order.size(); ++i) {
    if (rows.keys[order[i]] != rows.keys[order[i - 1]]) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("table '", rows.table, "' has two rows for the key ", rows.keys[order[i]]));
  }
  return order;
}

absl::StatusOr<v1::CheckpointTable> WriteRows(FileSystem& fs, const std::string& directory, size_t index,
                                              const InitialRows& rows, const std::vector<size_t>& order) {
  v1::CheckpointTable record;
  record.mutable_table()->set_name(rows.table);
  record.mutable_table()->set_dim(rows.dim);
  record.set_rows(rows.keys.size());
  record.set_chunk_bytes(kTableChunkBytes);
  record.set_version(0);
  TableWriter::Shard shard;
  shard.incarnation = kIncarnation;
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<TableWriter> writer,
                        TableWriter::Create(fs, directory, kStep, shard, index, std::move(record)));
  absl::Status status;
  for (size_t i = 0; i < order.size() && status.ok(); ++i) {
    const absl::Span<const float> values(rows.values.data() + order[i] * rows.dim, rows.dim);
    writer->AddRow(rows.keys[order[i]], /*updated=*/0, values);
    if (writer->due()) status = writer->Write();
  }
  return writer->Finish(status);
}

}  // namespace

absl::Status WriteInitialWeights(FileSystem& fs, const std::string& directory, const ModelSpec& model,
                                 absl::Span<const float> weights, const std::vector<InitialRows>& tables) {
  WEIR_RETURN_IF_ERROR(CheckTensorNames(model));
  std::vector<std::vector<size_t>> orders;
  for (const InitialRows& rows : tables) {
    WEIR_ASSIGN_OR_RETURN(orders.emplace_back(), InOrder(rows));
  }
  WEIR_RETURN_IF_ERROR(BeginCheckpoint(fs, directory, kStep));
  ShardSnapshot snapshot;
  snapshot.model = model;
  // One shard's local space is the model's address space.
  snapshot.weights = weights;
  snapshot.state.set_num_shards(1);
  snapshot.state.mutable_version()->set_incarnation(kIncarnation);
  v1::CheckpointManifest manifest;
  manifest.set_step(kStep);
  manifest.set_incarnation(kIncarnation);
  *manifest.mutable_model() = ToProto(model);
  v1::CheckpointFile& file = *manifest.add_files();
  WEIR_ASSIGN_OR_RETURN(file, WriteShardFile(fs, directory, kStep, snapshot));
  for (size_t i = 0; i < tables.size(); ++i) {
    WEIR_ASSIGN_OR_RETURN(*file.add_tables(), WriteRows(fs, directory, i, tables[i], orders[i]));
  }
  return CommitCheckpoint(fs, directory, std::move(manifest));
}

}  // namespace weir

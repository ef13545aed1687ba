#include "ps_server/process/replay.h"

#include <algorithm>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/checksums.h"
#include "common/base/host.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/model/partition.h"
#include "common/model/table_digest.h"
#include "common/model/wire_model.h"
#include "common/optimizer/kernels.h"
#include "common/protocol/mode_traits.h"
#include "common/threads/thread.h"
#include "ps_server/shard/restore/restore.h"
#include "ps_server/shard/restore/table_files.h"
#include "ps_server/shard/rows/table_report.h"

namespace weir {
namespace {

// A state from which a replay may start.
struct Beginning {
  std::string name;
  // A checkpoint's folder. Empty: version 0, without a checkpoint.
  std::string folder;
  bool weights_only = false;
};

absl::StatusOr<std::vector<Beginning>> Beginnings(FileSystem& files, const std::string& directory,
                                                  const v1::CheckpointManifest& newest) {
  std::vector<Beginning> out;
  WEIR_ASSIGN_OR_RETURN(const ModelSpec model, FromProto(newest.model()));
  if (const std::string& init_from = newest.job().config().checkpoint().init_from(); !init_from.empty()) {
    WEIR_ASSIGN_OR_RETURN(const FoundCheckpoint found, ResolveCheckpoint(files, init_from));
    out.push_back({absl::StrCat("the weights of ", found.folder), found.folder, /*weights_only=*/true});
  } else if (!model.uploaded()) {
    // Values that were uploaded are in checkpoints only.
    out.push_back({"version 0", "", false});
  }
  WEIR_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, FindCheckpoints(files, directory));
  for (const CheckpointEntry& entry : entries) {
    if (!entry.has_manifest || entry.step > newest.step()) continue;
    out.push_back({entry.folder, entry.folder, /*weights_only=*/false});
  }
  return out;
}

// Of one shard's rows.
void AddDigests(const std::shared_ptr<ShardTables>& tables, std::map<std::string, std::string>& sums) {
  TableDigests of(tables);
  while (!of.done()) of.Step();
  for (size_t i = 0; i < tables->size(); ++i) {
    std::string& sum = sums[tables->config(i).name()];
    sum.resize(TableDigest::kBytes);
    TableDigest::Add(of.digests()[i], sum);
  }
}

absl::StatusOr<ReplayResult> ReplayFrom(FileSystem& files, const std::string& directory,
                                        const v1::CheckpointManifest& newest, const Beginning& beginning) {
  const v1::JobConfig& config = newest.job().config();
  ThreadPool threads(UsableCpus());
  BlockStore::Options options;
  WEIR_ASSIGN_OR_RETURN(options.model, FromProto(newest.model()));
  WEIR_ASSIGN_OR_RETURN(options.kernels, KernelsFromConfig(config.server()));
  options.num_shards = newest.num_shards();
  options.seed = config.seed();
  options.optimizer = config.optimizer();
  options.total_steps = newest.job().total_steps();
  options.pushes_per_step = std::max<uint32_t>(1, newest.job().workers());
  options.threads = &threads;

  ReplayResult result;
  result.start = beginning.name;
  const Partition partition(options.model.elements(), options.num_shards);
  std::vector<float> weights(static_cast<size_t>(options.model.elements()));
  std::map<std::string, std::string> digests;  // by table
  for (; options.shard < options.num_shards; ++options.shard) {
    WEIR_ASSIGN_OR_RETURN(const std::shared_ptr<ShardTables> tables,
                          NewTables(config, options, newest.job().parts()));
    LogPosition position;
    v1::ShardState state;
    const auto restore = [&](const BlockStore& store, ShardVersion& version) {
      WEIR_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(files, beginning.folder));
      WEIR_RETURN_IF_ERROR(LoadCheckpoint(reader, beginning.weights_only, options.shard, options.num_shards,
                                          store, version, &state, &position));
      return LoadTables(reader, beginning.weights_only, options.shard, options.num_shards, tables.get());
    };
    WEIR_ASSIGN_OR_RETURN(
        const std::shared_ptr<BlockStore> store,
        BlockStore::Create(options, beginning.folder.empty() ? nullptr : BlockStore::Restore(restore)));
    WEIR_ASSIGN_OR_RETURN(const Replayed replayed,
                          ReplayLog(files, directory, newest.job().identity(), options.shard,
                                    options.num_shards, position, *store, tables.get()));
    result.records += replayed.records.size();
    result.versions.push_back(store->count());
    const std::shared_ptr<const LentVersion> last = store->Lend();
    const float* local = last->weights.get();
    for (int64_t block = 0; block < partition.shard_blocks(options.shard); ++block) {
      const int64_t length = partition.block_length(options.shard, block);
      std::copy_n(local, length, &weights[partition.block_start(options.shard, block)]);
      local += length;
    }
    if (tables != nullptr) AddDigests(tables, digests);
  }
  Sha256 hash;
  hash.Update(weights.data(), weights.size() * sizeof(float));
  result.weights_sha256 = hash.Hex();
  if (!digests.empty()) result.tables_sha256 = TablesSha256(digests);
  return result;
}

}  // namespace

absl::StatusOr<ReplayResult> ReplayJob(FileSystem& files, const std::string& directory,
                                       const std::function<void(const std::string&)>& passed_over) {
  WEIR_ASSIGN_OR_RETURN(const FoundCheckpoint newest, LatestComplete(files, directory));
  if (!TraitsOf(newest.manifest.job().config()).applies_alone) {
    return absl::FailedPreconditionError(
        absl::StrCat(directory, " is of a job in sync, which keeps no log; run it again for the same bits"));
  }
  WEIR_ASSIGN_OR_RETURN(const std::vector<Beginning> beginnings,
                        Beginnings(files, directory, newest.manifest));
  absl::StatusOr<ReplayResult> result = absl::InternalError("no beginning");
  for (const Beginning& beginning : beginnings) {
    result = ReplayFrom(files, directory, newest.manifest, beginning);
    if (result.ok()) break;
    passed_over(absl::StrCat(beginning.name, ": ", std::string(result.status().message())));
  }
  return result;
}

}  // namespace weir

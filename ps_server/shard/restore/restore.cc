#include "ps_server/shard/restore/restore.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "proto/parameter_server.pb.h"
#include "proto/push_log.pb.h"
#include "ps_server/shard/rows/row_arrival.h"

namespace weir {
namespace {

void AppendTable(const std::string& name, uint32_t dim, std::string& list) {
  absl::StrAppend(&list, list.empty() ? "" : ", ", name, " (dim ", dim, ")");
}

absl::Status Differ(const v1::LogSegment& segment, const ShardTables& tables) {
  std::string logged, of_job;
  for (const v1::LoggedTable& table : segment.tables()) AppendTable(table.name(), table.dim(), logged);
  for (size_t i = 0; i < tables.size(); ++i) {
    AppendTable(tables.config(i).name(), tables.config(i).dim(), of_job);
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the log is of the embedding tables ", logged, "; the job's are ", of_job,
                   ". Go on with the tables that the job had, or use another checkpoint.directory"));
}

// The position of a table in the job.
std::optional<uint32_t> PositionOf(const v1::LoggedTable& table, const ShardTables& tables) {
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables.config(i).name() == table.name() && tables.config(i).dim() == table.dim()) {
      return static_cast<uint32_t>(i);
    }
  }
  return std::nullopt;
}

// The rows in one segment of a shard's log. A record names a table by its position in the segment's list
// (LogSegment.tables), since by now the job may have its tables in a different order. A plain value.
struct LoggedRows {
  RowArrival::Tables tables;        // in the segment's order
  std::vector<uint32_t> positions;  // of each, in the job

  // `job`: its tables. FailedPrecondition: the segment's tables differ from them.
  static absl::StatusOr<LoggedRows> Of(const v1::LogSegment& segment, const ShardTables& job) {
    LoggedRows rows;
    const auto add = [&](size_t position) {
      *rows.tables.Add() = job.config(position);
      rows.positions.push_back(static_cast<uint32_t>(position));
    };
    if (segment.tables().empty()) {  // written before the field existed, or by a job without tables
      for (size_t i = 0; i < job.size(); ++i) add(i);
      return rows;
    }
    if (static_cast<size_t>(segment.tables_size()) != job.size()) return Differ(segment, job);
    for (const v1::LoggedTable& table : segment.tables()) {
      const std::optional<uint32_t> at = PositionOf(table, job);
      if (!at.has_value() || std::count(rows.positions.begin(), rows.positions.end(), *at) > 0) {
        return Differ(segment, job);
      }
      add(*at);
    }
    return rows;
  }

  // The rows of a push from its record, for the job's tables. DataLoss: they cannot be rows of the tables.
  absl::StatusOr<PushedRows> Take(const v1::PushRequest& push, absl::string_view bytes,
                                  const ShardTables& job) const {
    absl::StatusOr<PushedRows> rows = RowsFromBytes(tables, push, bytes);
    if (!rows.ok()) return absl::DataLossError(rows.status().message());
    for (PushedRows::OfTable& of : rows->tables) of.keys.table = positions[of.keys.table];
    std::sort(rows->tables.begin(), rows->tables.end(),
              [](const auto& a, const auto& b) { return a.keys.table < b.keys.table; });
    if (const absl::Status status = job.CheckKeys(*rows); !status.ok()) {
      return absl::DataLossError(status.message());
    }
    return rows;
  }
};

std::string FolderName(uint32_t shard, uint32_t num_shards) {
  return absl::StrFormat("shard-%05d-of-%05d", shard, num_shards);
}

// Fails on the first push. A record of a membership alone does not matter.
absl::Status RefuseRecord(const v1::LoggedPush& record, absl::Span<const float> /*gradient*/) {
  return record.has_membership() ? absl::OkStatus() : absl::FailedPreconditionError("");
}

// Fails if a job with a different number of shards has continued from this position.
absl::Status CheckOthers(FileSystem& files, const std::string& directory, const v1::JobIdentity& job,
                         uint32_t num_shards, const LogPosition& position) {
  const std::string logs = LogsFolder(directory);
  absl::StatusOr<std::vector<std::string>> names = files.List(logs);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  WEIR_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    v1::LogSegment of;
    uint32_t shard, others;
    const std::vector<std::string> parts = absl::StrSplit(name, '-');
    if (parts.size() != 4 || !absl::SimpleAtoi(parts[1], &shard) || !absl::SimpleAtoi(parts[3], &others) ||
        name != FolderName(shard, others) || others == num_shards) {
      continue;
    }
    // Without a checkpoint, the logs of every number of shards count.
    if (position.num_shards != 0 && position.num_shards != others) continue;
    of.set_shard(shard);
    of.set_num_shards(others);
    of.set_checkpoint(position.checkpoint);
    *of.mutable_job() = job;
    const absl::Status status =
        ReadPushLog(files, JoinPath(logs, name), of, /*from_segment=*/0, RefuseRecord).status();
    if (status.ok()) continue;
    // The status of RefuseRecord() has no text.
    if (!absl::IsFailedPrecondition(status) || !status.message().empty()) return status;
    const std::string pushes =
        absl::StrCat(JoinPath(logs, name), " holds pushes that no checkpoint has yet, ");
    if (num_shards == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          pushes, "of a job in bounded or async; this one is in sync. Give it a folder of its own"));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        pushes, "of a job with ", others, " shards; this one has ", num_shards, ". Go on with ", others,
        " (as many servers, and the same server.min_shard_kib; 0 for a job from before that "
        "field), or let the job take a checkpoint with them first"));
  }
  return absl::OkStatus();
}

// Fails if a newer checkpoint was passed over, and the log does not reach back to the checkpoint from which
// the shard was restored. Then the pushes in between are lost.
absl::Status CheckReaches(FileSystem& files, const std::string& directory, const std::string& folder,
                          const LogPosition& position, const LogEnd& end) {
  const bool no_log = position.segment == 0 && end.next_segment == 1;
  if (position.checkpoint == 0 || end.segments > 0 || no_log) return absl::OkStatus();
  WEIR_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, FindCheckpoints(files, directory));
  const auto newer = std::find_if(entries.begin(), entries.end(), [&](const CheckpointEntry& entry) {
    return entry.has_manifest && entry.step >= position.checkpoint;
  });
  if (newer == entries.end()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(folder, ": the log does not reach back to checkpoint ",
                                          position.checkpoint - 1, ", which is the newest whole one, since ",
                                          newer->folder, " is damaged"));
}

}  // namespace

absl::Status CheckNoLog(FileSystem& files, const std::string& directory, const v1::JobIdentity& job,
                        const LogPosition& position) {
  return CheckOthers(files, directory, job, /*num_shards=*/0, position);
}

std::string LogFolder(const std::string& directory, uint32_t shard, uint32_t num_shards) {
  return JoinPath(LogsFolder(directory), FolderName(shard, num_shards));
}

absl::StatusOr<CheckpointReader> OpenRestored(FileSystem& files, const v1::CheckpointConfig& config,
                                              const v1::Restore& restore) {
  const char* const field = restore.init_from() ? "checkpoint.init_from" : "checkpoint.directory";
  const std::string& path = restore.init_from() ? config.init_from() : config.directory();
  if (path.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("this server's config has no ", field));
  }
  WEIR_ASSIGN_OR_RETURN(const std::string folder, restore.init_from()
                                                      ? FolderOfStep(files, path, restore.step())
                                                      : CompleteFolder(files, path, restore.step()));
  WEIR_ASSIGN_OR_RETURN(CheckpointReader reader, CheckpointReader::Open(files, folder));
  if (reader.manifest().step() != restore.step()) {
    return absl::FailedPreconditionError(absl::StrCat(field, " is a checkpoint of step ",
                                                      reader.manifest().step(), " here, and of step ",
                                                      restore.step(), " at ps:0"));
  }
  return reader;
}

absl::Status LoadCheckpoint(const CheckpointReader& reader, bool weights_only, uint32_t shard,
                            uint32_t num_shards, const BlockStore& store, ShardVersion& version,
                            v1::ShardState* state, LogPosition* position) {
  const size_t elements = static_cast<size_t>(store.elements());
  CheckpointReader::Target target;
  target.weights = absl::MakeSpan(version.weights.get(), elements);
  if (weights_only) return reader.LoadWeights(store.model(), shard, num_shards, target.weights);
  for (size_t i = 0; i < version.slots.size(); ++i) {
    target.slots.push_back({store.slots()[i], absl::MakeSpan(version.slots[i].get(), elements)});
  }
  WEIR_ASSIGN_OR_RETURN(*state, reader.LoadShard(store.model(), shard, num_shards, target));
  version.count = state->version().count();
  position->checkpoint = reader.manifest().step() + 1;
  position->num_shards = reader.manifest().num_shards();
  if (position->num_shards == num_shards) position->segment = state->log_segment();
  return absl::OkStatus();
}

absl::StatusOr<Replayed> ReplayLog(FileSystem& files, const std::string& directory,
                                   const v1::JobIdentity& job, uint32_t shard, uint32_t num_shards,
                                   const LogPosition& position, BlockStore& store, ShardTables* tables) {
  WEIR_RETURN_IF_ERROR(CheckOthers(files, directory, job, num_shards, position));
  const std::string folder = LogFolder(directory, shard, num_shards);
  v1::LogSegment of;
  of.set_shard(shard);
  of.set_num_shards(num_shards);
  of.set_model_hash(store.model().Hash());
  of.set_checkpoint(position.checkpoint);
  *of.mutable_job() = job;
  Replayed replayed;
  std::optional<LoggedRows> rows_of;  // the segment that is being read
  const auto begin = [&](const v1::LogSegment& segment) {
    if (tables == nullptr) return absl::OkStatus();
    absl::StatusOr<LoggedRows> found = LoggedRows::Of(segment, *tables);
    if (found.ok()) rows_of = *std::move(found);
    return found.status();
  };
  const auto take = [&](const v1::LoggedPush& record, absl::Span<const float> gradient) {
    if (!record.has_membership() && record.outcome() == v1::OK) {
      const auto elements = static_cast<size_t>(store.elements());
      const bool fits =
          record.push().rows().empty() ? gradient.size() == elements : gradient.size() > elements;
      if (record.version() != store.count() + 1 || !fits) {
        return absl::DataLossError(absl::StrCat(folder, ": version ", record.version(), ", made of ",
                                                gradient.size(), " values, follows on version ",
                                                store.count(), " of ", store.elements()));
      }
      const WeightedGradient weighted{gradient.data()};
      StepFactors factors;
      if (record.gradient_factor() != 0) factors.gradient = record.gradient_factor();
      if (tables != nullptr) {
        const absl::Span<const float> rest = gradient.subspan(elements);
        const absl::StatusOr<PushedRows> rows =
            rows_of->Take(record.push(),
                          {reinterpret_cast<const char*>(rest.data()), rest.size() * sizeof(float)}, *tables);
        if (!rows.ok()) {
          return absl::DataLossError(
              absl::StrCat(folder, ": version ", record.version(), ": ", rows.status().message()));
        }
        const WeightedRows part{&*rows};
        WEIR_RETURN_IF_ERROR(tables->Update(absl::MakeConstSpan(&part, 1), factors.gradient));
      }
      store.Update(absl::MakeConstSpan(&weighted, 1), factors);
    }
    replayed.records.push_back(record);
    return absl::OkStatus();
  };
  // From version 0 on, no segment may be missing.
  const uint64_t from = position.checkpoint == 0 ? 1 : position.segment;
  WEIR_ASSIGN_OR_RETURN(replayed.end, ReadPushLog(files, folder, of, from, take, begin));
  WEIR_RETURN_IF_ERROR(CheckReaches(files, directory, folder, position, replayed.end));
  return replayed;
}

}  // namespace weir

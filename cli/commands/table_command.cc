// `weir table stats` and `weir table get`: look at the embedding tables of a running job or of a checkpoint.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/commands/grpc_status_client.h"
#include "cli/report/format.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/table_layout.h"
#include "common/config/optimizer_slots.h"
#include "common/model/key_bucket.h"
#include "common/program/exit_codes.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"

namespace weir {
namespace {

struct TableOptions {
  // The job, unless `checkpoint` names one, or a folder of them.
  ClusterFlags cluster;
  std::string checkpoint;
  // stats: one table; "": all.
  std::string table;
  bool json = false;
  // get:
  std::vector<uint64_t> keys;
  bool slots = false;
};

std::string Known(bool known, uint64_t count) { return known ? FormatCount(count) : "-"; }

// "617 618": rows of each shard.
std::string RowsByShard(const v1::TableStatus& table) {
  return absl::StrJoin(table.shards(), " ", [](std::string* out, const v1::TableStats& shard) {
    absl::StrAppend(out, FormatCount(shard.rows()));
  });
}

std::string Numbers(const google::protobuf::RepeatedField<float>& values) {
  return absl::StrJoin(values, " ",
                       [](std::string* out, float value) { absl::StrAppendFormat(out, "%.9g", value); });
}

std::string Standing(const v1::RowState& row) {
  const std::string of = row.has_version() ? absl::StrCat(" of ", FormatCount(row.version())) : "";
  if (row.exists()) return absl::StrCat("updated in version ", FormatCount(row.updated()), of);
  const std::string what = row.values_size() > 0 ? "no row, initial values" : "no row";
  if (!row.has_updated()) return what;
  return absl::StrCat(what, "; ", FormatCount(row.pushes_counted()), " pushes counted, the last in version ",
                      FormatCount(row.updated()), of);
}

std::string TableStatsReport(const std::vector<v1::TableStatus>& tables) {
  Table report({"table", "dim", "rows", "bytes", "counted keys", "admitted", "expired", "evicted",
                "rows of each shard"});
  report.AlignLeft(8);
  std::string hottest;
  for (const v1::TableStatus& table : tables) {
    const v1::TableStats& all = table.all();
    report.AddRow({Printable(table.name()), absl::StrCat(table.dim()), FormatCount(all.rows()),
                   FormatBytes(all.bytes()), FormatCount(all.keys_counted()),
                   Known(all.has_admitted(), all.admitted()), Known(all.has_expired(), all.expired()),
                   Known(all.has_evicted(), all.evicted()), RowsByShard(table)});
    if (all.hottest_size() == 0) continue;
    absl::StrAppend(&hottest, "\nhottest keys of ", Printable(table.name()), ", by estimate:\n");
    Table keys({"key", "in pushes"});
    for (const v1::HotKey& key : all.hottest()) {
      keys.AddRow({absl::StrCat(key.key()), FormatPercent(key.share())});
    }
    absl::StrAppend(&hottest, keys.ToString());
  }
  return absl::StrCat(report.ToString(), hottest);
}

std::string RowsReport(const v1::ReadRowsReply& rows) {
  std::string out;
  for (const v1::RowState& row : rows.rows()) {
    absl::StrAppend(&out, row.key(), ": ", Standing(row), "\n");
    if (row.values_size() > 0) absl::StrAppend(&out, "  ", Numbers(row.values()), "\n");
    for (const v1::RowSlot& slot : row.slots()) {
      absl::StrAppend(&out, "  ", Printable(slot.name()), ": ", Numbers(slot.values()), "\n");
    }
  }
  return out;
}

constexpr absl::Duration kDeadline = absl::Seconds(5);

std::string NoTable(const std::string& wanted, const std::vector<v1::TableStatus>& tables) {
  if (tables.empty()) return "there are no embedding tables";
  return absl::StrCat("there is no table '", wanted, "'; there are ",
                      absl::StrJoin(tables, ", ", [](std::string* out, const v1::TableStatus& table) {
                        absl::StrAppend(out, table.name());
                      }));
}

// ---- a running job

std::string AddressOf(const RunningJob& job, uint32_t server) {
  if (server == 0) return job.address;
  const std::string name = absl::StrCat("ps:", server);
  for (const v1::TaskStatus& task : job.status.tasks()) {
    if (task.task() == name) return task.address();
  }
  return "";
}

// The rows of these keys, in their order, from the servers that have them.
absl::StatusOr<v1::ReadRowsReply> RowsOfJob(const RunningJob& job, const TableOptions& options,
                                            uint32_t shards) {
  std::map<uint32_t, v1::ReadRowsRequest> requests;  // by shard
  for (const uint64_t key : options.keys) requests[ShardOfKey(key, shards)].add_keys(key);
  std::map<uint64_t, v1::RowState> found;
  for (auto& [shard, request] : requests) {
    request.set_table(options.table);
    request.set_slots(options.slots);
    request.set_job(job.status.job().id());
    request.set_shard_plus_one(shard + 1);
    const std::string address = AddressOf(job, shard);
    const auto rows = ReadRows(shard, address, job.token, job.tls, request, kDeadline);
    if (!rows.ok()) {
      return absl::Status(rows.status().code(),
                          absl::StrCat("ps:", shard, " at ", address, ": ", rows.status().message()));
    }
    for (const v1::RowState& row : rows->rows()) found[row.key()] = row;
  }
  v1::ReadRowsReply reply;
  for (const uint64_t key : options.keys) *reply.add_rows() = found[key];
  return reply;
}

// ---- a checkpoint

std::vector<v1::TableStatus> TablesOf(const CheckpointReader& reader) {
  std::vector<v1::TableStatus> tables;
  for (size_t i = 0; i < reader.NumTables(); ++i) {
    v1::TableStatus& table = tables.emplace_back();
    table.set_name(reader.TableAt(i).name());
    table.set_dim(reader.TableAt(i).dim());
    v1::TableStats& all = *table.mutable_all();
    for (const v1::CheckpointFile& file : reader.manifest().files()) {
      const v1::CheckpointTable& of_shard = file.tables(static_cast<int>(i));
      v1::TableStats& shard = *table.add_shards();
      shard.set_rows(RowsOfShard(of_shard));
      shard.set_bytes(of_shard.bytes());
      shard.set_keys_counted(CountersOfShard(of_shard));
      all.set_rows(all.rows() + shard.rows());
      all.set_bytes(all.bytes() + shard.bytes());
      all.set_keys_counted(all.keys_counted() + shard.keys_counted());
    }
  }
  return tables;
}

absl::StatusOr<v1::ReadRowsReply> RowsOfCheckpoint(const CheckpointReader& reader,
                                                   const TableOptions& options) {
  std::map<uint64_t, v1::RowState> found;
  const uint32_t shards = reader.manifest().num_shards();
  std::set<uint32_t> wanted;  // shards, whose files are read whole
  for (const uint64_t key : options.keys) {
    found[key].set_key(key);
    wanted.insert(ShardOfKey(key, shards));
  }
  const size_t index = reader.FindTable(options.table);  // Open() has found it
  const v1::TableConfig& config = reader.TableAt(index);
  const size_t dim = config.dim();
  CheckpointReader::TableTarget target;
  target.rows = [&](const TableEntries& entries) {
    const size_t slots = entries.keys.empty() ? 0 : entries.slots.size() / entries.keys.size();
    for (size_t i = 0; i < entries.keys.size(); ++i) {
      const auto row = found.find(entries.keys[i]);
      if (row == found.end()) continue;
      row->second.set_exists(true);
      row->second.set_updated(entries.updated[i]);
      const float* const values = entries.values.data() + i * dim;
      row->second.mutable_values()->Add(values, values + dim);
      if (options.slots && slots > 0) {
        AddRowSlots(config, {entries.slots.data() + i * slots, slots}, &row->second);
      }
    }
    return absl::OkStatus();
  };
  target.counters = [&](const TableEntries& entries) {
    for (size_t i = 0; i < entries.keys.size(); ++i) {
      const auto row = found.find(entries.keys[i]);
      if (row == found.end()) continue;
      row->second.set_updated(entries.updated[i]);
      row->second.set_pushes_counted(entries.pushes[i]);
    }
    return absl::OkStatus();
  };
  for (const uint32_t shard : wanted) {
    WEIR_RETURN_IF_ERROR(reader.LoadTable(index, shard, shards, target));
  }
  v1::ReadRowsReply reply;
  for (const uint64_t key : options.keys) *reply.add_rows() = found[key];
  return reply;
}

// ---- both

// The job or the checkpoint of a command, and its tables.
struct Source {
  RunningJob job;
  absl::StatusOr<CheckpointReader> checkpoint = absl::UnknownError("");
  std::vector<v1::TableStatus> tables;
};

// Sets `source`, with the tables that the command is about. Returns the exit code, as AskJob() does.
int Open(const TableOptions& options, Source* source) {
  std::vector<v1::TableStatus>& tables = source->tables;
  if (options.checkpoint.empty()) {
    if (const int refused = AskJob(options.cluster, &source->job); refused != kExitOk) return refused;
    tables.assign(source->job.status.tables().begin(), source->job.status.tables().end());
  } else {
    std::string folder;
    source->checkpoint = OpenCheckpoint(options.checkpoint, &folder);
    if (!source->checkpoint.ok()) return RefuseCheckpoint(source->checkpoint.status());
    tables = TablesOf(*source->checkpoint);
  }
  const std::string& wanted = options.table;
  const auto other = [&](const v1::TableStatus& table) { return !wanted.empty() && table.name() != wanted; };
  if (absl::c_all_of(tables, other)) return Refuse(kExitConfig, Printable(NoTable(wanted, tables)));
  tables.erase(std::remove_if(tables.begin(), tables.end(), other), tables.end());
  return kExitOk;
}

int RunTableStats(const TableOptions& options) {
  Source source;
  if (const int refused = Open(options, &source); refused != kExitOk) return refused;
  if (!options.json) return Print(TableStatsReport(source.tables));
  std::string json = "[\n";
  for (size_t i = 0; i < source.tables.size(); ++i) {
    absl::StrAppend(&json, i > 0 ? ",\n" : "", MessageJson(source.tables[i]));
  }
  return Print(absl::StrCat(json, "]\n"));
}

int RunTableGet(const TableOptions& options) {
  Source source;
  if (const int refused = Open(options, &source); refused != kExitOk) return refused;
  absl::StatusOr<v1::ReadRowsReply> rows;
  if (!options.checkpoint.empty()) {
    rows = RowsOfCheckpoint(*source.checkpoint, options);
    if (!rows.ok()) return RefuseCheckpoint(rows.status());
  } else {
    const int shards = source.tables[0].shards_size();
    if (shards == 0) return Refuse(kExitPeerLost, "the job has not begun: no server holds its tables yet");
    rows = RowsOfJob(source.job, options, static_cast<uint32_t>(shards));
    const bool lost = absl::IsUnavailable(rows.status()) || absl::IsDeadlineExceeded(rows.status());
    if (!rows.ok()) return Refuse(lost ? kExitPeerLost : kExitConfig, Printable(rows.status().message()));
  }
  return Print(options.json ? MessageJson(*rows) : RowsReport(*rows));
}

constexpr const char* kTableExamples = R"(Examples:
  weir table stats --address=127.0.0.1:2222
  weir table stats users --checkpoint=runs/clicks --json
  weir table get users 42 17 --address=127.0.0.1:2222 --slots)";

}  // namespace

void AddTableCommands(Commands& commands) {
  CLI::App* group = commands.AddGroup("table", "Show the embedding tables of a running job or a checkpoint",
                                      kTableExamples);
  const auto options = std::make_shared<TableOptions>();
  CLI::App* stats =
      group->add_subcommand("stats", "Show how many rows the tables have, and which keys are the hottest");
  CLI::App* get = group->add_subcommand("get", "Print the rows of some keys");
  AddNamed(stats, "table", &options->table, "NAME", "One table (default: all)");
  AddNamed(get, "table", &options->table, "NAME", "The table")->required();
  AddNamed(get, "key", &options->keys, "KEY", "Keys, from 0 to 2^64 - 1")->check(WholeNumber())->required();
  get->add_flag("--slots", options->slots, "Also print what the optimizer keeps for each row");
  for (CLI::App* command : {stats, get}) {
    const std::vector<CLI::Option*> job = AddCluster(command, &options->cluster);
    CLI::Option* saved = AddNamed(command, "--checkpoint", &options->checkpoint, "DIR", kOneCheckpoint);
    for (CLI::Option* option : job) saved->excludes(option);
    command->add_flag("--json", options->json, "Print JSON");
  }
  commands.OnRun(stats, [options] { return RunTableStats(*options); });
  commands.OnRun(get, [options] { return RunTableGet(*options); });
}

}  // namespace weir

// A training program on embedding tables (table_job.h), as a process:
//   table_worker worker|evaluator RANK CONFIG SERVER,... OUT BEHAVIOUR SET...
// A worker trains, and joins again when the job goes back to a checkpoint. An evaluator reads all rows at the
// end, and writes them to OUT, float32. BEHAVIOUR: a word, or several joined by ","; "-": none.
//   count  adds one to each row of a batch, and checks that no row is torn
//   both   pushes the last gradient of a clock together with the pull of the next rows
//   nan    spoils one value of the job
//   dies   kills itself with several calls under way
//   few    batches have few keys (TableKeysOf)
//   waits  once, after kPushesBeforeWait pushes, until somebody opens the pipe OUT.go
//   slow   takes some time for each batch, so that what befalls the job befalls it on its way
//   history  writes down what the servers answer (client/job/history.h), in OUT.TASK.history, and, of a job
//   that
//          counts, the rows that it reads (tests/history/history_log.h), in OUT.TASK.reads
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/client.h"
#include "client/memberships.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/model/key_bucket.h"
#include "tests/integration/table_job.h"

namespace weir {
namespace {

struct Program {
  ClientOptions options;
  std::string out;
  bool counts = false, both = false, spoils = false, dies = false, waits = false, few = false, slow = false,
       history = false;
};

constexpr std::chrono::milliseconds kSlow{200};  // a batch

// The rows of one batch, as they are read.
struct Rows {
  Rows(const std::vector<TableSpec>& tables, uint64_t of, bool few) : batch(of) {
    for (uint32_t table = 0; table < tables.size(); ++table) {
      keys.push_back(TableKeysOf(batch, table, few));
      values.emplace_back(keys.back().size() * tables[table].dim);
    }
  }
  std::vector<RowsToRead> ToRead() {
    std::vector<RowsToRead> rows;
    for (uint32_t table = 0; table < keys.size(); ++table) {
      rows.push_back({table, keys[table], absl::MakeSpan(values[table])});
    }
    return rows;
  }

  const uint64_t batch;
  std::vector<std::vector<uint64_t>> keys;
  std::vector<std::vector<float>> values;
};

// Rows that were asked for before their clock.
struct Ahead {
  uint64_t clock;
  std::unique_ptr<Rows> rows;
  std::function<absl::StatusOr<PullResult>()> pull;
  bool rows_alone;
};

absl::StatusOr<std::vector<std::vector<float>>> Gradients(const Program& program,
                                                          const std::vector<TableSpec>& tables,
                                                          const Rows& rows) {
  std::vector<std::vector<float>> gradients;
  for (uint32_t table = 0; table < rows.keys.size(); ++table) {
    const std::vector<float>& values = rows.values[table];
    const size_t dim = tables[table].dim;
    if (!program.counts) {
      gradients.push_back(TableGradientOf(rows.batch, table, values));
      continue;
    }
    gradients.emplace_back(values.size(), -1.0f);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i] != values[i / dim * dim]) {
        return absl::DataLossError(absl::StrCat("a torn row: key ", rows.keys[table][i / dim]));
      }
    }
  }
  if (program.spoils && rows.batch == kSpoiltBatch) {
    gradients[kSpoiltTable][kSpoiltKey * tables[kSpoiltTable].dim + kSpoiltColumn] =
        std::numeric_limits<float>::quiet_NaN();
  }
  return gradients;
}

// Writes down the rows that a worker has read, those of each shard in a line.
void LogRows(const Program& program, const Client& client, const Work& work, const PullResult& read,
             const Rows& rows) {
  const size_t shards = read.versions.size();
  std::vector<std::string> lines(shards);
  for (uint32_t table = 0; table < rows.keys.size(); ++table) {
    const size_t dim = client.tables()[table].dim;
    for (size_t i = 0; i < rows.keys[table].size(); ++i) {
      const uint64_t key = rows.keys[table][i];
      const auto row = rows.values[table].begin() + static_cast<ptrdiff_t>(i * dim);
      const auto [least, most] = std::minmax_element(row, row + static_cast<ptrdiff_t>(dim));
      std::string& line = lines[ShardOfKey(key, static_cast<uint32_t>(shards))];
      absl::StrAppend(&line, line.empty() ? "" : ",", "[", table, ",", key, ",", *least, ",", *most, "]");
    }
  }
  std::ofstream out(absl::StrCat(program.out, ".", program.options.task, ".reads"), std::ios::app);
  for (size_t shard = 0; shard < shards; ++shard) {
    out << "{\"op\":\"rows\",\"worker\":" << client.worker()
        << ",\"worker_incarnation\":0,\"shard\":" << shard << ",\"clock\":" << work.clock
        << ",\"version\":" << read.versions[shard] << ",\"incarnation\":" << read.incarnations[shard]
        << ",\"rows\":[" << lines[shard] << "]}\n";
  }
}

// What calls read and write, also those that are under way when training ends: outlives the client.
struct Memory {
  const ModelSpec model = TableJobModel();
  const std::vector<float> dense = std::vector<float>(model.elements(), 0.5f);
  std::vector<float> weights = std::vector<float>(model.elements());
  std::vector<Ahead> ahead;
};

absl::Status TrainWith(Program& program, Memory& memory, Client& client) {
  const ModelSpec& model = memory.model;
  std::vector<Ahead>& ahead = memory.ahead;
  std::vector<std::function<absl::StatusOr<PushResult>()>> pushes;
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const std::optional<Work> work, client.NextWork());
    if (!work.has_value()) break;
    std::optional<PullResult> base;
    Rows* rows = nullptr;
    for (Ahead& one : ahead) {
      if (one.clock != work->clock || one.rows->batch != work->batch) continue;
      absl::StatusOr<PullResult> pulled = one.pull();
      // A server that was lost meanwhile has come back in another version.
      if (absl::IsDataLoss(pulled.status())) continue;
      WEIR_RETURN_IF_ERROR(pulled.status());
      rows = one.rows.get();
      // Rows that waited for no weights are no base of a push.
      if (one.rows_alone && !pulled->table_versions.empty()) {
        pulled = client.Pull(work->clock, TensorsOf(model, absl::MakeSpan(memory.weights))).Take();
        if (absl::IsDataLoss(pulled.status())) continue;
      }
      WEIR_ASSIGN_OR_RETURN(base, std::move(pulled));
    }
    std::optional<Rows> now;
    while (!base.has_value()) {
      now.emplace(client.tables(), work->batch, program.few);
      rows = &*now;
      absl::StatusOr<PullResult> pulled =
          client.Pull(work->clock, TensorsOf(model, absl::MakeSpan(memory.weights)), nullptr, rows->ToRead())
              .Take();
      if (absl::IsDataLoss(pulled.status())) continue;
      WEIR_ASSIGN_OR_RETURN(base, std::move(pulled));
    }
    if (base->past) continue;
    if (program.history && program.counts) LogRows(program, client, *work, *base, *rows);
    if (program.slow) std::this_thread::sleep_for(kSlow);
    // The batch that is likely next: the same part of the next step, or simply the next one. Nothing depends
    // on the guess.
    const uint64_t next = work->batch + (program.counts ? 1 : kTableParts);
    std::unique_ptr<Rows> early;
    if (next < kTableBatches) early = std::make_unique<Rows>(client.tables(), next, program.few);
    const bool both = program.both && work->last_of_clock && early != nullptr;
    if (early != nullptr && !both) {
      const auto pull = client.PullRows(work->clock + 1, early->ToRead());
      ahead.push_back({work->clock + 1, std::move(early), [pull] { return pull.Get(); }, true});
    }
    WEIR_ASSIGN_OR_RETURN(const auto gradients, Gradients(program, client.tables(), *rows));
    std::vector<RowGradients> pushed;
    for (uint32_t table = 0; table < gradients.size(); ++table) {
      pushed.push_back({table, rows->keys[table], gradients[table]});
    }
    const auto dense = TensorsOf(model, absl::MakeConstSpan(memory.dense));
    if (both) {
      const auto exchange =
          client.PushPull(*work, *base, dense, TensorsOf(model, absl::MakeSpan(memory.weights)), nullptr,
                          nullptr, std::move(pushed), early->ToRead());
      pushes.push_back([exchange]() -> absl::StatusOr<PushResult> {
        WEIR_RETURN_IF_ERROR(exchange.Get().status());
        return exchange.Get()->push;
      });
      ahead.push_back({work->clock + 1, std::move(early),
                       [exchange]() -> absl::StatusOr<PullResult> {
                         WEIR_RETURN_IF_ERROR(exchange.Get().status());
                         return exchange.Get()->pull;
                       },
                       false});
    } else {
      const auto push = client.Push(*work, *base, dense, nullptr, std::move(pushed));
      pushes.push_back([push] { return push.Get(); });
    }
    if (program.dies && pushes.size() == 4) raise(SIGKILL);
    if (pushes.size() == kPushesBeforeWait && std::exchange(program.waits, false)) {
      for (const auto& push : pushes) WEIR_RETURN_IF_ERROR(push().status());
      std::ifstream(program.out + ".go").get();
    }
  }
  for (const auto& push : pushes) {
    WEIR_ASSIGN_OR_RETURN(const PushResult result, push());
    if (!result.applied) std::cerr << "not applied: " << result.reason << "\n";
  }
  return absl::OkStatus();
}

absl::Status Train(Program program) {
  std::vector<std::unique_ptr<Memory>> memory;  // of each membership
  return WorkUntilDone(program.options, TableJobModel(), [&](Client* client) {
    memory.push_back(std::make_unique<Memory>());
    return TrainWith(program, *memory.back(), *client);
  });
}

// All rows of all tables, in the order of AllTableKeys(). Asked for in another order, and some twice.
absl::Status Evaluate(const Program& program, Client* client) {
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const bool draining,
                          client->WaitDraining(std::chrono::steady_clock::now() + std::chrono::seconds(60)));
    if (draining) break;
  }
  const std::vector<uint64_t>& all = AllTableKeys();
  std::vector<uint64_t> keys(all.rbegin(), all.rend());
  keys.insert(keys.end(), all.begin(), all.begin() + 10);
  std::vector<std::vector<float>> values;
  std::vector<RowsToRead> rows;
  for (const TableSpec& table : client->tables()) values.emplace_back(keys.size() * table.dim);
  for (uint32_t table = 0; table < values.size(); ++table) {
    rows.push_back({table, keys, absl::MakeSpan(values[table])});
  }
  WEIR_RETURN_IF_ERROR(client->PullSnapshot({}, rows).Get().status());
  std::ofstream out(program.out, std::ios::binary);
  for (uint32_t table = 0; table < values.size(); ++table) {
    const size_t dim = client->tables()[table].dim;
    for (size_t i = 0; i < all.size(); ++i) {
      const float* const row = &values[table][(all.size() - 1 - i) * dim];
      if (i < 10 && !std::equal(row, row + dim, &values[table][(all.size() + i) * dim])) {
        return absl::DataLossError("one key was read in two ways");
      }
      out.write(reinterpret_cast<const char*>(row), static_cast<std::streamsize>(dim * sizeof(float)));
    }
  }
  out.close();
  return out ? absl::OkStatus() : absl::InternalError(program.out + " cannot be written");
}

absl::Status Main(const std::vector<std::string>& args) {
  if (args.size() < 6) return absl::InvalidArgumentError("see table_worker.cc");
  Program program;
  program.options.reader = args[0] == "evaluator";
  if (!absl::SimpleAtoi(args[1], &program.options.rank))
    return absl::InvalidArgumentError("RANK: " + args[1]);
  program.options.task = absl::StrCat(args[0], ":", args[1]);
  program.options.servers = absl::StrSplit(args[3], ',');
  program.options.train_examples = program.options.reader ? 0 : 1000;
  program.out = args[4];
  for (absl::string_view word : absl::StrSplit(args[5], ',')) {
    program.counts |= word == "count";
    program.both |= word == "both";
    program.spoils |= word == "nan";
    program.dies |= word == "dies";
    program.few |= word == "few";
    program.waits |= word == "waits";
    program.slow |= word == "slow";
    program.history |= word == "history";
  }
  WEIR_ASSIGN_OR_RETURN(const v1::JobConfig config,
                        LoadJobConfig(args[2], std::vector<std::string>(args.begin() + 6, args.end())));
  program.options.job_config = config.SerializeAsString();
  if (program.history) {
    program.options.history_path = absl::StrCat(program.out, ".", program.options.task, ".history");
  }
  if (!program.options.reader) return Train(program);
  return WorkUntilDone(program.options, TableJobModel(),
                       [&](Client* client) { return Evaluate(program, client); });
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  const absl::Status status = weir::Main(std::vector<std::string>(argv + 1, argv + argc));
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}

// A training program on embedding tables (table_job.h), as a process:
//   table_worker worker|evaluator RANK CONFIG SERVER,... OUT BEHAVIOUR SET...
// A worker trains. An evaluator reads all rows at the end, and writes them to OUT, float32. BEHAVIOUR: a
// word, or several joined by ","; "-": none.
//   count  adds one to each row of a batch, and checks that no row is torn
//   nan    spoils one value of the job
//   dies   kills itself with several calls under way
#include <signal.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/client.h"
#include "client/flat_tensors.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "tests/integration/table_job.h"

namespace weir {
namespace {

struct Program {
  ClientOptions options;
  std::string out;
  bool counts = false, spoils = false, dies = false;
};

// The rows of one batch, as they are read.
struct Rows {
  explicit Rows(uint64_t of) : batch(of) {
    for (uint32_t table = 0; table < TablesOfJob().size(); ++table) {
      keys.push_back(TableKeysOf(batch, table));
      values.emplace_back(keys.back().size() * TablesOfJob()[table].dim);
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
  Future<PullResult> pull;
};

absl::StatusOr<std::vector<std::vector<float>>> Gradients(const Program& program, const Rows& rows) {
  std::vector<std::vector<float>> gradients;
  for (uint32_t table = 0; table < rows.keys.size(); ++table) {
    const std::vector<float>& values = rows.values[table];
    const size_t dim = TablesOfJob()[table].dim;
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
    gradients[kSpoiltTable][kSpoiltKey * TablesOfJob()[kSpoiltTable].dim + kSpoiltColumn] =
        std::numeric_limits<float>::quiet_NaN();
  }
  return gradients;
}

absl::Status TrainWith(const Program& program, Client& client) {
  const ModelSpec model = TableJobModel();
  const std::vector<float> dense(model.elements(), 0.5f);
  std::vector<float> weights(model.elements());
  std::vector<Ahead> ahead;
  std::vector<Future<PushResult>> pushes;
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const std::optional<Work> work, client.NextWork());
    if (!work.has_value()) break;
    std::optional<PullResult> base;
    Rows* rows = nullptr;
    for (Ahead& one : ahead) {
      if (one.clock != work->clock || one.rows->batch != work->batch) continue;
      WEIR_ASSIGN_OR_RETURN(base, one.pull.Get());
      rows = one.rows.get();
    }
    std::optional<Rows> now;
    if (!base.has_value()) {
      now.emplace(work->batch);
      rows = &*now;
      WEIR_ASSIGN_OR_RETURN(
          base,
          client.Pull(work->clock, TensorsOf(model, absl::MakeSpan(weights)), nullptr, rows->ToRead()).Get());
    }
    if (base->past) continue;
    // The batch that is likely next: the same part of the next step, or simply the next one. Nothing depends
    // on the guess. The rows stay where they are until the client is gone.
    const uint64_t next = work->batch + (program.counts ? 1 : kTableParts);
    if (next < kTableBatches) {
      auto early = std::make_unique<Rows>(next);
      const Future<PullResult> pull = client.PullRows(work->clock + 1, early->ToRead());
      ahead.push_back({work->clock + 1, std::move(early), pull});
    }
    WEIR_ASSIGN_OR_RETURN(const auto gradients, Gradients(program, *rows));
    std::vector<RowGradients> pushed;
    for (uint32_t table = 0; table < gradients.size(); ++table) {
      pushed.push_back({table, rows->keys[table], gradients[table]});
    }
    pushes.push_back(
        client.Push(*work, *base, TensorsOf(model, absl::MakeConstSpan(dense)), nullptr, std::move(pushed)));
    if (program.dies && pushes.size() == 4) raise(SIGKILL);
  }
  for (const Future<PushResult>& push : pushes) {
    WEIR_RETURN_IF_ERROR(push.Get().status());
    if (!push.Get()->applied) std::cerr << "not applied: " << push.Get()->reason << "\n";
  }
  return absl::OkStatus();
}

absl::Status Train(const Program& program) {
  WEIR_ASSIGN_OR_RETURN(const auto client, Client::Join(program.options, TableJobModel()));
  const absl::Status trained = TrainWith(program, *client);
  const absl::Status left = client->Leave(trained);
  return trained.ok() ? left : trained;
}

// All rows of all tables, in the order of AllTableKeys(). Asked for in another order, and some twice.
absl::Status Evaluate(const Program& program) {
  WEIR_ASSIGN_OR_RETURN(const auto client, Client::Join(program.options, TableJobModel()));
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
  for (const TableOfJob& table : TablesOfJob()) values.emplace_back(keys.size() * table.dim);
  for (uint32_t table = 0; table < values.size(); ++table) {
    rows.push_back({table, keys, absl::MakeSpan(values[table])});
  }
  WEIR_RETURN_IF_ERROR(client->PullSnapshot({}, rows).Get().status());
  std::ofstream out(program.out, std::ios::binary);
  for (uint32_t table = 0; table < values.size(); ++table) {
    const size_t dim = TablesOfJob()[table].dim;
    for (size_t i = 0; i < all.size(); ++i) {
      const float* const row = &values[table][(all.size() - 1 - i) * dim];
      if (i < 10 && !std::equal(row, row + dim, &values[table][(all.size() + i) * dim])) {
        return absl::DataLossError("one key was read in two ways");
      }
      out.write(reinterpret_cast<const char*>(row), static_cast<std::streamsize>(dim * sizeof(float)));
    }
  }
  out.close();
  if (!out) return absl::UnavailableError(program.out + " cannot be written");
  return client->Leave();
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
    program.spoils |= word == "nan";
    program.dies |= word == "dies";
  }
  WEIR_ASSIGN_OR_RETURN(const v1::JobConfig config,
                        LoadJobConfig(args[2], std::vector<std::string>(args.begin() + 6, args.end())));
  program.options.job_config = config.SerializeAsString();
  return program.options.reader ? Evaluate(program) : Train(program);
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  const absl::Status status = weir::Main(std::vector<std::string>(argv + 1, argv + argc));
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}

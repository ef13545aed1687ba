// Compares the cost of a delta, a checkpoint of a table's changes alone, with that of its base, a checkpoint
// of all rows, in one process, against targets. Rows have row-wise Adagrad. Before each delta a hundredth of
// the rows, drawn at random, is updated.
//
//   bazel run //tests/bench:table_delta_bench -- [--rows=N] [--dim=N] [--folder=PATH] [--json=FILE]
//
// size    bytes of the delta over those of the base
// scan    the time that all turns of the shard's queue take to find and copy the changed rows among all rows
// turn    the longest of 99% of these turns, since others use the machine
// files   the time from the first turn until the file is durable, and the same for the base
// load    reading a chain of ten deltas over reading the base, in CPU time

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/model/key_bucket.h"
#include "common/optimizer/kernels.h"
#include "common/system/file_system.h"
#include "common/threads/thread.h"
#include "nlohmann/json.hpp"
#include "ps_server/shard/restore/table_files.h"
#include "tests/bench/timed.h"
#include "tests/common/checkpoint/checkpoint_fixture.h"

namespace weir {
namespace {

using bench::Require;
using bench::Seconds;

constexpr size_t kPush = 65536;

class Bench {
 public:
  Bench(uint64_t rows, uint32_t dim, std::string folder) : rows_(rows), dir_(std::move(folder)) {
    config_ = TestTable("t", dim);
    config_.mutable_optimizer()->set_type(v1::TableOptimizer::KIND_ROWWISE_ADAGRAD);
    ShardTables::Options options;
    *options.tables.Add() = config_;
    options.notes_changes = true;
    options.kernels = &BestKernels();
    options.threads = &threads_;
    tables_ = Require(ShardTables::Create(options));
    for (uint64_t first = 0; first < rows; first += kPush) {
      std::vector<uint64_t> keys;
      for (uint64_t row = first; row < std::min(rows, first + kPush); ++row) keys.push_back(row);
      Update(keys);
    }
  }

  int Run(const std::string& json_file) {
    const Saved base = Save(10);
    std::vector<Saved> deltas;
    for (uint64_t step = 11; step <= 20; ++step) {
      std::vector<uint64_t> keys;
      for (uint64_t row = 0; row < rows_; ++row) {
        if (random_.NextBelow(100) == 0) keys.push_back(row);
      }
      Update(keys);
      deltas.push_back(Save(step));
    }
    const Saved& delta = deltas[0];
    const double whole = Load(10), chain = Load(20);
    std::printf("base:  %8.1f MB, %5zu turns of %.3f s, files %.2f s, slow turn %.3f ms\n", base.bytes * 1e-6,
                base.turns.size(), base.Scan(), base.seconds, base.SlowTurn() * 1e3);
    std::printf("delta: %8.1f MB, %5zu turns of %.3f s, files %.2f s, slow turn %.3f ms, %.1f ns a row\n",
                delta.bytes * 1e-6, delta.turns.size(), delta.Scan(), delta.seconds, delta.SlowTurn() * 1e3,
                1e9 * delta.Scan() / static_cast<double>(rows_));
    std::printf("load:  base %.2f s, chain of 10 deltas %.2f s\n", whole, chain);
    Judge("delta / base, bytes", delta.bytes / base.bytes, 0.03);
    Judge("scan of a delta / of the base", delta.Scan() / base.Scan(), 1);
    Judge("slow turn of a delta, ms", delta.SlowTurn() * 1e3, 1);
    Judge("load of a chain / of the base", chain / whole, 3);
    if (!json_file.empty()) std::ofstream(json_file) << json_.dump(2) << "\n";
    return missed_ ? 1 : 0;
  }

 private:
  struct Saved {
    double bytes = 0, seconds = 0;
    std::vector<double> turns;  // CPU time
    double Scan() const {
      double sum = 0;
      for (const double turn : turns) sum += turn;
      return sum;
    }
    double SlowTurn() const {
      std::vector<double> sorted = turns;
      std::sort(sorted.begin(), sorted.end());
      return sorted[sorted.size() * 99 / 100];
    }
  };

  void Update(const std::vector<uint64_t>& keys) {
    PushedRows rows;
    PushedRows::OfTable of;
    of.keys.table = 0;
    of.keys.count = keys.size();
    of.keys.keys = std::make_unique<uint64_t[]>(keys.size());
    std::copy(keys.begin(), keys.end(), of.keys.keys.get());
    const size_t values = keys.size() * config_.dim();
    of.gradients = std::make_unique<float[]>(values);
    for (size_t i = 0; i < values; ++i) of.gradients[i] = 0.5f;
    rows.tables.push_back(std::move(of));
    const WeightedRows weighted{&rows, 1};
    Require(tables_->Update(absl::MakeConstSpan(&weighted, 1)));
  }

  Saved Save(uint64_t step) {
    FileSystem& fs = FileSystem::Posix();
    Require(BeginCheckpoint(fs, dir_, step));
    StoredJob dense{TestModel(20), {}, 1};
    dense.version = tables_->version();
    v1::CheckpointManifest manifest = dense.Manifest(step);
    v1::CheckpointFile& file = *manifest.add_files();
    file = Require(dense.WriteShard(fs, dir_, step, 0, 1));
    Saved saved;
    TableFiles to;
    to.files = &fs;
    to.directory = dir_;
    to.step = step;
    to.shard = {0, 1, 7};
    to.in_order = [&](const std::function<void()>& turn) {
      saved.turns.push_back(Seconds(CLOCK_THREAD_CPUTIME_ID, turn));
    };
    to.wanted = [] { return true; };
    const PinnedTables pinned(tables_, step, step - 1, /*other_bytes=*/0);
    saved.seconds =
        Seconds(CLOCK_MONOTONIC, [&] { *file.add_tables() = Require(WriteTables(pinned, to))[0]; });
    saved.bytes = static_cast<double>(file.tables(0).bytes());
    if (file.tables(0).has_delta_since()) manifest.add_chain()->set_step(step - 1);
    Require(CommitCheckpoint(fs, dir_, manifest));
    return saved;
  }

  double Load(uint64_t step) {
    const CheckpointReader reader =
        Require(CheckpointReader::Open(FileSystem::Posix(), CheckpointFolder(dir_, step)));
    uint64_t rows = 0;
    CheckpointReader::TableTarget target;
    target.rows = [&](const TableEntries& entries) {
      rows += entries.keys.size();
      return absl::OkStatus();
    };
    target.counters = [](const TableEntries&) { return absl::OkStatus(); };
    const double seconds =
        Seconds(CLOCK_THREAD_CPUTIME_ID, [&] { Require(reader.LoadTable(/*index=*/0, 0, 1, target)); });
    if (rows != rows_) Require(absl::InternalError(absl::StrCat(rows, " rows were read")));
    return seconds;
  }

  void Judge(const std::string& what, double value, double target) {
    std::printf("  %-34s %7.3f  target at most %g: %s\n", what.c_str(), value, target,
                value <= target ? "met" : "MISSED");
    json_["targets"].push_back(
        {{"what", what}, {"value", value}, {"target", target}, {"met", value <= target}});
    missed_ |= value > target;
  }

  const uint64_t rows_;
  const std::string dir_;
  v1::TableConfig config_;
  ThreadPool threads_{1};
  std::shared_ptr<ShardTables> tables_;
  RandomStream random_{RandomKey(1, "table_delta_bench"), 0};
  nlohmann::json json_;
  bool missed_ = false;
};

int Main(int argc, char** argv) {
  uint64_t rows = 2'000'000;
  uint32_t dim = 32;
  std::string folder, json_file;
  CLI::App app("Checkpoints of a table's changes beside those of all rows", "table_delta_bench");
  app.add_option("--rows", rows, "rows of the table")->capture_default_str();
  app.add_option("--dim", dim, "float32 values of a row")->capture_default_str();
  app.add_option("--folder", folder, "an empty folder for the checkpoints, on the disk to measure")
      ->required();
  app.add_option("--json", json_file, "also write the results there");
  CLI11_PARSE(app, argc, argv);
  return Bench(rows, dim, folder).Run(json_file);
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) { return weir::Main(argc, argv); }

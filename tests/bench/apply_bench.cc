// How fast the optimizers run over memory, against what this machine's memory can do at all. Blocks are
// walked as a server walks them: copy on write, one block a task, on a thread pool.
//
//   bazel run //tests/bench:apply_bench -- [--elements=N] [--rounds=N] [--json=FILE]
//
// GB/s counts each array that is read or written once; that a store may first fetch its line is not counted,
// in the limit as little as in the optimizers. The limit of an optimizer is a loop with hardly any arithmetic
// over the same arrays, timed in turn with it. Of all rounds the best counts: what disturbs a measurement
// only ever makes it slower.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/random.h"
#include "common/thread_pool.h"
#include "nlohmann/json.hpp"
#include "proto/job_config.pb.h"
#include "ps_server/optimizer/kernels.h"
#include "ps_server/optimizer/optimizer.h"

namespace weir {
namespace {

constexpr size_t kBlock = 65536;
constexpr size_t kArrays = 3;  // weights and two slots
constexpr size_t kGradient = kArrays, kVersions = 2;

struct Free {
  void operator()(float* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<float[], Free>;

Buffer MakeBuffer(uint64_t stream, size_t n) {
  Buffer buffer(static_cast<float*>(std::aligned_alloc(64, kBlock * sizeof(float))));
  RandomStream random(RandomKey(1, "apply_bench"), stream);
  for (size_t i = 0; i < n; ++i) buffer[i] = UniformFloat(random.Next());
  return buffer;
}

// The parameters of a shard. Every version of an array has a buffer of its own per block.
struct Block {
  size_t n;
  Buffer versions[kVersions][kArrays];
  Buffer gradient;
};

using Pass = std::function<void(Block&, int from)>;

#define WEIR_WIDEST __attribute__((target_clones("avx512f", "avx2", "default"), noinline))

WEIR_WIDEST void Stream1(const float* g, const float* a, float* a_out, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) a_out[i] = 0.5f * (a[i] + g[i]);
}

WEIR_WIDEST void Stream2(const float* g, const float* a, const float* b, float* a_out, float* b_out,
                         size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    a_out[i] = 0.5f * (a[i] + g[i]);
    b_out[i] = 0.5f * (b[i] + g[i]);
  }
}

WEIR_WIDEST void Stream3(const float* g, const float* a, const float* b, const float* c, float* a_out,
                         float* b_out, float* c_out, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    a_out[i] = 0.5f * (a[i] + g[i]);
    b_out[i] = 0.5f * (b[i] + g[i]);
    c_out[i] = 0.5f * (c[i] + g[i]);
  }
}

Pass StreamPass(size_t arrays) {
  return [arrays](Block& block, int from) {
    Buffer *in = block.versions[from], *out = block.versions[1 - from];
    const float* g = block.gradient.get();
    if (arrays == 1) Stream1(g, in[0].get(), out[0].get(), block.n);
    if (arrays == 2) Stream2(g, in[0].get(), in[1].get(), out[0].get(), out[1].get(), block.n);
    if (arrays == 3) {
      Stream3(g, in[0].get(), in[1].get(), in[2].get(), out[0].get(), out[1].get(), out[2].get(), block.n);
    }
  };
}

void CopyPass(Block& block, int from) {
  std::memcpy(block.versions[1 - from][0].get(), block.versions[from][0].get(), block.n * sizeof(float));
}

Pass OptimizerPass(v1::OptimizerConfig::Kind kind, const Kernels& kernels) {
  v1::OptimizerConfig config;
  config.set_type(kind);
  return [optimizer = *Optimizer::Create(config, kernels)](Block& block, int from) {
    ApplyArgs args;
    args.n = block.n;
    args.gradient = block.gradient.get();
    args.weights_in = block.versions[from][0].get();
    args.weights_out = block.versions[1 - from][0].get();
    for (size_t k = 0; k < optimizer.slots().size(); ++k) {
      args.slots_in[k] = block.versions[from][k + 1].get();
      args.slots_out[k] = block.versions[1 - from][k + 1].get();
    }
    args.learning_rate = 1e-6;
    args.t = 1000;
    optimizer.Apply(args);
  };
}

struct Row {
  std::string what, kernels;
  size_t bytes_per_element;
  std::string limit;  // `what` of the row that this one is measured against; empty for a limit
  int threads;
  Pass pass;
  double best_seconds = 1e30;

  double GbPerSecond(size_t elements) const {
    return static_cast<double>(bytes_per_element * elements) / best_seconds * 1e-9;
  }
};

std::vector<Row> MakeRows(int threads) {
  std::vector<Row> rows;
  rows.push_back({"memcpy", "", 8, "", threads, CopyPass});
  struct Measured {
    const char* name;
    v1::OptimizerConfig::Kind kind;
    size_t arrays;
  };
  for (const Measured& m : {Measured{"sgd", v1::OptimizerConfig::KIND_SGD, 1},
                            Measured{"momentum", v1::OptimizerConfig::KIND_MOMENTUM, 2},
                            Measured{"adam", v1::OptimizerConfig::KIND_ADAM, 3}}) {
    const std::string limit = "stream " + std::to_string(m.arrays + 1) + "r" + std::to_string(m.arrays) + "w";
    const size_t bytes = 4 * (2 * m.arrays + 1);
    rows.push_back({limit, "", bytes, "", threads, StreamPass(m.arrays)});
    for (KernelLevel level : AvailableKernelLevels()) {
      const Kernels& kernels = **KernelsFor(level);
      rows.push_back({m.name, kernels.name, bytes, limit, threads, OptimizerPass(m.kind, kernels)});
    }
  }
  return rows;
}

int Main(int argc, char** argv) {
  size_t elements = 25'000'000;
  int rounds = 15;
  std::string json_file;
  CLI::App app("Speed of the optimizers over memory");
  app.add_option("--elements", elements, "float32 weights")->check(CLI::Range(size_t{1}, size_t{1} << 34));
  app.add_option("--rounds", rounds, "measurements of each row")->check(CLI::Range(1, 1000));
  app.add_option("--json", json_file, "also write the table there");
  CLI11_PARSE(app, argc, argv);

  std::vector<Block> blocks((elements + kBlock - 1) / kBlock);
  for (size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].n = std::min(kBlock, elements - b * kBlock);
    for (auto& version : blocks[b].versions) {
      for (size_t a = 0; a < kArrays; ++a) version[a] = MakeBuffer(4 * b + a, blocks[b].n);
    }
    blocks[b].gradient = MakeBuffer(4 * b + kGradient, blocks[b].n);
  }

  std::vector<int> thread_counts = {1};
  if (std::thread::hardware_concurrency() > 1) thread_counts.push_back(2);
  std::vector<std::vector<Row>> tables;
  for (int threads : thread_counts) {
    ThreadPool pool(threads);
    std::vector<Row> rows = MakeRows(threads);
    int from = 0;
    for (int round = 0; round < rounds; ++round) {
      for (Row& row : rows) {
        const auto start = std::chrono::steady_clock::now();
        pool.ParallelFor(static_cast<int64_t>(blocks.size()), [&](int64_t b) { row.pass(blocks[b], from); });
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        row.best_seconds = std::min(row.best_seconds, took.count());
        from = 1 - from;
      }
    }
    tables.push_back(std::move(rows));
  }

  nlohmann::json json = {{"elements", elements}, {"block_elements", kBlock}, {"rounds", rounds}};
  json["rows"] = nlohmann::json::array();
  std::printf("%zu float32 in blocks of %zu, best of %d rounds\n\n", elements, kBlock, rounds);
  std::printf("%-12s %-8s %7s %10s %8s %10s\n", "what", "kernels", "threads", "ms", "GB/s", "of limit");
  for (const std::vector<Row>& rows : tables) {
    std::map<std::string, double> limits;
    for (const Row& row : rows) {
      const double speed = row.GbPerSecond(elements);
      nlohmann::json entry = {{"what", row.what},
                              {"threads", row.threads},
                              {"seconds", row.best_seconds},
                              {"gigabytes_per_second", speed}};
      std::printf("%-12s %-8s %7d %10.2f %8.2f", row.what.c_str(), row.kernels.c_str(), row.threads,
                  row.best_seconds * 1e3, speed);
      if (row.limit.empty()) {
        limits[row.what] = speed;
        std::printf("\n");
      } else {
        entry["kernels"] = row.kernels;
        entry["limit"] = row.limit;
        entry["of_limit"] = speed / limits[row.limit];
        std::printf(" %9.0f%%\n", 100 * speed / limits[row.limit]);
      }
      json["rows"].push_back(entry);
    }
    std::printf("\n");
  }
  if (!json_file.empty()) {
    std::ofstream out(json_file);
    out << json.dump(2) << "\n";
    out.close();
    if (!out) {
      std::fprintf(stderr, "--json: cannot write %s\n", json_file.c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) { return weir::Main(argc, argv); }

// The speed of the optimizers over memory, against the limit of this machine's memory. The blocks are walked
// as a server walks them, one per task, on a thread pool.
//
//   bazel run //tests/bench:apply_bench -- [--elements=N] [--rounds=N] [--all_levels] [--only=codecs]
//   [--json=FILE]
//
// Places of the data:
//
// memory  all data in memory
// chunk   the gradient in cache, as a chunk of 1 MiB that has just been received; the rest in memory
// cache   weights of 1 MiB, and the arrays that belong to them
//
// Forms: `copy`, into another version's buffers (copy on write), or `in place`. Gradients are float32, or
// bfloat16 that is expanded a few KiB at a time.
//
// GB/s counts each array that is read or written once. A store may first fetch its line; that fetch is not
// counted, neither for the optimizers nor for the limit. The limit of an optimizer is a loop with hardly any
// arithmetic over the same arrays; the two take turns. The best round counts: a disturbance only ever makes a
// measurement slower.
//
// Before them: the codecs of values on the wire (codec_table.h), also alone with --only=codecs.
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
#include "common/base/random.h"
#include "common/codec/floats.h"
#include "common/optimizer/kernels.h"
#include "common/optimizer/optimizer.h"
#include "common/threads/thread.h"
#include "nlohmann/json.hpp"
#include "proto/job_config.pb.h"
#include "tests/bench/codec_table.h"

namespace weir {
namespace {

constexpr size_t kBlock = 65536;
constexpr size_t kArrays = 3;  // weights and two slots
constexpr size_t kGradient = kArrays, kVersions = 2;
constexpr size_t kChunkBlocks = 4;  // 1 MiB of float32, as one message carries

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

// The parameters of a shard's block. Every version of an array has its own buffer per block.
struct Block {
  size_t n;
  Buffer versions[kVersions][kArrays];
};

// One call of a pass: from version to version (possibly the same), with a gradient of the block's length.
struct Visit {
  size_t n;
  const Buffer* in;
  const Buffer* out;
  const float* gradient;
  const char* bf16;  // the same in bfloat16
};
using Pass = std::function<void(const Visit&)>;

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
  return [arrays](const Visit& v) {
    const Buffer *in = v.in, *out = v.out;
    const float* g = v.gradient;
    if (arrays == 1) Stream1(g, in[0].get(), out[0].get(), v.n);
    if (arrays == 2) Stream2(g, in[0].get(), in[1].get(), out[0].get(), out[1].get(), v.n);
    if (arrays == 3) {
      Stream3(g, in[0].get(), in[1].get(), in[2].get(), out[0].get(), out[1].get(), out[2].get(), v.n);
    }
  };
}

void CopyPass(const Visit& v) { std::memcpy(v.out[0].get(), v.in[0].get(), v.n * sizeof(float)); }

ApplyArgs Args(const Optimizer& optimizer, const Visit& v, size_t first, size_t n) {
  ApplyArgs args;
  args.n = n;
  args.gradient = v.gradient + first;
  args.weights_in = v.in[0].get() + first;
  args.weights_out = v.out[0].get() + first;
  for (size_t k = 0; k < optimizer.slots().size(); ++k) {
    args.slots_in[k] = v.in[k + 1].get() + first;
    args.slots_out[k] = v.out[k + 1].get() + first;
  }
  args.learning_rate = 1e-6;
  args.t = 1000;
  return args;
}

void Require(bool finite) {
  if (finite) return;
  std::fprintf(stderr, "an optimizer took a finite gradient for one that is not\n");
  std::abort();
}

Pass OptimizerPass(v1::OptimizerConfig::Kind kind, const Kernels& kernels) {
  v1::OptimizerConfig config;
  config.set_type(kind);
  return [optimizer = *Optimizer::Create(config, kernels)](const Visit& v) {
    Require(optimizer.Apply(Args(optimizer, v, 0, v.n)));
  };
}

Pass Bf16Pass(v1::OptimizerConfig::Kind kind, const Kernels& kernels) {
  v1::OptimizerConfig config;
  config.set_type(kind);
  return [optimizer = *Optimizer::Create(config, kernels)](const Visit& v) {
    constexpr size_t kPiece = 2048;
    float scratch[kPiece];
    for (size_t first = 0; first < v.n; first += kPiece) {
      const size_t n = std::min(kPiece, v.n - first);
      FromBfloat16(v.bf16 + 2 * first, scratch, n);
      ApplyArgs args = Args(optimizer, v, first, n);
      args.gradient = scratch;
      Require(optimizer.Apply(args));
    }
  };
}

struct Row {
  std::string what, kernels;
  bool bf16;
  size_t bytes_per_element;
  // `what` of the row to compare with: for float32 the limit, for bfloat16 the row of float32. Empty: this
  // row is a limit.
  std::string against;
  Pass pass;
  double best_seconds = 1e30;
};

std::vector<Row> MakeRows(bool all_levels, bool in_place) {
  std::vector<Row> rows;
  if (!in_place) rows.push_back({"memcpy", "", false, 8, "", CopyPass});
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
    rows.push_back({limit, "", false, bytes, "", StreamPass(m.arrays)});
    for (KernelLevel level : AvailableKernelLevels()) {
      const Kernels& kernels = **KernelsFor(level);
      if (!all_levels && &kernels != &BestKernels()) continue;
      rows.push_back({m.name, kernels.name, false, bytes, limit, OptimizerPass(m.kind, kernels)});
      rows.push_back({m.name, kernels.name, true, bytes - 2, m.name, Bf16Pass(m.kind, kernels)});
    }
  }
  return rows;
}

// The place of a table's data.
struct Place {
  const char* name;
  size_t blocks, gradients;
  int repeats;  // walks over all blocks in one measurement
};

class Bench {
 public:
  Bench(size_t elements, int rounds, bool all_levels) : rounds_(rounds), all_levels_(all_levels) {
    for (size_t first = 0; first < elements; first += kBlock) {
      const size_t b = blocks_.size(), n = std::min(kBlock, elements - first);
      Block& block = blocks_.emplace_back();
      block.n = n;
      for (auto& version : block.versions) {
        for (size_t a = 0; a < kArrays; ++a) version[a] = MakeBuffer(4 * b + a, n);
      }
      gradients_.push_back(MakeBuffer(4 * b + kGradient, kBlock));
      bf16_.emplace_back(2 * kBlock, 0);
      ToBfloat16(gradients_.back().get(), bf16_.back().data(), kBlock);
    }
  }

  nlohmann::json Run() {
    nlohmann::json json = nlohmann::json::array();
    std::vector<int> thread_counts = {1};
    if (std::thread::hardware_concurrency() > 1) thread_counts.push_back(2);
    const size_t all = blocks_.size(), chunk = std::min(kChunkBlocks, all);
    const int repeats = static_cast<int>(std::max<size_t>(1, 64 / chunk));
    for (const Place& place : {Place{"memory", all, all, 1}, Place{"chunk", all, chunk, 1},
                               Place{"cache", chunk, chunk, repeats}}) {
      for (int threads : thread_counts) {
        for (bool in_place : {false, true}) Table(place, threads, in_place, &json);
      }
    }
    return json;
  }

 private:
  void Table(const Place& place, int threads, bool in_place, nlohmann::json* json) {
    ThreadPool pool(threads);
    std::vector<Row> rows = MakeRows(all_levels_, in_place);
    size_t elements = 0;
    for (size_t b = 0; b < place.blocks; ++b) elements += blocks_[b].n;
    int from = 0;
    for (int round = 0; round < rounds_; ++round) {
      for (Row& row : rows) {
        const auto start = std::chrono::steady_clock::now();
        for (int repeat = 0; repeat < place.repeats; ++repeat) {
          pool.ParallelFor(static_cast<int64_t>(place.blocks), [&](int64_t b) {
            const Block& block = blocks_[b];
            const size_t g = static_cast<size_t>(b) % place.gradients;
            row.pass({block.n, block.versions[from], block.versions[in_place ? from : 1 - from],
                      gradients_[g].get(), bf16_[g].data()});
          });
          if (!in_place) from = 1 - from;
        }
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        row.best_seconds = std::min(row.best_seconds, took.count() / place.repeats);
      }
    }
    Print(place, threads, in_place, elements, rows, json);
  }

  static void Print(const Place& place, int threads, bool in_place, size_t elements,
                    const std::vector<Row>& rows, nlohmann::json* json) {
    const char* form = in_place ? "in place" : "copy";
    std::printf("\ndata: %s, %s, %zu elements, threads: %d\n", place.name, form, elements, threads);
    std::printf("%-12s %-8s %-5s %10s %8s %9s %7s\n", "what", "kernels", "grad", "ms", "GB/s", "of limit",
                "of f32");
    std::map<std::string, double> seconds;  // by what, and by what and kernels
    for (const Row& row : rows) {
      const double speed = static_cast<double>(row.bytes_per_element * elements) / row.best_seconds * 1e-9;
      const char* gradient = row.bf16 ? "bf16" : "f32";
      nlohmann::json entry = {{"what", row.what},
                              {"data", place.name},
                              {"form", form},
                              {"threads", threads},
                              {"elements", elements},
                              {"seconds", row.best_seconds},
                              {"gigabytes_per_second", speed}};
      std::printf("%-12s %-8s %-5s %10.3f %8.2f", row.what.c_str(), row.kernels.c_str(),
                  row.against.empty() ? "" : gradient, row.best_seconds * 1e3, speed);
      if (row.against.empty()) {
        seconds[row.what] = row.best_seconds;
      } else {
        entry["kernels"] = row.kernels;
        entry["gradient"] = gradient;
        if (row.bf16) {
          // Elements per second, since the bytes differ.
          entry["of_f32"] = seconds[row.against + row.kernels] / row.best_seconds;
          std::printf(" %9s %6.0f%%", "", 100 * entry["of_f32"].get<double>());
        } else {
          seconds[row.what + row.kernels] = row.best_seconds;
          entry["limit"] = row.against;
          entry["of_limit"] = seconds[row.against] / row.best_seconds;
          std::printf(" %8.0f%%", 100 * entry["of_limit"].get<double>());
        }
      }
      std::printf("\n");
      json->push_back(entry);
    }
    std::fflush(stdout);
  }

  const int rounds_;
  const bool all_levels_;
  std::vector<Block> blocks_;
  std::vector<Buffer> gradients_;
  std::vector<std::string> bf16_;
};

int Main(int argc, char** argv) {
  size_t elements = 25'000'000;
  int rounds = 15;
  bool all_levels = false;
  std::string only, json_file;
  CLI::App app("Speed of the optimizers over memory");
  app.add_option("--elements", elements, "float32 weights")->check(CLI::Range(size_t{1}, size_t{1} << 34));
  app.add_option("--rounds", rounds, "measurements of each row")->check(CLI::Range(1, 1000));
  app.add_flag("--all_levels", all_levels, "measure all levels of the kernels, not only the widest");
  app.add_option("--only", only, "codecs: the table of the codecs alone")->check(CLI::IsMember({"codecs"}));
  app.add_option("--json", json_file, "also write the table there");
  CLI11_PARSE(app, argc, argv);

  std::printf("%zu float32 in blocks of %zu, best of %d rounds\n", elements, kBlock, rounds);
  nlohmann::json json = {{"elements", elements}, {"block_elements", kBlock}, {"rounds", rounds}};
  json["codecs"] = bench::CodecTable(elements, rounds);
  if (only.empty()) json["rows"] = Bench(elements, rounds, all_levels).Run();
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

// Rows of an embedding table on ps-lite with its sparse keys, for `./dev bench peers --tables`: peers.py
// builds this file with ps-lite's sources and starts it once for each process. The environment says which
// (DMLC_ROLE, as ps-lite reads it).
//
//   pslite_rows ROWS DIM KEYS STEPS WARMUP LEARNING_RATE
//
// A step reads the rows of a batch of KEYS keys (Zipf's law), each to wherever its key occurs, and pushes
// their gradients, summed by key; the servers apply row-wise Adagrad as Weir's do. Which keys a batch has, in
// the order that ps-lite wants, was found before: a step's time is without it. A worker prints a line of
// JSON.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ps/ps.h"

namespace {

constexpr double kZipf = 1.05;
constexpr size_t kBatches = 8;

struct Flags {
  uint64_t rows;
  size_t dim, keys;
  int steps, warmup;
  float learning_rate;
};

// SplitMix64, as Weir's: ps-lite gives each server a range of keys.
uint64_t Hash(uint64_t key) {
  uint64_t x = key + 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

uint64_t ZipfRank(double uniform, uint64_t n) {
  const double top = std::pow(static_cast<double>(n) + 1, 1 - kZipf);
  return std::min(n - 1, static_cast<uint64_t>(std::pow(1 + uniform * (top - 1), 1 / (1 - kZipf)) - 1));
}

// A batch: its keys, each once and rising, and where each occurs.
struct Batch {
  ps::SArray<ps::Key> keys;
  std::vector<uint32_t> begin, positions;
};

Batch NewBatch(const Flags& flags, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform;
  std::vector<std::pair<uint64_t, uint32_t>> all;
  for (uint32_t i = 0; i < flags.keys; ++i) {
    all.emplace_back(Hash(Hash(ZipfRank(uniform(random), flags.rows)) % flags.rows), i);
  }
  std::sort(all.begin(), all.end());
  Batch batch;
  for (uint32_t i = 0; i < all.size(); ++i) {
    if (i == 0 || all[i].first != all[i - 1].first) {
      batch.keys.push_back(all[i].first);
      batch.begin.push_back(i);
    }
    batch.positions.push_back(all[i].second);
  }
  batch.begin.push_back(static_cast<uint32_t>(all.size()));
  return batch;
}

// A server's rows.
class Table {
 public:
  Table(const Flags& flags, const ps::Range& range) : dim_(flags.dim), rate_(flags.learning_rate) {
    index_.reserve(flags.rows);
    for (uint64_t key = 0; key < flags.rows; ++key) {
      const uint64_t hash = Hash(key);
      if (hash >= range.begin() && hash < range.end())
        index_.emplace(hash, static_cast<uint32_t>(index_.size()));
    }
    values_.assign(index_.size() * dim_, 0.01f);
    squares_.assign(index_.size(), 0.0f);
  }

  void operator()(const ps::KVMeta& request, const ps::KVPairs<float>& data, ps::KVServer<float>* server) {
    if (request.push) {
      for (size_t i = 0; i < data.keys.size(); ++i) {
        const size_t row = index_.at(data.keys[i]);
        Apply(&values_[row * dim_], &squares_[row], &data.vals[i * dim_]);
      }
      return server->Response(request);
    }
    ps::KVPairs<float> answer;
    answer.keys = data.keys;
    answer.vals.resize(data.keys.size() * dim_);
    for (size_t i = 0; i < data.keys.size(); ++i) {
      std::memcpy(&answer.vals[i * dim_], &values_[index_.at(data.keys[i]) * dim_], dim_ * sizeof(float));
    }
    server->Response(request, answer);
  }

 private:
  void Apply(float* values, float* square, const float* gradient) const {
    float sum = 0;
    for (size_t i = 0; i < dim_; ++i) sum += gradient[i] * gradient[i];
    *square += sum / static_cast<float>(dim_);
    const float step = rate_ / (std::sqrt(*square) + 1e-10f);
    for (size_t i = 0; i < dim_; ++i) values[i] -= step * gradient[i];
  }

  const size_t dim_;
  const float rate_;
  std::unordered_map<uint64_t, uint32_t> index_;
  std::vector<float> values_, squares_;
};

// A server must have its handler before a request comes.
void AwaitTables() { ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup + ps::kServerGroup); }

void Work(const Flags& flags) {
  std::mt19937_64 random(static_cast<uint64_t>(ps::MyRank()));
  std::vector<Batch> batches;
  for (size_t i = 0; i < kBatches; ++i) batches.push_back(NewBatch(flags, random));
  ps::KVWorker<float> kv(0, 0);
  AwaitTables();
  std::vector<float> rows(flags.keys * flags.dim);
  auto start = std::chrono::steady_clock::now();
  for (int step = 0; step < flags.warmup + flags.steps; ++step) {
    if (step == flags.warmup) {
      ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
      start = std::chrono::steady_clock::now();
    }
    const Batch& batch = batches[static_cast<size_t>(step) % kBatches];
    ps::SArray<float> read(batch.keys.size() * flags.dim);
    kv.Wait(kv.ZPull(batch.keys, &read));
    for (size_t i = 0; i < batch.keys.size(); ++i) {
      for (uint32_t at = batch.begin[i]; at < batch.begin[i + 1]; ++at) {
        std::memcpy(&rows[batch.positions[at] * flags.dim], &read[i * flags.dim], flags.dim * sizeof(float));
      }
    }
    // What was read serves as the gradient: nothing is computed.
    ps::SArray<float> sums(batch.keys.size() * flags.dim, 0.0f);
    for (size_t i = 0; i < batch.keys.size(); ++i) {
      for (uint32_t at = batch.begin[i]; at < batch.begin[i + 1]; ++at) {
        for (size_t j = 0; j < flags.dim; ++j) {
          sums[i * flags.dim + j] += rows[batch.positions[at] * flags.dim + j];
        }
      }
    }
    kv.Wait(kv.ZPush(batch.keys, sums));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("{\"steps\": %d, \"seconds\": %.6f}\n", flags.steps, took.count());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: pslite_rows ROWS DIM KEYS STEPS WARMUP LEARNING_RATE\n");
    return 64;
  }
  const Flags flags = {std::strtoull(argv[1], nullptr, 10),
                       std::strtoull(argv[2], nullptr, 10),
                       std::strtoull(argv[3], nullptr, 10),
                       std::atoi(argv[4]),
                       std::atoi(argv[5]),
                       static_cast<float>(std::atof(argv[6]))};
  ps::Start(0);
  std::unique_ptr<ps::KVServer<float>> server;
  if (ps::IsServer()) {
    server = std::make_unique<ps::KVServer<float>>(0);
    const auto& ranges = ps::Postoffice::Get()->GetServerKeyRanges();
    const auto table = std::make_shared<Table>(flags, ranges[static_cast<size_t>(ps::MyRank())]);
    server->set_request_handle(
        [table](const auto& request, const auto& data, auto* from) { (*table)(request, data, from); });
    AwaitTables();
  }
  if (ps::IsWorker()) Work(flags);
  ps::Finalize(0, true);
  return 0;
}

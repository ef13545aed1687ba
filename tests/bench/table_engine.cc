#include "tests/bench/table_engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/contest.h"
#include "common/base/random.h"
#include "common/optimizer/kernels.h"
#include "common/system/float_pool.h"
#include "common/threads/thread.h"
#include "ps_server/table/table.h"
#include "tests/bench/row_gather.h"
#include "tests/bench/timed.h"

namespace weir::bench {
namespace {

constexpr size_t kPush = 4096;
constexpr int kTimes = 3;  // of growth and saving

// Returns the resident memory of this process, without shared pages.
size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0, shared = 0;
  file >> total >> resident >> shared;
  return (resident - shared) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// The denominator of the memory target.
uint64_t BytesOf(uint64_t rows, size_t dim) { return rows * ((dim + 1) * sizeof(float) + 24); }

// A measured operation, with its rate in each round.
struct Row {
  std::string what;
  int threads;
  std::function<void()> work;  // on kBatchKeys keys
  std::vector<double> rates = {}, cpu_rates = {};
};

class Engine {
 public:
  Engine(uint64_t rows, size_t dim, int rounds, TableTargets* targets)
      : rows_(rows),
        dim_(dim),
        rounds_(rounds),
        targets_(*targets),
        gradients_(kBatchKeys * dim),
        out_(kBatchKeys * dim) {
    for (size_t i = 0; i < gradients_.size(); ++i) gradients_[i] = 2 * Uniform() - 1;
  }

  void Run() {
    TouchMemory();
    size_t resident = 0;
    Tables tables;
    tables.push_back(Grow(&resident));
    Memory(*tables[0], resident);
    if (std::thread::hardware_concurrency() > 1) {
      tables.push_back(NewTable(&two_));
      for (uint64_t first = 0; first < rows_; first += kPush) PushNew(*tables[1], first);
    }
    Saving(*tables[0]);
    Rates(tables);
  }

 private:
  using Tables = std::vector<std::unique_ptr<Table>>;

  float Uniform() { return UniformFloat(random_.Next()); }

  std::unique_ptr<Table> NewTable(ThreadPool* threads) const {
    Table::Options options;
    options.name = "bench";
    options.dim = dim_;
    options.init = {Initializer::Kind::kUniform, 0.01f};
    options.optimizer.set_type(v1::TableOptimizer::KIND_ROWWISE_ADAGRAD);
    options.kernels = &BestKernels();
    options.threads = threads;
    return std::make_unique<Table>(std::move(options));
  }

  // Touches the memory before the table does. The first write may make a virtual machine get the memory from
  // its host. That takes milliseconds for a huge page, and would look like a pause of the table.
  void TouchMemory() const {
    const size_t bytes = TableEngineBytes(rows_, dim_);
    const std::shared_ptr<void> memory = AllocateInHugePages(bytes);
    for (size_t at = 0; at < bytes; at += 4096) static_cast<volatile char*>(memory.get())[at] = 1;
  }

  // Pushes the new keys [first, first + kPush).
  void PushNew(Table& table, uint64_t first) {
    keys_.resize(std::min<uint64_t>(kPush, rows_ - first));
    for (size_t i = 0; i < keys_.size(); ++i) keys_[i] = first + i;
    Require(table.Update({{keys_, gradients_.data(), 1}}, 0.1));
  }

  // Grows a table kTimes times. A pause of the table comes at the same push of each growth. A pause of the
  // virtual machine, which can be 100 ms of "CPU time" without a page fault, comes at any push. So for each
  // push the fastest of the growths counts. Returns the last table, and its resident bytes.
  std::unique_ptr<Table> Grow(size_t* resident) {
    std::vector<double> fastest;
    double slowest_once = 0;
    std::unique_ptr<Table> table;
    for (int growth = 0; growth < kTimes; ++growth) {
      table.reset();
      const size_t before = ResidentBytes();
      table = NewTable(&one_);
      size_t push = 0;
      for (uint64_t first = 0; first < rows_; first += kPush, ++push) {
        const double cpu = Seconds(CLOCK_THREAD_CPUTIME_ID, [&] { PushNew(*table, first); });
        slowest_once = std::max(slowest_once, cpu);
        if (growth == 0) fastest.push_back(cpu);
        fastest[push] = std::min(fastest[push], cpu);
      }
      *resident = ResidentBytes() - before;
    }
    const double slowest = *std::max_element(fastest.begin(), fastest.end()), median = Median(fastest);
    std::printf(
        "growth to %llu rows: %.0f ns a new row; slowest push %.2f ms, median %.2f ms; slowest in one of %d "
        "growths %.2f ms\n",
        static_cast<unsigned long long>(rows_), 1e9 * median / kPush, 1e3 * slowest, 1e3 * median, kTimes,
        1e3 * slowest_once);
    targets_.Judge("growth, slowest push / median", slowest / median, 10, false);
    return table;
  }

  void Memory(const Table& table, size_t resident) {
    const auto wanted = static_cast<double>(BytesOf(rows_, dim_));
    targets_.Judge("memory, counted", static_cast<double>(table.stats().bytes) / wanted, 1.25, false);
    targets_.Judge("memory, resident", static_cast<double>(resident) / wanted, 1.25, false);
  }

  // For each turn the fastest counts, as for growth.
  void Saving(Table& table) {
    std::vector<double> fastest;
    for (int time = 0; time < kTimes; ++time) {
      const std::vector<double> turns = Save(table);
      if (time == 0) fastest = turns;
      for (size_t i = 0; i < turns.size(); ++i) fastest[i] = std::min(fastest[i], turns[i]);
    }
    const double all = std::accumulate(fastest.begin(), fastest.end(), 0.0), median = Median(fastest);
    std::sort(fastest.begin(), fastest.end());
    std::printf("saving: %zu turns, %.0f ns a row, %.2f ms a turn, slowest %.2f ms\n", fastest.size(),
                1e9 * all / static_cast<double>(rows_), 1e3 * median, 1e3 * fastest.back());
    targets_.Judge("saving, ms of a slow turn", 1e3 * fastest[fastest.size() * 99 / 100], 1, false);
  }

  // The seconds of each turn.
  std::vector<double> Save(Table& table) {
    const uint64_t version = table.Pin();
    PushNew(table, 0);
    std::vector<Table::Row> rows;
    std::vector<uint64_t> heads(1 << 20);
    std::vector<float> words(4 << 20);
    std::vector<double> turns;
    for (uint32_t bucket = 0; bucket < kKeyBuckets;) {
      turns.push_back(Seconds(CLOCK_THREAD_CPUTIME_ID, [&] {
        size_t head = 0, word = 0;
        while (bucket < kKeyBuckets && word * sizeof(float) < (256 << 10)) {
          Require(table.RowsAt(version, bucket++, rows));
          for (const Table::Row& row : rows) {
            heads[head++] = row.key;
            heads[head++] = row.updated;
            std::copy(row.words.begin(), row.words.end(), words.begin() + static_cast<ptrdiff_t>(word));
            word += row.words.size();
          }
        }
      }));
    }
    Require(table.Unpin(version));
    return turns;
  }

  // The addresses of rows, which never change.
  void FindRows(const Table& table) {
    map_.reserve(rows_);
    std::vector<Table::Row> rows;
    for (uint32_t bucket = 0; bucket < kKeyBuckets; ++bucket) {
      Require(table.RowsAt(table.version(), bucket, rows));
      for (const Table::Row& row : rows) map_[row.key] = row.words.data();
    }
  }

  // New keys for each round, uniform over the rows: any, or each once and rising.
  void DrawKeys() {
    any_.resize(kBatchKeys);
    zipf_.resize(kBatchKeys);
    others_.resize(kBatchKeys);
    for (uint64_t& key : any_) key = Below(rows_);
    for (uint64_t& key : others_) key = Below(rows_);
    for (uint64_t& key : zipf_) key = ZipfKey(rows_, random_);
    rising_ = any_;
    std::sort(rising_.begin(), rising_.end());
    rising_.erase(std::unique(rising_.begin(), rising_.end()), rising_.end());
    addresses_.clear();
    for (const uint64_t key : any_) addresses_.push_back(map_.at(key));
  }
  uint64_t Below(uint64_t bound) { return random_.NextBelow(static_cast<uint32_t>(bound)); }

  // Fills the caches with other data, and then reads other rows of the table. Then the measured rows are as
  // in a large table that is in use: not in the caches, but with page translations that are cached.
  void Sweep(const Table& table) {
    for (size_t i = 0; i < sweep_.size(); i += 64) ++sweep_[i];
    Require(table.Read(others_, out_.data()));
  }

  void Rates(const Tables& tables) {
    FindRows(*tables[0]);
    std::vector<Row> rows;
    for (size_t t = 0; t < tables.size(); ++t) {
      ThreadPool* const pool = t == 0 ? &one_ : &two_;
      const size_t part = kBatchKeys / (t + 1);
      // The work on each thread's share of the keys.
      const auto shared = [=](const std::function<void(size_t)>& work) {
        return [=] {
          pool->ParallelFor(static_cast<int64_t>(t) + 1,
                            [&](int64_t i) { work(static_cast<size_t>(i) * part); });
        };
      };
      const int threads = static_cast<int>(t) + 1;
      rows.push_back({"memory", threads, shared([this, part](size_t first) {
                        CopyRows(
                            part, dim_, [&](size_t i) { return addresses_[first + i]; }, &out_[first * dim_]);
                      })});
      rows.push_back({"bare", threads, shared([this, part](size_t first) {
                        BareGather(map_, absl::MakeConstSpan(any_).subspan(first, part), dim_,
                                   &out_[first * dim_]);
                      })});
    }
    for (size_t t = 0; t < tables.size(); ++t) {
      Table* const table = tables[t].get();
      const int threads = static_cast<int>(t) + 1;
      rows.push_back({"look-ups", threads, [=] { Require(table->Read(any_, out_.data())); }});
      rows.push_back({"look-ups, Zipf", threads, [=] { Require(table->Read(zipf_, out_.data())); }});
      rows.push_back({"updates", threads, [=] {
                        Require(table->Update({{rising_, gradients_.data(), 1}}, 0.1));
                      }});
    }
    for (int round = 0; round < rounds_; ++round) {
      DrawKeys();
      for (Row& row : rows) {
        Sweep(row.what == "memory" || row.what == "bare" ? *tables[0]
                                                         : *tables[static_cast<size_t>(row.threads) - 1]);
        double cpu = 0;
        const double wall =
            Seconds(CLOCK_MONOTONIC, [&] { cpu = Seconds(CLOCK_THREAD_CPUTIME_ID, row.work); });
        const auto keys = static_cast<double>(row.what == "updates" ? rising_.size() : kBatchKeys);
        row.rates.push_back(keys / wall);
        row.cpu_rates.push_back(keys / cpu);
      }
    }
    std::printf("%-16s %8s %12s %12s\n", "million keys/s", "threads", "elapsed", "CPU time");
    for (const Row& row : rows) {
      const double elapsed = Median(row.rates), cpu = Median(row.cpu_rates);
      std::printf("%-16s %8d %12.1f", row.what.c_str(), row.threads, elapsed * 1e-6);
      nlohmann::json entry = {{"what", row.what}, {"threads", row.threads}, {"per_second", elapsed}};
      // With two threads it is the CPU time of one of them.
      if (row.threads == 1) {
        std::printf(" %12.1f", cpu * 1e-6);
        entry["per_cpu_second"] = cpu;
      }
      std::printf("\n");
      targets_.json["rates"].push_back(entry);
    }
    const auto find = [&](const char* what, int threads) -> const Row& {
      return *std::find_if(rows.begin(), rows.end(),
                           [&](const Row& row) { return row.what == what && row.threads == threads; });
    };
    for (const auto& [what, target] : {std::pair("look-ups", 5.0), std::pair("updates", 3.0)}) {
      targets_.Judge(absl::StrCat(what, ", million/s of one core"), Median(find(what, 1).cpu_rates) * 1e-6,
                     target, true);
    }
    targets_.Judge("look-ups / bare gather", Ratio(find("look-ups", 1).cpu_rates, find("bare", 1).cpu_rates),
                   0.5, true);
    if (tables.size() < 2) return;
    std::printf("bare gather, two threads / one, which is what this machine allows: %.2f\n",
                Ratio(find("bare", 2).rates, find("bare", 1).rates));
    for (const char* what : {"look-ups", "updates"}) {
      targets_.Judge(absl::StrCat(what, ", two threads / one"),
                     Ratio(find(what, 2).rates, find(what, 1).rates), 1.7, true);
    }
  }

  // The median of the rounds' ratios.
  static double Ratio(const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> ratios;
    for (size_t i = 0; i < a.size(); ++i) ratios.push_back(a[i] / b[i]);
    return Median(ratios);
  }

  const uint64_t rows_;
  const size_t dim_;
  const int rounds_;
  TableTargets& targets_;
  ThreadPool one_{1}, two_{2};
  RandomStream random_{RandomKey(1, "tables_bench"), 0};
  std::vector<float> gradients_, out_;
  std::vector<uint64_t> keys_, any_, others_, zipf_, rising_;
  RowAddresses map_;
  std::vector<const float*> addresses_;  // of any_
  std::vector<char> sweep_ = std::vector<char>(128 << 20);
};

}  // namespace

void MeasureTableEngine(uint64_t rows, size_t dim, int rounds, TableTargets* targets) {
  Engine(rows, dim, rounds, targets).Run();
}

uint64_t TableEngineBytes(uint64_t rows, size_t dim) {
  // Two tables and the map of addresses.
  return BytesOf(rows, dim) * 5 / 2 + rows * 32;
}

}  // namespace weir::bench

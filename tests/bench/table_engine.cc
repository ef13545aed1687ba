#include "tests/bench/table_engine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/race.h"
#include "bench/row_gather.h"
#include "common/base/random.h"
#include "common/sync/thread_pool.h"
#include "common/system/huge_pages.h"
#include "ps_server/optimizer/kernels.h"
#include "ps_server/table/table.h"
#include "tests/bench/timed.h"

namespace weir::bench {
namespace {

constexpr size_t kPush = 4096;

// What this thread has spent in the kernel, and its page faults.
struct PageFaults {
  static PageFaults OfThread() {
    rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return {static_cast<double>(usage.ru_stime.tv_sec) + static_cast<double>(usage.ru_stime.tv_usec) * 1e-6,
            usage.ru_minflt};
  }
  PageFaults operator-(const PageFaults& other) const {
    return {seconds - other.seconds, count - other.count};
  }

  double seconds = 0;
  long count = 0;  // NOLINT(google-runtime-int): as getrusage has it
};

// Of this process, without what it shares.
size_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0, shared = 0;
  file >> total >> resident >> shared;
  return (resident - shared) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

// What the target of memory allows but for its factor.
uint64_t BytesOf(uint64_t rows, size_t dim) { return rows * ((dim + 1) * sizeof(float) + 24); }

// What is measured, with its rate in each round.
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
    const size_t before = ResidentBytes();
    Tables tables;
    tables.push_back(NewTable(&one_));
    Grow(*tables[0]);
    Memory(*tables[0], ResidentBytes() - before);
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
    options.optimizer.kind = RowOptimizerConfig::Kind::kRowWiseAdagrad;
    options.kernels = &BestKernels();
    options.threads = threads;
    auto table = Table::Create(std::move(options));
    Require(table.status());
    return *std::move(table);
  }

  // A virtual machine may have to get its memory from its host when it first writes there, which takes
  // milliseconds for a huge page: not a pause of the table's.
  void TouchMemory() const {
    const size_t bytes = TableEngineBytes(rows_, dim_);
    const std::shared_ptr<void> memory = AllocateInHugePages(bytes);
    for (size_t at = 0; at < bytes; at += 4096) static_cast<volatile char*>(memory.get())[at] = 1;
  }

  // Keys [first, first + kPush).
  void PushNew(Table& table, uint64_t first) {
    keys_.resize(std::min<uint64_t>(kPush, rows_ - first));
    for (size_t i = 0; i < keys_.size(); ++i) keys_[i] = first + i;
    Require(table.Update({{keys_, gradients_.data(), 1}}, 0.1));
  }

  void Grow(Table& table) {
    std::vector<double> cpu, wall;
    std::vector<PageFaults> faults;
    for (uint64_t first = 0; first < rows_; first += kPush) {
      const PageFaults before = PageFaults::OfThread();
      wall.push_back(Seconds(CLOCK_MONOTONIC, [&] {
        cpu.push_back(Seconds(CLOCK_THREAD_CPUTIME_ID, [&] { PushNew(table, first); }));
      }));
      faults.push_back(PageFaults::OfThread() - before);
    }
    const auto at = static_cast<size_t>(std::max_element(cpu.begin(), cpu.end()) - cpu.begin());
    const double slowest = cpu[at], median = Median(cpu);
    std::printf(
        "growth to %llu rows: %.0f ns a new row; slowest push %.2f ms (in the kernel %.2f, %ld page faults), "
        "median %.2f ms",
        static_cast<unsigned long long>(rows_), 1e9 * median / kPush, 1e3 * slowest, 1e3 * faults[at].seconds,
        faults[at].count, 1e3 * median);
    std::printf(" (elapsed: %.2f, %.2f)\n", 1e3 * *std::max_element(wall.begin(), wall.end()),
                1e3 * Median(wall));
    targets_.Judge("growth, slowest push / median", slowest / median, 10, false);
  }

  void Memory(const Table& table, size_t resident) {
    const auto wanted = static_cast<double>(BytesOf(rows_, dim_));
    targets_.Judge("memory, counted", static_cast<double>(table.stats().bytes) / wanted, 1.25, false);
    targets_.Judge("memory, resident", static_cast<double>(resident) / wanted, 1.25, false);
  }

  void Saving(Table& table) {
    const uint64_t version = table.Pin();
    PushNew(table, 0);
    std::vector<Table::Row> rows;
    std::vector<uint64_t> heads(1 << 20);
    std::vector<float> words(4 << 20);
    std::vector<double> turns;
    double all = 0;
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
      all += turns.back();
    }
    Require(table.Unpin(version));
    std::sort(turns.begin(), turns.end());
    const double slow = turns[turns.size() * 99 / 100];
    std::printf("saving: %zu turns, %.0f ns a row, %.2f ms a turn, slowest %.2f ms\n", turns.size(),
                1e9 * all / static_cast<double>(rows_), 1e3 * Median(turns), 1e3 * turns.back());
    targets_.Judge("saving, ms of a slow turn", 1e3 * slow, 1, false);
  }

  // Where the rows lie, for good.
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
    for (uint64_t& key : any_) key = Below(rows_);
    for (uint64_t& key : zipf_) key = ZipfKey(rows_, random_);
    rising_ = any_;
    std::sort(rising_.begin(), rising_.end());
    rising_.erase(std::unique(rising_.begin(), rising_.end()), rising_.end());
    addresses_.clear();
    for (const uint64_t key : any_) addresses_.push_back(map_.at(key));
  }
  uint64_t Below(uint64_t bound) { return random_.NextBelow(static_cast<uint32_t>(bound)); }

  // Fills the caches with something else: rows are where a large table has them, in memory.
  void Sweep() {
    for (size_t i = 0; i < sweep_.size(); i += 64) ++sweep_[i];
  }

  void Rates(const Tables& tables) {
    FindRows(*tables[0]);
    std::vector<Row> rows;
    rows.push_back({"memory", 1, [&] {
                      CopyRows(
                          kBatchKeys, dim_, [&](size_t i) { return addresses_[i]; }, out_.data());
                    }});
    rows.push_back({"bare", 1, [&] { BareGather(map_, any_, dim_, out_.data()); }});
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
        Sweep();
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
  std::vector<uint64_t> keys_, any_, zipf_, rising_;
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

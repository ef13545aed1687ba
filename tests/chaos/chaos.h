#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/chaos/chaos_job.h"

// Jobs of real processes under faults from a seed: the seed decides which faults strike in which order, but
// not their exact times.
namespace weir {

struct ChaosPlan {
  uint64_t seed = 0;
  std::string mode = "sync";
  uint32_t servers = 2, workers = 2;
  uint32_t staleness = 0;  // bounded
  std::string transport = "auto", apply = "streamed";
  // The path between the processes. Proxies: partitions, and connections that break all the time.
  ChaosJob::Options::Path path = ChaosJob::Options::Path::kDirect;
  bool breaks = false;
  // bounded, async: durability by log.
  bool log = false;
  // Checkpoints go to a small disk, which fills up.
  bool small_disk = false;
  // The job has embedding tables (table_jobs.h).
  bool tables = false;

  // As text, for people.
  std::string ToString() const;
};
// A job has between kFewestWorkers and this many.
constexpr uint32_t kFewestWorkers = 2, kMostWorkers = 32;
// `mode` empty: drawn as well. `workers`: the upper limit, within the limits above. `disk`: the plan may have
// a small disk.
ChaosPlan MakeChaosPlan(uint64_t seed, const std::string& mode, uint32_t workers, bool disk);

struct ChaosResult {
  std::map<std::string, uint64_t> faults;
  // SIGKILLs.
  uint64_t kills = 0;
  // Answers that the checker judged.
  uint64_t operations = 0;
  // Violations as text.
  std::vector<std::string> violations;
  double seconds = 0;
  // The longest time from a fault, healed at once, to the next progress.
  double longest_standstill = 0;
};

// The weights that a sync job ends with; "none": it does not say.
struct ChaosBits {
  std::string weights_sha256, tables_sha256;
};
// Under any plan, from a run without faults.
absl::StatusOr<ChaosBits> FaultFreeBits(const ChaosPrograms& programs, const std::string& folder,
                                        bool tables);

// Runs one job to its end. `folder` exists and is empty, and holds the logs afterwards. `bits`: what a sync
// job must end with.
ChaosResult RunChaosJob(const ChaosPlan& plan, const ChaosPrograms& programs, const std::string& folder,
                        const ChaosBits& bits);

}  // namespace weir

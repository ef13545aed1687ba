#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/chaos/chaos_job.h"

// Jobs of real processes under faults that are drawn from a seed: what is broken and in which order follows
// from the seed, when exactly it hits does not.
namespace weir {

struct ChaosPlan {
  uint64_t seed = 0;
  std::string mode = "sync";
  uint32_t servers = 2, workers = 2;
  uint32_t staleness = 0;  // bounded
  std::string transport = "auto", apply = "streamed";
  // What lies between the processes. Proxies: partitions, and connections that break all the time.
  ChaosJob::Options::Path path = ChaosJob::Options::Path::kDirect;
  bool breaks = false;
  // bounded, async: durability by log.
  bool log = false;
  // Checkpoints go to a small disk, which fills up.
  bool small_disk = false;

  // As words, for people.
  std::string ToString() const;
};
// A job has kFewestWorkers up to so many.
constexpr uint32_t kFewestWorkers = 2, kMostWorkers = 32;
// `mode` empty: drawn as well. `workers`: at most, within the limits above. `disk`: there may be a small one.
ChaosPlan MakeChaosPlan(uint64_t seed, const std::string& mode, uint32_t workers, bool disk);

struct ChaosResult {
  std::map<std::string, uint64_t> faults;
  // SIGKILLs.
  uint64_t kills = 0;
  // Answers that the checker looked at.
  uint64_t operations = 0;
  // What must not be, in words.
  std::vector<std::string> violations;
  double seconds = 0;
  // From a fault, healed at once, to the next progress; the longest.
  double longest_standstill = 0;
};

// The weights_sha256 of a sync job under any plan, from a run without faults.
absl::StatusOr<std::string> FaultFreeSha256(const ChaosPrograms& programs, const std::string& folder);

// Runs one job to its end. `folder` exists and is empty, and holds the logs afterwards. `sync_sha256`: what a
// sync job must end with.
ChaosResult RunChaosJob(const ChaosPlan& plan, const ChaosPrograms& programs, const std::string& folder,
                        const std::string& sync_sha256);

}  // namespace weir

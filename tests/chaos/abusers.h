#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/system/subprocess.h"
#include "tests/chaos/acts.h"
#include "tests/chaos/chaos_job.h"

namespace weir {

// The acts of abusers, and which of them the servers took.
struct AbuseReport {
  uint64_t acts = 0;
  std::map<std::string, uint64_t> taken;

  // " (taken: join 300, pin 12)"; empty: nothing was taken.
  std::string Taken() const;
};

// Processes that abuse a job. They die with this object. For one thread.
class Abusers {
 public:
  // `program` is started with --abuser=KIND, and what it needs to know of the job.
  Abusers(std::string program, ChaosJob* job) : program_(std::move(program)), job_(*job) {}

  // `insiders`: they get what a reader, or worker:0 for the kind "flood", has.
  absl::Status Start(const std::string& kind, int count, bool insiders);
  // Each has done something.
  absl::Status AwaitBegin() const;
  // Ends them all, and adds what they did.
  absl::Status End(AbuseReport* report);

  // Lines of the abusers' program on its standard output.
  static void SayThatItBegins();
  static void SayWhatWasDone(const Acts& acts);

 private:
  struct Abuser {
    std::string kind;
    std::atomic<bool> begun{false};
    std::string last_line;  // to be read once the process has ended
    std::unique_ptr<Subprocess> process;
  };

  const std::string program_;
  ChaosJob& job_;
  std::vector<std::unique_ptr<Abuser>> abusers_;
};

}  // namespace weir

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job_config.pb.h"
#include "tests/integration/serial_reference.h"
#include "tests/worker/digits.h"

namespace weir {

// A job on the digits with every feature that can spoil the bits: dropout, clipping, micro-batches, an
// optimizer with slots, and R = 4 parts. Its last step is short and has a short part, and it ends in the
// second epoch. Over the transport under test. `overrides` as for --set.
v1::JobConfig DigitsJob(const std::vector<std::string>& overrides);
// The job's text, for processes.
std::string DigitsJobText();
// The expected result of DigitsJob(overrides): of a serial loop, or, where pushes are quantised, of one
// server and one worker. Trained once in a process; for the main thread only.
const SerialRun& SerialDigits(const std::vector<std::string>& overrides);

// A worker's time in a job: from its join to its end.
struct WorkerRun {
  uint32_t rank = 0;
  // Joins once some worker was given work at this clock.
  uint64_t joins_at_clock = 0;
  // Takes this many pieces of work, then asks for one more and leaves: without computing it, and without
  // waiting for its last pushes. Otherwise the worker stays until the job is done.
  std::optional<uint64_t> gone_after;
  // Computes and pushes its parts of a step in a random order. Only in jobs where no worker joins late or
  // leaves.
  bool shuffles = false;
};

struct SyncRun {
  std::string weights_sha256;  // as the job's summary says
  uint64_t steps = 0;
  // By run of a worker: the number of pieces of work that it got.
  std::vector<uint64_t> work;
};

// Runs a job in this process: real servers over loopback, each run of a worker in a thread with its own
// model, client and trainer.
absl::StatusOr<SyncRun> RunInProcess(const v1::JobConfig& config, uint32_t servers,
                                     const std::vector<WorkerRun>& runs);
// All workers stay from the beginning to the end.
absl::StatusOr<SyncRun> RunInProcess(const v1::JobConfig& config, uint32_t servers, uint32_t workers);

struct Summary {
  std::string weights_sha256;
  uint64_t steps = 0;
};
absl::StatusOr<Summary> ReadSummary(const std::string& path);
// A new path in the test's own folder.
std::string TemporaryPath(const std::string& name);

}  // namespace weir

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/host.h"
#include "nlohmann/json.hpp"

namespace weir::bench {

// The demands on the data plane, each a number with a bound. `./dev bench wire` measures them all.
struct Target {
  std::string row;       // "tcp": what --rows takes; a row may have several targets
  std::string work;      // what is measured, in words
  bool at_least = true;  // else: at most
  double bound = 0;
  std::string unit;  // "x", "us", "" ...
  // The median over the pairs, whose values are in `samples`.
  double value = 0;
  std::vector<double> samples;
  absl::Status status;  // not ok: it could not be measured

  bool met() const { return status.ok() && (at_least ? value >= bound : value <= bound); }
};
// The value is the median of the samples.
Target MakeTarget(std::string row, std::string work, bool at_least, double bound, std::string unit,
                  std::vector<double> samples);
Target FailedTarget(std::string row, std::string work, bool at_least, double bound, std::string unit,
                    absl::Status status);

struct TargetOptions {
  std::vector<std::string> rows;  // empty: all
  int pairs = 7;
  // A tenth of the elements and shorter turns: to see that all works. The numbers mean nothing.
  bool quick = false;
  std::string apply_bench;   // the program tests/bench:apply_bench
  std::string certificates;  // row tls: a folder of `weir certs init` for ps:0 and worker:0

  bool Wants(const std::string& row) const;
};
extern const std::vector<std::string> kTargetRows;

struct Report {
  std::vector<Target> targets;
  std::vector<std::string> invalid;                   // why the run does not count
  nlohmann::json details = nlohmann::json::object();  // by subject: contestants' own numbers, the sweeps
};

// Writes to standard error what is being measured now.
void ShowProgress(const std::string& what);

Report MeasureTargets(const TargetOptions& options, ServerHost* host);

// Parts of MeasureTargets(), each for some rows. They add to the report.
//
// rows tcp, protobuf, shm, bf16, cpu, faults, 2x2, 1kb, tls
void MeasureRaces(const TargetOptions& options, ServerHost* host, Report* report);
// row apply
void MeasureApply(const TargetOptions& options, Report* report);
// row memory
void MeasureMemory(const TargetOptions& options, ServerHost* host, Report* report);
// row stragglers
void MeasureStragglers(const TargetOptions& options, ServerHost* host, Report* report);

}  // namespace weir::bench

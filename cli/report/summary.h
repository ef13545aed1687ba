#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace weir {

// The result of a job: the JSON that ps:0 writes at the job's end, and values that only `weir up` knows.
struct JobSummary {
  std::string mode;
  std::optional<uint32_t> staleness_bound;  // of bounded
  std::optional<uint32_t> parts;            // of sync
  uint32_t ps = 0, workers = 0;
  uint64_t steps = 0, pushes = 0, examples = 0;
  double wall_seconds = 0;  // of training, from step 0 on
  double examples_per_second = 0;
  // A missing value is unknown: no worker has reported a loss, or nothing was evaluated. A loss may have no
  // accuracy and no AUC.
  std::optional<double> train_loss, test_accuracy, test_auc, test_loss;
  // Evaluations of epochs' ends, by rising epoch. No step: no member could evaluate.
  struct Evaluation {
    uint64_t epoch = 0;
    std::optional<uint64_t> step;
    std::optional<double> test_loss, test_accuracy, test_auc;
    std::optional<bool> validation;  // the set; not set: a server of an earlier version
  };
  std::vector<Evaluation> evaluations;
  // The best evaluation, if the job keeps its weights, and the folder of the checkpoint that holds them.
  std::optional<Evaluation> best;
  std::string best_checkpoint;
  std::string stopped_early;              // why; "": all examples were done
  std::map<std::string, double> metrics;  // that the program has logged
  uint64_t version_staleness_p50 = 0, version_staleness_p99 = 0, version_staleness_max = 0;
  uint64_t lead_p50 = 0, lead_max = 0;  // in clocks
  uint64_t bytes_pushed = 0, bytes_pulled = 0;
  std::string weights_sha256;  // "": not known, the weights were not read at the end
  std::string tables_sha256;   // "": not known, or the job has no embedding tables
  std::string checkpoint;      // the last one's folder; "": the job takes none
  uint64_t recoveries = 0;     // a server was lost and came back
  uint64_t lost_pushes = 0, pushes_refused = 0;
  std::string failure;  // "": the job is done

  double total_seconds = 0;               // of the whole command
  std::map<std::string, int> exit_codes;  // by task, as a shell shows them; of its last incarnation
  std::map<std::string, int> restarts;    // by task, if there were any

  std::string server_json;  // as ps:0 wrote it
};

// InvalidArgument: `server_json` is no summary; names the field and what was seen.
absl::StatusOr<JobSummary> ParseSummary(const std::string& server_json);

// Returns the server's JSON, all its fields kept, with `total_seconds`, `exit_codes` and `restarts` added.
std::string SummaryJson(const JobSummary& summary);

// Returns a few lines for people.
std::string SummaryText(const std::string& name, const JobSummary& summary);

// Writes the file whole or not at all (temporary file, rename).
absl::Status WriteFileWhole(const std::string& path, const std::string& content);

// Makes sure that `path` can be written, and that no file of an earlier job is left there.
absl::Status PrepareFile(const std::string& path);

}  // namespace weir

#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/job_config.pb.h"
#include "tests/history/history_checker.h"
#include "tests/integration/processes.h"
#include "tests/integration/table_job.h"

// Jobs of table_job.h as real processes, and what their rows must be at the end.
namespace weir {

using AllRows = std::vector<float>;  // of all tables and keys

struct TableRun {
  uint32_t servers = 2, workers = 2;
  // Beside the transport under test.
  std::vector<std::string> set;
  // By worker.
  std::vector<std::string> behaviours;
};

// Such a job, with its files.
class JobOfTables {
 public:
  explicit JobOfTables(const TableRun& run);

  void StartAll();
  void StartProgram(const std::string& role, uint32_t rank, const std::string& behaviour);
  // SIGKILL, and a new process.
  void KillAndRestart(const std::string& server);
  // SIGKILL for all of these.
  void Kill(const std::vector<std::string>& tasks);
  // Waits until the job has committed this step (bounded, async: batches / workers) and is not done.
  void WaitForStep(uint64_t step);
  // The rows that the evaluator read.
  AllRows Rows() const;
  std::string WorkerLogs();
  // The events that all workers with the behaviour "history" have seen, in the order of each one's log.
  std::vector<HistoryEvent> Histories() const;

  const TableRun run;
  const TestFolder folder;
  TestJob job;
};

// Whether the newest checkpoint is on two others at least, so that it has such a link.
bool EndsInDeltas(const std::string& directory);
// A table's file in a link of the newest checkpoint's chain, which is damaged from now on until it is
// repaired. The folder may be in object storage.
class DamagedLink {
 public:
  explicit DamagedLink(const std::string& directory);
  // `weir checkpoint verify` does not take it, and names the file.
  void CheckFound() const;
  void Repair() { Write(bytes_); }

 private:
  void Write(const std::string& bytes);

  const std::string directory_;
  std::string path_, bytes_;
};

v1::JobConfig TableConfigWith(const std::vector<std::string>& set);

// The rows that a reader finds after a sync job, in one loop. `without`: batches that do not count.
// `few`: as the programs' word.
AllRows TrainTablesSerially(const std::vector<std::string>& set, const std::set<uint64_t>& without = {},
                            bool few = false);
// The tables_sha256 of its summary.
std::string SerialTablesSha256(const std::vector<std::string>& set, const std::set<uint64_t>& without = {},
                               bool few = false);
// The rows of a job that counts, and what one batch adds to them.
AllRows CountKeys(bool few = false, uint64_t batches = kTableBatches);
// `counts`: by table and key.
AllRows RowsOfCounts(std::vector<std::map<uint64_t, float>> counts);
std::vector<HistoryRow> CountsOfBatch(uint64_t batch);

}  // namespace weir

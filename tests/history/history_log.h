#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace weir {

// A row of an embedding table whose rows count: every occurrence of its key in a push adds one to each value.
struct HistoryRow {
  uint32_t table = 0;
  uint64_t key = 0;
  // The least and the largest of the values that were read; of a push: what it adds.
  double least = 0, most = 0;
};

// One answer of a shard, as the worker that got it wrote it down (`worker --history=FILE`;
// client/job/history.h describes the format). The reader uses the text alone, and no code of the program that
// wrote it.
//
// A program that trains such rows writes down the rows that it reads, too, with the clock that it read them
// for:
//
//   {"op":"rows","worker":1,"worker_incarnation":7,"shard":0,"clock":4,"version":9,"incarnation":3,
//    "rows":[[0,17,3,3],...]}
struct HistoryEvent {
  bool is_push = false;
  // A read of rows, which is no other pull's.
  bool is_rows = false;
  // "worker-1.jsonl:17".
  std::string where;
  uint32_t worker = 0;
  uint64_t worker_incarnation = 0;
  uint32_t shard = 0;
  uint64_t clock = 0;
  std::string outcome = "OK";
  uint64_t version = 0;
  uint64_t incarnation = 0;
  // Pushes.
  uint32_t part = 0;
  uint64_t batch = 0;
  uint64_t staleness = 0;
  // Pulls.
  uint64_t pin = 0;
  std::vector<std::pair<uint32_t, uint64_t>> clocks;
  // Reads of rows.
  std::vector<HistoryRow> rows;
};

// Appends the events of one log, in its order. `cut`: the worker was killed, so the last line may be cut off;
// it is left out then. InvalidArgument: a line does not have this format.
absl::Status ReadHistory(const std::string& name, const std::string& text, bool cut,
                         std::vector<HistoryEvent>* events);

}  // namespace weir

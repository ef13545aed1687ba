#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace weir {

// One answer of a shard, as the worker that got it wrote it down (`worker --history=FILE`;
// client/job/history.h describes the format). The reader uses the text alone, and no code of the program that
// wrote it.
struct HistoryEvent {
  bool is_push = false;
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
};

// Appends the events of one log, in its order. `cut`: the worker was killed, so the last line may be cut off;
// it is left out then. InvalidArgument: a line does not have this format.
absl::Status ReadHistory(const std::string& name, const std::string& text, bool cut,
                         std::vector<HistoryEvent>* events);

}  // namespace weir

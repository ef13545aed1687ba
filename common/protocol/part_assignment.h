#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "proto/job_config.pb.h"

namespace weir {

// The examples of one batch of the job, for which one push stands: data.batch_size for each of its local
// steps.
inline uint64_t ExamplesOfBatch(const v1::JobConfig& config) {
  return uint64_t{config.data().batch_size()} * config.local().steps();
}
// For messages: what makes that many examples, with the values, and the fields alone.
inline std::string BatchInWords(const v1::JobConfig& config) {
  const uint32_t steps = config.local().steps();
  return absl::StrCat("data.batch_size ", config.data().batch_size(),
                      steps == 1 ? "" : absl::StrCat(" x local.steps ", steps));
}
inline const char* BatchFields(const v1::JobConfig& config) {
  return config.local().steps() == 1 ? "data.batch_size" : "data.batch_size or local.steps";
}

// sync: which of the live workers, counted by rising rank, computes which part of the open step. Follows from
// the membership alone, so that every worker and every server agree on it without a message.
class PartOwners {
 public:
  // shares: of each live worker (v1.Member.share); at least one. parts: of a whole step.
  PartOwners(absl::Span<const uint32_t> shares, uint32_t parts) : workers_(shares.size()) {
    uint64_t end = 0;
    for (const uint32_t share : shares) ends_.push_back(end += share);
    if (end != parts) ends_.clear();
  }

  // Of a part below `parts`.
  size_t OwnerOf(uint32_t part) const {
    if (ends_.empty()) return part % workers_;
    return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), part) - ends_.begin());
  }

 private:
  const size_t workers_;
  // By worker: the part after its last one. Empty: shares do not count.
  std::vector<uint64_t> ends_;
};

// sync: part p of a step is one batch of the job. The last step may have fewer parts than the others, because
// the job's `batches` end in it.
inline uint64_t BatchOf(uint64_t step, uint32_t part, uint32_t parts) { return step * parts + part; }
inline uint32_t PartsOf(uint64_t step, uint32_t parts, uint64_t batches) {
  const uint64_t first = BatchOf(step, 0, parts);
  return first >= batches ? 0 : static_cast<uint32_t>(std::min<uint64_t>(parts, batches - first));
}
// The batches in the job's first steps.
inline uint64_t BatchesIn(uint64_t steps, uint32_t parts, uint64_t batches) {
  return std::min(batches, steps * parts);
}
// How many steps a job of so many batches has.
inline uint64_t StepsFor(uint64_t batches, uint32_t parts) {
  return batches / parts + (batches % parts != 0);
}

// sync: how many of a step's parts must be there for the step to commit.
inline uint32_t PartsToCommit(uint32_t parts, uint32_t backup_workers) {
  return parts > backup_workers ? parts - backup_workers : std::min(parts, 1u);
}

}  // namespace weir

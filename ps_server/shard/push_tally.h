#pragma once

#include <cstdint>

#include "common/protocol/interval_set.h"
#include "common/telemetry/int_histogram.h"
#include "proto/shard_control.pb.h"

namespace weir {

// What became of a shard's pushes, apart from the counters; for the coordinator and for checkpoints.
struct PushTally {
  // Batches that are done here; with the log, also those whose gradient came from an earlier incarnation.
  IntervalSet batches, stale_batches;
  // The applied pushes' staleness in versions, and their lead in clocks.
  IntHistogram staleness, lead;

  uint64_t batches_settled() const { return batches.size() + stale_batches.SizeWithout(batches); }
};

// The form of a histogram in messages and checkpoints.
inline v1::Samples ToSamples(const IntHistogram& histogram) {
  v1::Samples out;
  out.mutable_counts()->Add(histogram.counts().begin(), histogram.counts().end());
  out.set_overflow(histogram.overflow());
  out.set_max(histogram.max());
  return out;
}

inline void AddSamples(const v1::Samples& samples, IntHistogram& into) {
  for (int value = 0; value < samples.counts_size(); ++value) {
    if (samples.counts(value) > 0) into.Add(static_cast<uint64_t>(value), samples.counts(value));
  }
  if (samples.overflow() > 0) into.Add(samples.max(), samples.overflow());
}

}  // namespace weir

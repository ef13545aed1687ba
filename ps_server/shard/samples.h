#pragma once

#include <cstdint>

#include "common/telemetry/int_histogram.h"
#include "proto/shard_control.pb.h"

// How a histogram travels, and how a checkpoint keeps it.
namespace weir {

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

#pragma once

#include "proto/job_config.pb.h"

namespace weir {

// The traits of a mode (docs/concepts.md) that the parts of Weir need to know. ps_server/consistency/policy.h
// says how a mode couples workers on a shard.
struct ModeTraits {
  // A whole step takes effect at once: the coordinator commits it on all shards, so that all have the same
  // version, which counts steps. A lost server takes the whole job back to the last checkpoint. Otherwise
  // each push takes effect by itself on each shard, versions count pushes, and only the lost server goes
  // back.
  bool commits_steps = false;
  // A worker's work is its parts of the open step, which follow from the membership. Otherwise it is ranges
  // of batches, which the coordinator hands out.
  bool works_on_parts = false;
  // Shards keep a clock for each worker, and apply its pushes in order; a restored shard declares which
  // pushes it lost.
  bool keeps_clocks = true;
  // A push may be applied while it arrives, and logged, because it waits for no other worker's push.
  bool applies_alone = true;
};

inline const ModeTraits& TraitsOf(v1::ConsistencyConfig::Mode mode) {
  static constexpr ModeTraits kSync{true, true, false, false};
  static constexpr ModeTraits kOthers{false, false, true, true};
  switch (mode) {
    case v1::ConsistencyConfig::MODE_SYNC:
      return kSync;
    case v1::ConsistencyConfig::MODE_BOUNDED:
    case v1::ConsistencyConfig::MODE_ASYNC:
    case v1::ConsistencyConfig::MODE_UNSPECIFIED:  // refused where configs are read
      break;
  }
  return kOthers;
}
inline const ModeTraits& TraitsOf(const v1::JobConfig& config) {
  return TraitsOf(config.consistency().mode());
}

// Whether the rows of embedding tables go their own way (docs/tables.md). The rows of a push take effect when
// the push has arrived whole, whatever its dense values wait for. Pulls of rows alone wait for nobody.
inline bool RowsOnArrival(const v1::JobConfig& config) {
  return config.consistency().tables() == v1::ConsistencyConfig::TABLES_ASYNC;
}
// Returns whether the versions of tables count the parts of steps, and not steps: with RowsOnArrival(), in a
// mode in which the dense values wait.
inline bool TablesCountParts(const v1::JobConfig& config) {
  return TraitsOf(config).commits_steps && RowsOnArrival(config);
}

// Whether a push that takes long to arrive is overtaken by those of other workers, and then sent again. If
// so, nothing is gained by beginning a push before its gradient is whole.
inline bool OvertakesSlowPushes(const v1::JobConfig& config) {
  // Otherwise shards receive pushes whole, or there is no other worker.
  return TraitsOf(config).applies_alone && config.server().apply() != v1::ServerConfig::APPLY_STAGED &&
         config.server().durability() != v1::ServerConfig::DURABILITY_LOG && config.cluster().workers() != 1;
}

}  // namespace weir

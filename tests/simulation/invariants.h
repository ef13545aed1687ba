#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/simulation/ledger.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/run_log.h"

namespace weir {

// What must hold of every run, whatever strikes it (docs/guarantees.md).
enum class Invariant {
  // A batch is in a shard's weights at most once, and each version is one push more than the last (in sync:
  // the
  // parts of one step).
  kOnce,
  // A push that was acknowledged as applied is in the version that the answer names, and in all later ones;
  // with the log of all later lives of the shard, too, which declare nothing lost.
  kAcknowledged,
  // What was refused is in no weights, and only what is to be refused was.
  kRefused,
  // Nothing of an incarnation is applied that is not a member.
  kFenced,
  // sync: a step has the same parts on all shards.
  kParts,
  // Weights that were read are those of one version of the shard, in sync of one step on all shards.
  kTorn,
  // The versions that a worker reads of one life of a shard never go back; in sync it reads the one that it
  // asks for.
  kMonotonic,
  // bounded: a pull at clock c holds every push with clock <= c-s-1 of every worker that counts.
  kBound,
  // bounded, async: a pull at clock c holds the worker's own pushes up to c-1.
  kOwnPushes,
  // bounded, async: the clocks that come with weights count each push that the weights hold.
  kWatermarks,
  // The staleness that a push is told is its version - 1 - the version that it was computed from.
  kStaleness,
  // Epochs rise on each shard, and one epoch is one membership; no incarnation is given twice.
  kEpochs,
  // An update is taken only if it was computed from a version of the very life of the shard that takes it.
  kStaleLife,
  // A shard starts at nothing or at what a checkpoint had: the bits of a version that was published, never
  // older than the newest checkpoint that was complete, which nobody finds damaged; in sync the same step on
  // all. With the log also what was logged, and never less than was published.
  kRestored,
  // bounded, async: what a restored shard lacks of what was acknowledged is declared, once it hears of the
  // worker, and no more than that.
  kDeclared,
  // A coordinator that another one has taken the place of saves nothing that this one has not found, and
  // ends,
  // but not the job.
  kReplaced,
  // A worker that joins starts no lower than the slowest that is there.
  kJoin,
  // At the job's end every batch was applied on every shard (but for what is to be refused), in sync to the
  // very bits
  // of a plain loop.
  kComplete,
  // When the faults are over, everything goes on and the job ends in time, by itself, with every exit code 0.
  kProgress,
  // Every answer is one that the protocol allows.
  kProtocol,
};
const char* Name(Invariant invariant);

struct Violation {
  Invariant invariant;
  std::string what;
};

// Holds a run's log against the invariants. Pure; knows the meanings (docs/concepts.md) and the ledger job,
// and shares no code with what it judges. `operations` counts what it looked at.
std::vector<Violation> CheckInvariants(const Plan& plan, const Ledger& ledger, const RunLog& log,
                                       uint64_t* operations);

}  // namespace weir

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/simulation/ledger.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/run_log.h"

namespace weir {

// The rules that every run keeps, whatever strikes it (docs/guarantees.md).
enum class Invariant {
  // A batch is in a shard's weights at most once, and each version is one push more than the last (in sync:
  // the parts of one step).
  kOnce,
  // A push that was acknowledged as applied is in the version that the answer names, and in all later ones;
  // with the log also in all later incarnations of the shard, which declare nothing lost.
  kAcknowledged,
  // No weights hold a refused push, and only pushes that are to be refused were refused.
  kRefused,
  // No push of an incarnation that is not a member is applied.
  kFenced,
  // sync: a step has the same parts on all shards.
  kParts,
  // A read returns the weights of one version of the shard, in sync of one step on all shards.
  kTorn,
  // Rows of the table hold the pushes that their version's weights hold, each once, in their order, and no
  // others. Which keys have rows, and which are counted, is as the table's admission, expiry and quotas say.
  kRows,
  // A gradient is computed from weights that its worker read for the gradient's clock: all the weights of the
  // version that it is pushed with. No tensor is handed over before every shard has named that version.
  kBase,
  // The versions that a worker reads of one incarnation of a shard never go back; in sync the worker reads
  // the version that it asks for.
  kMonotonic,
  // bounded: a pull at clock c holds every push with clock <= c-s-1 of every worker that counts.
  kBound,
  // bounded, async: a pull at clock c holds the worker's own pushes up to c-1; with `prefetch` to c-1-s.
  kOwnPushes,
  // bounded, async: the clocks that come with weights count each push in the weights.
  kWatermarks,
  // The staleness in a push's answer is its version - 1 - the version that it was computed from. By that
  // count a push is scaled, or refused.
  kStaleness,
  // A quantised push takes effect with the bits that the codec makes of the gradient, with error feedback of
  // the gradient and what the worker's pushes before it have left.
  kCoded,
  // Epochs rise on each shard, and one epoch is one membership; no incarnation is given twice.
  kEpochs,
  // An update is taken only if it was computed from a version of the incarnation of the shard that takes it.
  kStaleIncarnation,
  // A shard starts with its initial values (those of one worker on all shards, if a worker uploads them) or
  // from a checkpoint. The checkpoint has the bits of a version that was published, and is never older than
  // the newest complete checkpoint, which no reader finds damaged. In sync it is of the same step on all
  // shards. With the log it also has the logged pushes, and never less than was published.
  kRestored,
  // bounded, async: a restored shard declares the acknowledged pushes that it lacks, once it hears of their
  // worker, and no others.
  kDeclared,
  // A coordinator that was replaced saves nothing that its successor has not found. It ends, but does not end
  // the job.
  kReplaced,
  // A worker that joins starts no lower than the slowest live worker.
  kJoin,
  // At the job's end every batch was applied on every shard (but for those that are to be refused), in sync
  // to the very bits of a plain loop.
  kComplete,
  // When the faults are over, everything continues and the job ends in time, by itself, with every exit code
  // 0.
  kProgress,
  // Every answer is one that the protocol allows.
  kProtocol,
};
const char* Name(Invariant invariant);

struct Violation {
  Invariant invariant;
  std::string what;
};

// Checks a run's log against the invariants. Pure; knows the meanings (docs/concepts.md) and the ledger job,
// and shares no code with what it judges. `operations` counts the checked operations.
std::vector<Violation> CheckInvariants(const Plan& plan, const Ledger& ledger, const RunLog& log,
                                       uint64_t* operations);

}  // namespace weir

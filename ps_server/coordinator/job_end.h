#pragma once

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace weir {

// Why a job ends, as far as that is known: it is drained, it has failed, or it was done before this
// coordinator began.
//
// Belongs to the coordinator's queue.
class JobEnd {
 public:
  // ---- drained

  // The job is saved and then ends, for this reason, which is not empty.
  void Drain(std::string reason) { drain_ = std::move(reason); }
  bool drained() const { return !drain_.empty(); }
  const std::string& drain_reason() const { return drain_; }

  // ---- failed

  // The job fails with this once the store says that no other coordinator has the job, or has said nothing
  // until `until`. False: an earlier failure waits for that already.
  bool Suspect(absl::Status failure, absl::Time until);
  // Whether the store has said nothing for too long.
  bool Overdue(absl::Time now) const { return suspected_.has_value() && now >= suspected_->until; }
  // The failure of the first Suspect().
  const absl::Status& suspected() const { return suspected_->failure; }

  void Fail(absl::Status failure) { failure_ = std::move(failure); }
  // OK: the job has not failed.
  const absl::Status& failure() const { return failure_; }

  // ---- done before

  // The job was done when this coordinator began.
  void EndAgain() { ends_again_ = true; }
  bool ends_again() const { return ends_again_; }

  // ---- what callers hear once the job is over

  // The answer to a Join, if the job has failed.
  absl::Status ForJoin() const;
  // The answer to other calls.
  absl::Status ForCall() const;

  // True for the first call: that the job is over, and that it waits for processes to hear of that, is said
  // once.
  bool SayEnd() { return !std::exchange(said_end_, true); }
  bool SayWaiting() { return !std::exchange(said_waiting_, true); }

 private:
  struct Suspected {
    absl::Status failure;
    absl::Time until;
  };
  std::string drain_;
  std::optional<Suspected> suspected_;
  absl::Status failure_;
  bool ends_again_ = false;
  bool said_end_ = false, said_waiting_ = false;
};

}  // namespace weir

#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"

namespace weir {

// Whether the end of a job is saved. No worker may leave before, because its work might have to be done
// again.
//
// Belongs to the coordinator's queue.
class LastSave {
 public:
  using Leave = std::function<void(absl::StatusOr<v1::LeaveReply>)>;
  // Saving has failed since then, the last time for this reason.
  struct Trouble {
    absl::Time since;
    std::string why;
  };

  bool saved() const { return saved_; }
  // When the end was saved; infinite past: before this coordinator.
  absl::Time saved_at() const { return saved_at_; }
  const std::optional<Trouble>& trouble() const { return trouble_; }
  // Whether it is time to try again.
  bool Due(absl::Time now) const { return !saved_ && now >= next_; }

  // A worker that has done its work waits until the end is saved.
  void Wait(Leave leave) { waiting_.push_back(std::move(leave)); }

  void OnTry(absl::Time now) { next_ = now + kAgain; }
  void OnFailed(absl::Time now, std::string why) {
    if (!trouble_.has_value()) trouble_ = Trouble{now, ""};
    trouble_->why = std::move(why);
  }
  // The trouble is over, or it was no trouble of the disk.
  void ForgetTrouble() { trouble_.reset(); }
  // Lets the waiting workers leave.
  void OnSaved(absl::Time now) {
    SavedBefore();
    saved_at_ = now;
    for (Leave& leave : std::exchange(waiting_, {})) leave(v1::LeaveReply());
  }
  // The end was saved before this coordinator.
  void SavedBefore() {
    trouble_.reset();
    saved_ = true;
  }
  // The job goes on: the waiting workers get this error.
  void OnMore(const absl::Status& why) {
    saved_ = false;
    Refuse(why);
  }
  void Refuse(const absl::Status& why) {
    for (Leave& leave : std::exchange(waiting_, {})) leave(why);
  }

 private:
  static constexpr absl::Duration kAgain = absl::Seconds(1);

  bool saved_ = false;
  absl::Time saved_at_ = absl::InfinitePast();
  absl::Time next_ = absl::InfinitePast();
  std::optional<Trouble> trouble_;
  std::vector<Leave> waiting_;
};

}  // namespace weir

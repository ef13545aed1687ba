#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/job/job.h"

namespace weir {

// The versions that all shards keep (pin) for members and readers of the job, which read them beside
// training.
//
// A pin costs memory on every shard, and beyond two old versions a shard takes the oldest back. So a caller
// holds a pin for 60 seconds at most. If two versions are pinned, the next caller waits until one of them is
// released. All waiting callers then share the next pin, so no caller waits longer than the lease of the
// oldest pin, however many callers come.
//
// Belongs to the coordinator's queue.
class VersionPins {
 public:
  using Done = std::function<void(absl::StatusOr<v1::PinReply>)>;
  // `first`: the number of the first pin. Shards may hold pins of an earlier coordinator, with lower numbers.
  // `broadcast` sends a message to every shard.
  VersionPins(const JobContext& job, uint64_t first, std::function<void(const v1::ControlMessage&)> broadcast)
      : job_(job), broadcast_(std::move(broadcast)), next_(first) {}

  // Pins the newest version. `task`: the caller's. `done` gets the pin with its versions by shard. Errors:
  // Unavailable: other versions are pinned for longer than a lease. DeadlineExceeded: not every shard has
  // confirmed the pin within a lease. Cancelled: the caller has asked twice more.
  void Ask(const v1::PinRequest& request, const std::string& task, Done done);
  // The shard has pinned its version. `shards`: how many must confirm.
  void OnPinned(uint32_t shard, const v1::Pinned& pinned, size_t shards);
  // The caller has read the pinned versions. Returns their counts by shard; nullopt: it has no such pin.
  std::optional<std::vector<uint64_t>> Release(const v1::UnpinRequest& request);
  // Drops the pins and waiting calls of a worker or reader that is out of the job.
  void DropCaller(uint32_t id);
  // Drops all pins. Callers that wait get this error.
  void DropAll(const absl::Status& why);
  // Ends pins and waits that have taken too long.
  void Tick();

 private:
  // A caller that holds a pin, or waits for one.
  struct Holder {
    v1::Caller caller;
    std::string task;
    absl::Duration lease;
    Done done;            // empty once it is answered
    absl::Time deadline;  // of the wait
  };
  struct Pin {
    std::vector<Holder> holders;
    std::map<uint32_t, v1::Version> versions;  // by shard, of the shards that confirmed the pin
    bool confirmed = false;                    // by all shards
    absl::Time confirm_by, lease_end;
  };

  using Which = absl::FunctionRef<bool(const Holder&)>;
  // Removes these holders, and answers those that wait with `why`.
  static void Drop(std::vector<Holder>& holders, const absl::Status& why, Which which);
  // Drops these holders of pins and waiting callers.
  void DropWhere(const absl::Status& why, Which which);
  // If there is room for one more pin, pins a version for all waiting callers.
  void MaybePin();
  // Releases the pins that no caller holds.
  void ReleaseUnheld();

  const JobContext& job_;
  const std::function<void(const v1::ControlMessage&)> broadcast_;
  uint64_t next_;
  std::map<uint64_t, Pin> pins_;
  std::vector<Holder> waiting_;
};

}  // namespace weir

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "proto/shard_control.pb.h"

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
  struct Options {
    // How long a caller waits for its pin, and how long shards may take to confirm a pin.
    absl::Duration patience;
    // The number of the first pin. Shards may hold pins of an earlier coordinator, with lower numbers.
    uint64_t first = 1;
    // Sends a message to every shard.
    std::function<void(const v1::ControlMessage&)> broadcast;
  };
  explicit VersionPins(Options options) : options_(std::move(options)), next_(options_.first) {}

  // Pins the newest version. `task`: the caller's. `done` gets the pin with its versions by shard. Errors:
  // Unavailable: other versions are pinned for too long. DeadlineExceeded: not every shard has confirmed the
  // pin in time. Cancelled: the caller has asked twice more.
  void Ask(const v1::PinRequest& request, const std::string& task, absl::Time now, Done done);
  // The shard has pinned its version. `shards`: how many must confirm.
  void OnPinned(uint32_t shard, const v1::Pinned& pinned, size_t shards);
  // The caller has read the pinned versions. Returns their counts by shard; nullopt: it has no such pin.
  std::optional<std::vector<uint64_t>> Release(const v1::UnpinRequest& request, absl::Time now);
  // Drops the pins and waiting calls of a worker or reader that is out of the job.
  void DropCaller(uint32_t id, absl::Time now);
  // Drops all pins. Callers that wait get this error.
  void DropAll(const absl::Status& why, absl::Time now);
  // Ends pins and waits that have taken too long.
  void Tick(absl::Time now);

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

  // If there is room for one more pin, pins a version for all waiting callers.
  void MaybePin(absl::Time now);
  // Releases the pins that no caller holds.
  void ReleaseUnheld(absl::Time now);

  const Options options_;
  uint64_t next_;
  std::map<uint64_t, Pin> pins_;
  std::vector<Holder> waiting_;
};

}  // namespace weir

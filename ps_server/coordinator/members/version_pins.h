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

// The versions that all shards keep for members and readers of the job, which read them from outside the
// training.
//
// A pin costs memory on every shard, and beyond two old versions a shard takes the oldest back. So a caller
// holds a pin for 60 seconds at most, and a caller that comes when two versions are pinned waits until one of
// them is released. All waiting callers then share the next pin, so no caller waits longer than the lease of
// the oldest pin, however many callers come.
//
// Belongs to the coordinator's queue.
class VersionPins {
 public:
  using Done = std::function<void(absl::StatusOr<v1::PinReply>)>;
  struct Options {
    // How long a caller waits for its pin, and how long shards may take to confirm a pin.
    absl::Duration patience;
    // Pins are numbered from here on: shards may still hold those of an earlier coordinator.
    uint64_t first = 1;
    // Sends a message to every shard.
    std::function<void(const v1::ControlMessage&)> broadcast;
  };
  explicit VersionPins(Options options) : options_(std::move(options)), next_(options_.first) {}

  // `task`: the caller's. `done` gets the pin with its versions by shard. Errors: Unavailable: other versions
  // are pinned for too long. DeadlineExceeded: not every shard has confirmed the pin. Cancelled: the same
  // caller has asked again, twice.
  void Ask(const v1::PinRequest& request, const std::string& task, absl::Time now, Done done);
  // The shard keeps the version. `shards`: how many have to.
  void OnPinned(uint32_t shard, const v1::Pinned& pinned, size_t shards);
  // The caller has read what it pinned. Returns the counts of the pinned versions by shard; nullopt: the
  // caller holds no such pin.
  std::optional<std::vector<uint64_t>> Release(const v1::UnpinRequest& request, absl::Time now);
  // This worker or reader is out of the job.
  void DropCaller(uint32_t id, absl::Time now);
  // Drops all pins. Waiting callers get this error.
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
    std::map<uint32_t, v1::Version> versions;  // by shard, of those that confirmed it
    bool confirmed = false;                    // by all
    absl::Time confirm_by, lease_end;
  };

  // Pins a version for all waiting callers, if there is room for one more.
  void MaybePin(absl::Time now);
  // Releases the pins that no caller holds.
  void ReleaseUnheld(absl::Time now);

  const Options options_;
  uint64_t next_;
  std::map<uint64_t, Pin> pins_;
  std::vector<Holder> waiting_;
};

}  // namespace weir

// The part of Coordinator that pins versions for readers. A pin costs memory on every shard, and beyond two
// old versions a shard takes the oldest back. So only those hold pins who are in the job, each for
// kMaxPinSeconds at most, and who comes when kMaxPins versions are pinned waits until one is let go. All who
// wait then share the next one, so nobody waits for longer than the oldest pin's lease, however many come.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {
namespace {

constexpr double kMinPinSeconds = 1, kMaxPinSeconds = 60;
constexpr size_t kMaxPins = 2;
// Of one caller, waiting for a pin at once: one that was sent again, and one more.
constexpr int kMaxWaitingOfCaller = 2;

bool Same(const v1::Caller& a, const v1::Caller& b) {
  return a.worker() == b.worker() && a.incarnation() == b.incarnation();
}

}  // namespace

void Coordinator::HandlePin(const v1::PinRequest& request, Done<v1::PinReply> done) {
  if (state_ != v1::RUNNING && state_ != v1::DRAINING) {
    return done(absl::UnavailableError(
        absl::StrCat("the job is ", v1::JobState_Name(state_), "; there is nothing to pin")));
  }
  if (absl::Status caller = CheckCaller(request.caller()); !caller.ok()) return done(caller);
  PinHolder wish;
  wish.caller = request.caller();
  const auto reader = readers_.find(wish.caller.worker());
  wish.task = reader != readers_.end() ? reader->second.task : members_.at(wish.caller.worker()).task;
  // In this order a NaN ends as the least.
  wish.lease_seconds = std::min(kMaxPinSeconds, std::max(kMinPinSeconds, request.lease_seconds()));
  wish.done = std::move(done);
  wish.deadline = now() + lease();
  const auto own = [&](const PinHolder& other) { return Same(other.caller, wish.caller); };
  if (std::count_if(waiting_pins_.begin(), waiting_pins_.end(), own) >= kMaxWaitingOfCaller) {
    const auto first = std::find_if(waiting_pins_.begin(), waiting_pins_.end(), own);
    first->done(absl::CancelledError("the same caller called again"));
    waiting_pins_.erase(first);
  }
  waiting_pins_.push_back(std::move(wish));
  MaybePin();
}

void Coordinator::MaybePin() {
  if (waiting_pins_.empty() || pins_.size() >= kMaxPins) return;
  const uint64_t id = ++last_pin_;
  PinnedVersion& pin = pins_[id];
  pin.holders = std::exchange(waiting_pins_, {});
  double seconds = 0;
  for (const PinHolder& holder : pin.holders) seconds = std::max(seconds, holder.lease_seconds);
  pin.confirm_by = now() + lease();
  pin.lease_end = now() + absl::Seconds(seconds);
  v1::ControlMessage message;
  message.mutable_pin()->set_pin(id);
  message.mutable_pin()->set_lease_seconds(seconds);
  Broadcast(message);
}

void Coordinator::HandlePinned(uint32_t shard, const v1::Pinned& pinned) {
  const auto it = pins_.find(pinned.pin());
  if (it == pins_.end()) return;
  PinnedVersion& pin = it->second;
  pin.versions[shard] = pinned.version();
  if (pin.versions.size() < shards_.size()) return;
  v1::PinReply reply;
  reply.set_pin(pinned.pin());
  for (const auto& [index, version] : pin.versions) *reply.add_versions() = version;
  for (PinHolder& holder : pin.holders) {
    if (holder.done) std::exchange(holder.done, nullptr)(reply);
  }
}

void Coordinator::HandleUnpin(const v1::UnpinRequest& request) {
  const auto it = pins_.find(request.pin());
  if (it == pins_.end()) return;
  std::vector<PinHolder>& holders = it->second.holders;
  const auto own = std::find_if(holders.begin(), holders.end(), [&](const PinHolder& holder) {
    return !holder.done && Same(holder.caller, request.caller());
  });
  if (own == holders.end()) return;
  holders.erase(own);
  if (evaluations_.has_value()) {
    std::vector<uint64_t> read;
    for (const auto& [shard, version] : it->second.versions) read.push_back(version.count());
    evaluations_->OnRead(request.caller().incarnation(), read);
  }
  ReleasePins();
  MaybeCommit();
}

void Coordinator::ReleasePins() {
  for (auto it = pins_.begin(); it != pins_.end();) {
    if (!it->second.holders.empty()) {
      ++it;
      continue;
    }
    v1::ControlMessage message;
    message.mutable_unpin()->set_pin(it->first);
    Broadcast(message);
    it = pins_.erase(it);
  }
  MaybePin();
}

void Coordinator::DropPinsOf(uint32_t id) {
  const auto drop = [id](std::vector<PinHolder>& holders) {
    for (auto it = holders.begin(); it != holders.end();) {
      if (it->caller.worker() != id) {
        ++it;
        continue;
      }
      if (it->done) it->done(absl::AbortedError("the caller is not in the job any more"));
      it = holders.erase(it);
    }
  };
  drop(waiting_pins_);
  for (auto& [pin, pinned] : pins_) drop(pinned.holders);
  ReleasePins();
}

void Coordinator::DropAllPins(const absl::Status& why) {
  const auto drop = [&why](std::vector<PinHolder>& holders) {
    for (PinHolder& holder : std::exchange(holders, {})) {
      if (holder.done) holder.done(why);
    }
  };
  drop(waiting_pins_);
  for (auto& [pin, pinned] : pins_) drop(pinned.holders);
  ReleasePins();
}

void Coordinator::TickPins(absl::Time time) {
  for (auto& [pin, pinned] : pins_) {
    if (pinned.versions.size() < shards_.size() && pinned.confirm_by <= time) {
      for (PinHolder& holder : std::exchange(pinned.holders, {})) {
        holder.done(absl::DeadlineExceededError("not every shard confirmed the pin in time"));
      }
    } else if (pinned.lease_end <= time) {
      // The shards have let it go, too.
      for (PinHolder& holder : std::exchange(pinned.holders, {})) {
        if (holder.done)
          holder.done(absl::DeadlineExceededError("the pin's lease ended before it was confirmed"));
      }
    }
  }
  ReleasePins();
  std::vector<std::string> held;
  for (const auto& [pin, pinned] : pins_) {
    for (const PinHolder& holder : pinned.holders) held.push_back(holder.task);
  }
  for (auto it = waiting_pins_.begin(); it != waiting_pins_.end();) {
    if (it->deadline > time) {
      ++it;
      continue;
    }
    it->done(absl::UnavailableError(absl::StrCat(kMaxPins, " versions are pinned, as many as may be, by ",
                                                 absl::StrJoin(held, ", "), "; try again")));
    it = waiting_pins_.erase(it);
  }
}

}  // namespace weir

#include "ps_server/coordinator/members/version_pins.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/protocol/limits.h"

namespace weir {
namespace {

constexpr double kMinPinSeconds = 1, kMaxPinSeconds = 60;
constexpr size_t kMaxPins = 2;
// At most this many calls of one caller wait at once: a repeated call, and one more.
constexpr int kMaxWaitingOfCaller = 2;

bool Same(const v1::Caller& a, const v1::Caller& b) {
  return a.worker() == b.worker() && a.incarnation() == b.incarnation();
}

}  // namespace

void VersionPins::Ask(const v1::PinRequest& request, const std::string& task, absl::Time now, Done done) {
  Holder wish;
  wish.caller = request.caller();
  wish.task = task;
  // With this order of min and max, a NaN becomes the minimum.
  wish.lease = absl::Seconds(std::min(kMaxPinSeconds, std::max(kMinPinSeconds, request.lease_seconds())));
  wish.done = std::move(done);
  wish.deadline = now + options_.patience;
  const auto own = [&](const Holder& other) { return Same(other.caller, wish.caller); };
  if (std::count_if(waiting_.begin(), waiting_.end(), own) >= kMaxWaitingOfCaller) {
    const auto first = std::find_if(waiting_.begin(), waiting_.end(), own);
    first->done(absl::CancelledError("the same caller called again"));
    waiting_.erase(first);
  }
  waiting_.push_back(std::move(wish));
  MaybePin(now);
}

void VersionPins::MaybePin(absl::Time now) {
  if (waiting_.empty() || pins_.size() >= kMaxPins) return;
  const uint64_t id = next_++;
  Pin& pin = pins_[id];
  pin.holders = std::exchange(waiting_, {});
  absl::Duration lease;
  for (const Holder& holder : pin.holders) lease = std::max(lease, holder.lease);
  pin.confirm_by = now + options_.patience;
  pin.lease_end = now + lease;
  v1::ControlMessage message;
  message.mutable_pin()->set_pin(id);
  message.mutable_pin()->set_lease_seconds(absl::ToDoubleSeconds(lease));
  options_.broadcast(message);
}

void VersionPins::OnPinned(uint32_t shard, const v1::Pinned& pinned, size_t shards) {
  const auto it = pins_.find(pinned.pin());
  if (it == pins_.end()) return;
  Pin& pin = it->second;
  pin.versions[shard] = pinned.version();
  if (pin.versions.size() < shards) return;
  pin.confirmed = true;
  v1::PinReply reply;
  reply.set_pin(pinned.pin());
  for (const auto& [index, version] : pin.versions) *reply.add_versions() = version;
  for (Holder& holder : pin.holders) {
    if (holder.done) std::exchange(holder.done, nullptr)(reply);
  }
}

std::optional<std::vector<uint64_t>> VersionPins::Release(const v1::UnpinRequest& request, absl::Time now) {
  const auto it = pins_.find(request.pin());
  if (it == pins_.end()) return std::nullopt;
  std::vector<Holder>& holders = it->second.holders;
  const auto own = std::find_if(holders.begin(), holders.end(), [&](const Holder& holder) {
    return !holder.done && Same(holder.caller, request.caller());
  });
  if (own == holders.end()) return std::nullopt;
  holders.erase(own);
  std::vector<uint64_t> read;
  for (const auto& [shard, version] : it->second.versions) read.push_back(version.count());
  ReleaseUnheld(now);
  return read;
}

void VersionPins::ReleaseUnheld(absl::Time now) {
  for (auto it = pins_.begin(); it != pins_.end();) {
    if (!it->second.holders.empty()) {
      ++it;
      continue;
    }
    v1::ControlMessage message;
    message.mutable_unpin()->set_pin(it->first);
    options_.broadcast(message);
    it = pins_.erase(it);
  }
  MaybePin(now);
}

void VersionPins::DropCaller(uint32_t id, absl::Time now) {
  const auto drop = [id](std::vector<Holder>& holders) {
    for (auto it = holders.begin(); it != holders.end();) {
      if (it->caller.worker() != id) {
        ++it;
        continue;
      }
      if (it->done) it->done(absl::AbortedError("the caller is not in the job any more"));
      it = holders.erase(it);
    }
  };
  drop(waiting_);
  for (auto& [number, pin] : pins_) drop(pin.holders);
  ReleaseUnheld(now);
}

void VersionPins::DropAll(const absl::Status& why, absl::Time now) {
  const auto drop = [&why](std::vector<Holder>& holders) {
    for (Holder& holder : std::exchange(holders, {})) {
      if (holder.done) holder.done(why);
    }
  };
  drop(waiting_);
  for (auto& [number, pin] : pins_) drop(pin.holders);
  ReleaseUnheld(now);
}

void VersionPins::Tick(absl::Time now) {
  for (auto& [number, pin] : pins_) {
    if (!pin.confirmed && pin.confirm_by <= now) {
      for (Holder& holder : std::exchange(pin.holders, {})) {
        holder.done(absl::DeadlineExceededError("not every shard confirmed the pin in time"));
      }
    } else if (pin.lease_end <= now) {
      // The shards have released the pin, too.
      for (Holder& holder : std::exchange(pin.holders, {})) {
        if (!holder.done) continue;
        holder.done(absl::DeadlineExceededError("the pin's lease ended before it was confirmed"));
      }
    }
  }
  ReleaseUnheld(now);
  std::vector<std::string> held;
  for (const auto& [number, pin] : pins_) {
    for (const Holder& holder : pin.holders) held.push_back(holder.task);
  }
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->deadline > now) {
      ++it;
      continue;
    }
    it->done(LimitReached(Limit::kPins, absl::StatusCode::kUnavailable,
                          absl::StrCat(kMaxPins, " versions are pinned, as many as may be, by ",
                                       absl::StrJoin(held, ", "), "; try again")));
    it = waiting_.erase(it);
  }
}

}  // namespace weir

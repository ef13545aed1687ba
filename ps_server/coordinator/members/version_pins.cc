#include "ps_server/coordinator/members/version_pins.h"

#include <algorithm>

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

void VersionPins::Ask(const v1::PinRequest& request, const std::string& task, Done done) {
  Holder wish;
  wish.caller = request.caller();
  wish.task = task;
  // With this order of min and max, a NaN becomes the minimum.
  wish.lease = absl::Seconds(std::min(kMaxPinSeconds, std::max(kMinPinSeconds, request.lease_seconds())));
  wish.done = std::move(done);
  wish.deadline = job_.now() + job_.lease();
  const auto own = [&](const Holder& other) { return Same(other.caller, wish.caller); };
  if (std::count_if(waiting_.begin(), waiting_.end(), own) >= kMaxWaitingOfCaller) {
    const auto first = std::find_if(waiting_.begin(), waiting_.end(), own);
    first->done(absl::CancelledError("the same caller called again"));
    waiting_.erase(first);
  }
  waiting_.push_back(std::move(wish));
  MaybePin();
}

void VersionPins::MaybePin() {
  if (waiting_.empty() || pins_.size() >= kMaxPins) return;
  const uint64_t id = next_++;
  Pin& pin = pins_[id];
  pin.holders = std::exchange(waiting_, {});
  absl::Duration lease;
  for (const Holder& holder : pin.holders) lease = std::max(lease, holder.lease);
  pin.confirm_by = job_.now() + job_.lease();
  pin.lease_end = job_.now() + lease;
  v1::ControlMessage message;
  message.mutable_pin()->set_pin(id);
  message.mutable_pin()->set_lease_seconds(absl::ToDoubleSeconds(lease));
  broadcast_(message);
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

std::optional<std::vector<uint64_t>> VersionPins::Release(const v1::UnpinRequest& request) {
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
  ReleaseUnheld();
  return read;
}

void VersionPins::ReleaseUnheld() {
  for (auto it = pins_.begin(); it != pins_.end();) {
    if (!it->second.holders.empty()) {
      ++it;
      continue;
    }
    v1::ControlMessage message;
    message.mutable_unpin()->set_pin(it->first);
    broadcast_(message);
    it = pins_.erase(it);
  }
  MaybePin();
}

void VersionPins::Drop(std::vector<Holder>& holders, const absl::Status& why, Which which) {
  const auto dropped = std::stable_partition(holders.begin(), holders.end(),
                                             [&](const Holder& holder) { return !which(holder); });
  for (auto holder = dropped; holder != holders.end(); ++holder) {
    if (holder->done) holder->done(why);
  }
  holders.erase(dropped, holders.end());
}

void VersionPins::DropWhere(const absl::Status& why, Which which) {
  Drop(waiting_, why, which);
  for (auto& [number, pin] : pins_) Drop(pin.holders, why, which);
  ReleaseUnheld();
}

void VersionPins::DropCaller(uint32_t id) {
  DropWhere(absl::AbortedError("the caller is not in the job any more"),
            [id](const Holder& holder) { return holder.caller.worker() == id; });
}

void VersionPins::DropAll(const absl::Status& why) {
  DropWhere(why, [](const Holder&) { return true; });
}

void VersionPins::Tick() {
  const absl::Time now = job_.now();
  const auto all = [](const Holder&) { return true; };
  for (auto& [number, pin] : pins_) {
    if (!pin.confirmed && pin.confirm_by <= now) {
      Drop(pin.holders, absl::DeadlineExceededError("not every shard confirmed the pin in time"), all);
    } else if (pin.lease_end <= now) {
      // The shards have released the pin, too.
      Drop(pin.holders, absl::DeadlineExceededError("the pin's lease ended before it was confirmed"), all);
    }
  }
  ReleaseUnheld();
  if (waiting_.empty()) return;
  std::vector<std::string> held;
  for (const auto& [number, pin] : pins_) {
    for (const Holder& holder : pin.holders) held.push_back(holder.task);
  }
  Drop(waiting_,
       LimitReached(Limit::kPins, absl::StatusCode::kUnavailable,
                    absl::StrCat(kMaxPins, " versions are pinned, as many as may be, by ",
                                 absl::StrJoin(held, ", "), "; try again")),
       [now](const Holder& holder) { return holder.deadline <= now; });
}

}  // namespace weir

#include "ps_server/shard/calls/calls.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/limits.h"
#include "ps_server/shard/calls/shard_members.h"

namespace weir {

absl::Status WaitingCalls::CheckRoom(uint32_t worker, const ShardMembers& members) const {
  // If fewer calls wait in all, as in most cases, there is no need to count the calls of one worker.
  if (held.size() + behind_stream.size() + ready.size() + parked.size() < kMaxOfWorker)
    return absl::OkStatus();
  const auto of_ready = std::count_if(ready.begin(), ready.end(),
                                      [worker](const ReadyPush& push) { return push.worker() == worker; });
  const size_t waiting = held.SizeOf(worker) + behind_stream.SizeOf(worker) + parked.SizeOf(worker) +
                         static_cast<size_t>(of_ready);
  if (waiting < kMaxOfWorker) return absl::OkStatus();
  return LimitReached(Limit::kWaitingCalls, absl::StatusCode::kResourceExhausted,
                      absl::StrCat(members.TaskOf(worker), " has ", waiting,
                                   " calls that wait on this shard; at most ", kMaxOfWorker, " may"));
}

absl::Time WaitingCalls::oldest() const {
  absl::Time oldest = absl::InfiniteFuture();
  const auto see = [&](const auto& calls) {
    if (!calls.empty()) oldest = std::min(oldest, calls.front().since);
  };
  see(held);
  see(behind_stream);
  see(ready);
  see(parked);
  return oldest;
}

}  // namespace weir

#include "worker/memberships.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

// An orchestrator gives a task some seconds from SIGTERM to SIGKILL. Without the leave, ps:0 sees the
// connection break.
constexpr std::chrono::seconds kLongest(3);

}  // namespace

absl::Status WorkUntilDone(ClientOptions options, absl::Duration start_wait, const JoinJobFunction& join,
                           const std::function<MembershipEnd(Client*)>& work, const Clock& clock) {
  int fruitless = 0;
  absl::Time progressed = clock.Now();
  uint64_t furthest = 0;  // where a membership began
  while (true) {
    auto joined = join(options);
    if (absl::IsOutOfRange(joined.status())) {
      LogInfo(joined.status().message());
      return absl::OkStatus();
    }
    WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, std::move(joined));
    if (options.again) LogInfo("joined again");
    MembershipEnd end = work(client.get());
    // A shard tells this to a worker that stood still while others did its work.
    if (absl::IsOutOfRange(end.status)) {
      LogInfo(end.status.message());
      end.status = absl::OkStatus();
    }
    const absl::Status left = client->Leave(end.status);
    // All was done, but the job went back before all members had left; or the job cannot be saved.
    if (end.status.ok() && (absl::IsAborted(left) || KindOf(left) == v1::FAILURE_RESOURCE)) end.status = left;
    // Servers end because of one another, so the failure that this worker saw first need not have been the
    // first.
    if (absl::IsUnavailable(end.status) && !left.ok() && left != end.status) {
      return absl::UnavailableError(absl::StrCat(end.status.message(), "; ", left.message()));
    }
    if (end.status.ok()) {
      if (!left.ok()) LogWarning("could not take leave: ", left.message());
      return absl::OkStatus();
    }
    if (!absl::IsAborted(end.status)) return end.status;
    // In sync a worker may have no part to compute while others bring the job on.
    const bool went_on = client->start_clock() > furthest;
    furthest = std::max(furthest, client->start_clock());
    const absl::Time now = clock.Now();
    if (end.progressed || went_on) {
      fruitless = 0;
      progressed = now;
    } else {
      ++fruitless;
    }
    if (fruitless >= kFruitlessMemberships && now - progressed >= start_wait) {
      return Reworded(end.status, absl::StrCat(end.status.message(), "; that was ", fruitless,
                                               " times in a row without any progress, for longer than "
                                               "cluster.start_seconds = ",
                                               absl::ToDoubleSeconds(start_wait), ", and is the last"));
    }
    LogWarning(end.status.message(), "; joining again");
    options.again = true;
    options.job = client->job();
  }
}

Preemption::Member::Member(Preemption* preemption, Client* client) : preemption_(preemption) {
  MutexLock lock(preemption_->mutex_);
  preemption_->client_ = client;
}

Preemption::Member::~Member() {
  MutexLock lock(preemption_->mutex_);
  preemption_->client_ = nullptr;
}

void Preemption::LeaveAndExit(const std::string& why, int exit_code) {
  LogWarning(why, "; leaving");
  absl::StatusOr<std::thread> limit = MakeThread("end this process in time", [exit_code] {
    std::this_thread::sleep_for(kLongest);
    std::_Exit(exit_code);
  });
  if (!limit.ok()) {
    LogWarning("ends without taking leave: ", limit.status().message());
    std::_Exit(exit_code);
  }
  limit->detach();
  MutexLock lock(mutex_);
  if (client_ != nullptr) {
    if (const absl::Status left = client_->Leave(JobFailure(v1::FAILURE_DRAINED, why)); !left.ok()) {
      LogWarning("could not take leave: ", left.message());
    }
  }
  std::_Exit(exit_code);
}

}  // namespace weir

#include "worker/preemption.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include "absl/status/statusor.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "common/threads/thread.h"

namespace weir {
namespace {

// An orchestrator gives a task some seconds from SIGTERM to SIGKILL. Without the leave, ps:0 sees the
// connection break.
constexpr std::chrono::seconds kLongest(3);

}  // namespace

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

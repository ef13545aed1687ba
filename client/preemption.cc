#include "client/preemption.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/program/exit_codes.h"
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

absl::StatusOr<std::unique_ptr<Preemption>> Preemption::Start(std::initializer_list<int> signals) {
  std::unique_ptr<Preemption> made(new Preemption);
  BlockSignals(signals);
  WEIR_ASSIGN_OR_RETURN(made->signals_, SignalWaiter::Start(signals, [to = made.get()](int signal) {
                          to->LeaveAndExit(absl::StrCat("got signal ", signal));
                        }));
  return made;
}

void Preemption::LeaveAndExit(const std::string& why) {
  LogWarning(why, "; leaving");
  absl::StatusOr<std::thread> limit = MakeThread("end this process in time", [] {
    std::this_thread::sleep_for(kLongest);
    std::_Exit(kExitDrained);
  });
  if (!limit.ok()) {
    LogWarning("ends without taking leave: ", limit.status().message());
    std::_Exit(kExitDrained);
  }
  limit->detach();
  MutexLock lock(mutex_);
  if (client_ != nullptr) {
    if (const absl::Status left = client_->Leave(JobFailure(v1::FAILURE_DRAINED, why)); !left.ok()) {
      LogWarning("could not take leave: ", left.message());
    }
  }
  std::_Exit(kExitDrained);
}

}  // namespace weir

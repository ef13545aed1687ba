#include "worker/lives.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"

namespace weir {

absl::Status WorkUntilDone(ClientOptions options, const JoinJobFunction& join,
                           const std::function<Life(Client*)>& work) {
  int fruitless = 0;
  uint64_t furthest = 0;  // where a membership began
  while (true) {
    auto joined = join(options);
    if (absl::IsOutOfRange(joined.status())) {
      LogInfo(joined.status().message());
      return absl::OkStatus();
    }
    WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, std::move(joined));
    if (options.again) LogInfo("joined again");
    Life life = work(client.get());
    // A shard tells this to a worker that stood still while others did its work.
    if (absl::IsOutOfRange(life.status)) {
      LogInfo(life.status.message());
      life.status = absl::OkStatus();
    }
    const absl::Status left = client->Leave(life.status);
    // All was done, but the job went back before all members had left; or the job cannot be saved.
    if (life.status.ok() && (absl::IsAborted(left) || KindOf(left) == v1::FAILURE_RESOURCE))
      life.status = left;
    // Servers end because of one another, so the failure that this worker saw first need not have been the
    // first.
    if (absl::IsUnavailable(life.status) && !left.ok() && left != life.status) {
      return absl::UnavailableError(absl::StrCat(life.status.message(), "; ", left.message()));
    }
    if (life.status.ok()) {
      if (!left.ok()) LogWarning("could not take leave: ", left.message());
      return absl::OkStatus();
    }
    if (!absl::IsAborted(life.status)) return life.status;
    // In sync a worker may have no part to compute while others bring the job on.
    const bool went_on = client->start_clock() > furthest;
    furthest = std::max(furthest, client->start_clock());
    fruitless = life.progressed || went_on ? 0 : fruitless + 1;
    if (fruitless == kFruitlessLives) {
      return Reworded(life.status, absl::StrCat(life.status.message(), "; that was ", kFruitlessLives,
                                                " times in a row without any progress, and is the last"));
    }
    LogWarning(life.status.message(), "; joining again");
    options.again = true;
  }
}

}  // namespace weir

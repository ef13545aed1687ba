#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"

namespace weir {

// How one membership of this process ended.
struct Life {
  absl::Status status;
  // It did something that the job keeps, unless it goes back to a checkpoint: a push that was acknowledged,
  // an evaluation.
  bool progressed = false;
};

using JoinJobFunction = std::function<absl::StatusOr<std::unique_ptr<Client>>(const ClientOptions&)>;

// Joins the job and works in it until `work` is done. Where it was fenced meanwhile (Aborted: the job went
// back to a checkpoint since a server was lost, ps:0 is another process than before, or its lease ended), it
// joins again with a fresh client, while there is progress, its own or, as the clock at which it joins tells,
// the job's: kFruitlessLives in a row without any are one too many. `work` runs on the calling thread, and
// starts from nothing each time.
//
// OK also where there is nothing left to do. Errors are those of the join or of `work`, with that of the
// leave-taking where a server was lost and ps:0 is gone, too; the last fence's after too many fruitless
// lives.
inline constexpr int kFruitlessLives = 10;
absl::Status WorkUntilDone(ClientOptions options, const JoinJobFunction& join,
                           const std::function<Life(Client*)>& work);

}  // namespace weir

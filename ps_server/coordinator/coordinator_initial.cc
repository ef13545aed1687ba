// The part of Coordinator for initial values that a worker uploads, or that are saved before the job begins.
#include <string>

#include "common/telemetry/logging.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {

bool Coordinator::NeedsUpload() const {
  return declared_.model()->uploaded() && !init_from_.has_value() && !checkpoints_.any();
}

bool Coordinator::NeedsFirstSave() const {
  return checkpoints_.enabled() && !checkpoints_.any() &&
         options_.config.server().durability() == v1::ServerConfig::DURABILITY_LOG;
}

void Coordinator::HandleValues(uint32_t shard, const v1::ValuesStaged& staged) {
  if (!upload_.OnStaged(shard, staged.uploader(), shards_.size())) return;
  // No worker could make the values again after the first step. So they are saved before it.
  checkpoints_.enabled() ? SaveInitialValues() : OnInitialValues();
}

void Coordinator::SaveInitialValues() {
  upload_.OnSave();
  checkpoints_.Request(
      /*of_now=*/true, [this, of = upload_.uploader()](const absl::StatusOr<v1::CheckpointReply>& reply) {
        if (over() || !upload_.saving() || upload_.uploader() != of) return;
        if (reply.ok()) return OnInitialValues();
        LogWarning("the initial values cannot be saved yet: ", reply.status().message());
        upload_.OnSaveFailed(now(), reply.status().message());
      });
}

void Coordinator::OnInitialValues() {
  const bool first = upload_.precedes_members();
  upload_.OnSaved();
  if (first) return MaybeAdmit();
  LogInfo("all shards have the initial values");
  // Members are told once all shards know.
  BroadcastMembership();
}

}  // namespace weir

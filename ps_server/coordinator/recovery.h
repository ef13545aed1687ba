#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/admission.h"
#include "ps_server/coordinator/job_parts.h"

namespace weir {

// Attaches and installs the shards of a job, and recovers lost ones.
//
// With a store the job outlives its servers. If the link of a shard breaks or falls silent, the shard is
// attached again. In bounded and async the other shards continue meanwhile. The shard continues with what it
// holds or, if it comes back as a new incarnation, is restored alone. In sync the whole job goes back: all
// members are removed at once, all shards are installed anew from the newest checkpoint, and the members join
// again. The whole job also goes back, to its beginning, if a shard is lost while initial values are awaited.
//
// If a shard comes back at a new address (ShardFleet), the members are told before the shard is installed.
// Otherwise a process that only seemed to be gone could still answer the members at the old address.
//
// Belongs to the coordinator's queue.
class Recovery {
 public:
  // Both outlive the object.
  Recovery(JobParts& job, Admission& admission) : job_(job), admission_(admission) {}

  void OnAttached(uint32_t shard, const v1::Attached& attached);
  // Installs the attached shards, if the state of the job allows it.
  void MaybeInstall();
  void OnInstalled(uint32_t shard, const v1::Installed& installed);
  // The link of a server has broken or, after the end of the job, has ended.
  void OnLinkEnded(uint32_t server, const absl::Status& status);
  // Finds shards that are silent, away for too long, or late. Opens links again.
  void Tick();

 private:
  void OnAllInstalled();
  void OnLinkEndedAfterEnd(uint32_t server, const absl::Status& status);
  void Lose(uint32_t shard, const std::string& why);
  // The job goes back to the newest checkpoint (sync) or, while initial values are awaited, to its beginning.
  void RollBack(const std::string& why);

  JobParts& job_;
  Admission& admission_;
};

}  // namespace weir

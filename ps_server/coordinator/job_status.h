#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/coordinator.pb.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/checkpoints/job_numbers.h"
#include "ps_server/coordinator/evaluation/job_evaluations.h"
#include "ps_server/coordinator/job/job_context.h"
#include "ps_server/coordinator/job_ending.h"
#include "ps_server/coordinator/members/initial_upload.h"
#include "ps_server/coordinator/members/job_declaration.h"
#include "ps_server/coordinator/members/member_table.h"
#include "ps_server/coordinator/progress/job_meter.h"
#include "ps_server/coordinator/progress/job_progress.h"
#include "ps_server/coordinator/shards/shard_fleet.h"

// The status of a job, for people. No decision depends on it.
namespace weir {

// References to the parts of a job's state.
struct JobView {
  v1::JobState state = v1::STARTING;
  const JobContext& job;
  const v1::JobIdentity& identity;
  // Whether the job's TCP connections have TLS.
  bool tls = false;
  // Whether ps:0 looks for a whole checkpoint, since the newest one is damaged.
  bool searches = false;
  const Checkpoints& checkpoints;
  const JobNumbers& numbers;
  const ShardFleet& shards;
  const MemberTable& members;
  const JobEnding& ending;
  const JobDeclaration& declared;
  const JobProgress& progress;
  const InitialUpload& upload;
  const JobMeter& meter;
  const JobEvaluations& evaluations;
};

v1::ClusterStatus StatusOf(const JobView& of, v1::Membership membership);

// The things that the job waits for. Empty: it waits for none.
std::vector<std::string> WaitingFor(const JobView& of);

}  // namespace weir

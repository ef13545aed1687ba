#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"
#include "ps_server/coordinator/checkpoints.h"
#include "ps_server/coordinator/initial_upload.h"
#include "ps_server/coordinator/job_declaration.h"
#include "ps_server/coordinator/job_ending.h"
#include "ps_server/coordinator/job_evaluations.h"
#include "ps_server/coordinator/job_meter.h"
#include "ps_server/coordinator/job_numbers.h"
#include "ps_server/coordinator/job_progress.h"
#include "ps_server/coordinator/member_table.h"
#include "ps_server/coordinator/shard_fleet.h"

// What people are told of a job. No decision depends on it.
namespace weir {

// The state of a job, in its parts.
struct JobView {
  v1::JobState state = v1::STARTING;
  absl::Time now;
  const v1::JobConfig& config;
  const v1::JobIdentity& job;
  // The number of workers that train.
  uint32_t workers = 1;
  // The job's TCP connections have TLS.
  bool tls = false;
  // ps:0 looks for a whole checkpoint, since the newest one is damaged.
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

  bool over() const { return state == v1::DONE || state == v1::FAILED; }
};

v1::ClusterStatus StatusOf(const JobView& of, v1::Membership membership);

// What the job waits for; empty: nothing.
std::vector<std::string> WaitingFor(const JobView& of);

}  // namespace weir

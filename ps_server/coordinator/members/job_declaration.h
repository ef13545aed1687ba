#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "common/telemetry/logging.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/job/job_context.h"
#include "ps_server/coordinator/job/job_size.h"
#include "ps_server/coordinator/members/member_table.h"
#include "ps_server/coordinator/shards/shard_fleet.h"

namespace weir {

// The fingerprints on which the workers of a job must agree (JoinRequest.fingerprints). The first worker that
// gives a name decides its value. If a worker does not give a name, the name is not compared.
//
// Belongs to the coordinator's queue.
class Fingerprints {
 public:
  // InvalidArgument: there are too many, a name or value is too long or cannot be printed, or a name comes
  // twice. FailedPrecondition: a value differs from the value of the worker that gave the name first; the
  // message names both.
  absl::Status Check(const v1::JoinRequest& request) const;
  // Takes the values of the names that no worker has given before. Check() has accepted the request.
  void Declare(const v1::JoinRequest& request);
  // A worker that declared its fingerprints was admitted. From now on Forget() has no effect.
  void Settle() { settled_ = true; }
  // No worker that could have declared the fingerprints waits any more.
  void Forget() {
    if (!settled_) declared_.clear();
  }

 private:
  struct Declared {
    std::string value;
    std::string task;  // of the first worker that gave the name
  };
  // By name.
  std::map<std::string, Declared> declared_;
  bool settled_ = false;
};

// The facts on which the processes of a job must agree: the config, the model, the size of the training set,
// and the servers. If neither ps:0 nor a checkpoint knows a fact, the first process that joins declares it,
// and every later Join must agree.
//
// The job is settled once a shard has begun or there is a checkpoint. Before that, model and size are only
// the declarations of the waiting processes, and are forgotten when these processes go.
//
// Belongs to the coordinator's queue.
class JobDeclaration {
 public:
  static constexpr int kMaxServers = 1024;

  struct Options {
    // These outlive the object.
    const Checkpoints* checkpoints = nullptr;
    const MemberTable* members = nullptr;
    // Is told the number of shards and, if ps:0 does not know them, the addresses.
    ShardFleet* shards = nullptr;
    // Whether the cluster spec of ps:0 lists all servers.
    bool knows_servers = false;
    // As Coordinator::Options.
    uint64_t memory_bytes = 0;
    // The size of the training set is known, or is no longer known.
    std::function<void()> size_changed;
  };
  JobDeclaration(const JobContext& job, Options options) : job_(job), options_(std::move(options)) {}

  // Takes model and size from the newest checkpoint.
  void Restore();
  // Whether the process may join; if not, logs the reason. If the process may join and the model, the size or
  // the addresses are not known yet, takes them from the request.
  absl::Status Join(const v1::JoinRequest& request);
  // A worker that has declared its fingerprints was admitted, which settles them.
  void OnAdmitted() { fingerprints_.Settle(); }
  // A waiting process has gone: forgets facts that are not settled and that no waiting process declares.
  void Forget();

  // Absent: no process has declared a model.
  const std::optional<ModelSpec>& model() const { return model_; }
  const JobSize& size() const { return size_; }
  // Shorten(): the job is stopped early, after this many examples and batches. Lengthen() undoes that.
  void Shorten(uint64_t examples, uint64_t batches);
  void Lengthen();
  // A new job waits for this many workers.
  uint32_t needed_workers() const;
  // Whether the newest checkpoint is of the end of this job.
  bool DoneBefore() const;

  // Fills in model and size for a shard, for a checkpoint, or for a process that joins.
  void Describe(v1::Install* install) const;
  void Describe(Checkpoints::Snapshot* snapshot) const;
  void Describe(v1::JoinReply* reply) const;

 private:
  absl::Status Check(const v1::JoinRequest& request, ModelSpec* model) const;
  absl::Status CheckAddresses(const v1::JoinRequest& request) const;
  absl::Status CheckModel(const v1::JoinRequest& request, const ModelSpec& model) const;
  // Checks the size of the training set that a worker declares.
  absl::Status CheckSize(const v1::JoinRequest& request) const;
  // Names for messages the declaration with which a Join must agree: before the job is settled, that of the
  // first process that waits (the first worker if `worker`), afterwards the job's own.
  std::string DeclaredBy(bool worker) const;
  bool settled() const { return options_.shards->begun() || options_.checkpoints->any(); }
  // Whether the next process that joins says where the servers are: ps:0 does not know, and none waits.
  bool AddressesOpen() const;
  void SetModel(ModelSpec model);
  JobSize SizeWith(uint64_t train_examples) const;
  void SetSize(const JobSize& size);

  const JobContext& job_;
  const Options options_;
  std::optional<ModelSpec> model_;
  JobSize size_;
  Fingerprints fingerprints_;
  // Limits the log lines, since a refused process tries again and again.
  LogLimit refusals_{absl::Seconds(1)};
};

}  // namespace weir

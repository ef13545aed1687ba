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

// What the workers of a job say that all of them must agree on (JoinRequest.fingerprints). The first worker
// that gives a name decides its value. A name that a worker does not give is not compared.
//
// Belongs to the coordinator's queue.
class Fingerprints {
 public:
  // InvalidArgument: there are too many, a name or value is too long or cannot be printed, or a name comes
  // twice. FailedPrecondition: a value differs from that of the worker that gave the name first; names both.
  absl::Status Check(const v1::JoinRequest& request) const;
  // Takes the values of the names that nobody has given before. Check() allowed the request.
  void Declare(const v1::JoinRequest& request);
  // A worker that declared its fingerprints was admitted, so that Forget() has no effect from now on.
  void Settle() { settled_ = true; }
  // No worker waits that could have declared them.
  void Forget() {
    if (!settled_) declared_.clear();
  }

 private:
  struct Declared {
    std::string value;
    std::string task;  // of the first worker that gave it
  };
  // By name.
  std::map<std::string, Declared> declared_;
  bool settled_ = false;
};

// What the processes of a job must agree on: the config, the model, the size of the training set, and the
// servers. What neither ps:0 nor a checkpoint knows, the first process that joins declares, and every later
// Join must agree with it.
//
// Before the job is settled (a shard has begun, or there is a checkpoint), model and size are only what the
// waiting processes declare, and are forgotten when these processes go.
//
// Belongs to the coordinator's queue.
class JobDeclaration {
 public:
  static constexpr int kMaxServers = 1024;

  struct Options {
    // These outlive the object.
    const Checkpoints* checkpoints = nullptr;
    const MemberTable* members = nullptr;
    // Gets the addresses, if ps:0 does not know them, and the number of shards.
    ShardFleet* shards = nullptr;
    // The cluster spec of ps:0 lists all servers.
    bool knows_servers = false;
    // As Coordinator::Options.
    uint64_t memory_bytes = 0;
    // The size of the training set is known, or is not known any more.
    std::function<void()> size_changed;
  };
  JobDeclaration(const JobContext& job, Options options) : job_(job), options_(std::move(options)) {}

  // Takes what the newest checkpoint says of the job.
  void Restore();
  // Whether the process may join; logs why not. If so, and if the model, the size or the addresses are not
  // known yet, the request's become the job's.
  absl::Status Join(const v1::JoinRequest& request);
  // A worker that has declared its fingerprints was admitted: these are settled.
  void OnAdmitted() { fingerprints_.Settle(); }
  // A waiting process has gone: forgets what no waiting process declares any more, unless it is settled.
  void Forget();

  // Absent: no process has declared it.
  const std::optional<ModelSpec>& model() const { return model_; }
  const JobSize& size() const { return size_; }
  // The job is stopped early, after this many examples and batches; is not stopped early after all.
  void Shorten(uint64_t examples, uint64_t batches);
  void Lengthen();
  // How many workers a new job waits for.
  uint32_t needed_workers() const;
  // Whether the newest checkpoint is the end of this job.
  bool DoneBefore() const;

  // Fills in what a shard, a checkpoint, or a process that joins is told of model and size.
  void Describe(v1::Install* install) const;
  void Describe(Checkpoints::Snapshot* snapshot) const;
  void Describe(v1::JoinReply* reply) const;

 private:
  absl::Status Check(const v1::JoinRequest& request, ModelSpec* model) const;
  absl::Status CheckAddresses(const v1::JoinRequest& request) const;
  absl::Status CheckModel(const v1::JoinRequest& request, const ModelSpec& model) const;
  // Checks the size of the training set that a worker declares.
  absl::Status CheckSize(const v1::JoinRequest& request) const;
  // For messages: whose declaration a Join must agree with. Before the job is settled that is the first
  // process that waits (the first worker if `worker`), afterwards the job's own.
  std::string DeclaredBy(bool worker) const;
  bool settled() const { return options_.shards->begun() || options_.checkpoints->any(); }
  // The next process that joins says where the servers are: ps:0 does not know, and no process waits that has
  // said it.
  bool AddressesOpen() const;
  void SetModel(ModelSpec model);
  JobSize SizeWith(uint64_t train_examples) const;
  void SetSize(const JobSize& size);

  const JobContext& job_;
  const Options options_;
  std::optional<ModelSpec> model_;
  JobSize size_;
  Fingerprints fingerprints_;
  // A refused process comes again and again.
  LogLimit refusals_{absl::Seconds(1)};
};

}  // namespace weir

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "common/telemetry/logging.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/job/job.h"
#include "ps_server/coordinator/members/member_table.h"
#include "ps_server/coordinator/shards/shard_fleet.h"

namespace weir {

// The facts on which the processes of a job must agree: the config, the model, the size of the training set,
// and the servers. If neither ps:0 nor a checkpoint knows a fact, the first process that joins declares it,
// and every later Join must agree.
//
// The job is settled once a shard has begun or there is a checkpoint. Before that, model and size are only
// the declarations of the waiting processes, and are forgotten when these processes go.
//
// Workers must also agree on fingerprints (JoinRequest.fingerprints). The first worker that gives a name
// decides its value. If a worker does not give a name, the name is not compared. The values are settled once
// a worker that gave them is admitted.
//
// Belongs to the coordinator's queue.
class JobDeclaration {
 public:
  static constexpr int kMaxServers = 1024;

  // The parts outlive the object. `shards` is told the number of shards and, if ps:0 does not know them, the
  // addresses. `memory_bytes`: as in JobParts::Options. `size_changed`: the size of the training set is
  // known, or is no longer known.
  JobDeclaration(const JobContext& job, const Checkpoints& checkpoints, const MemberTable& members,
                 ShardFleet& shards, uint64_t memory_bytes, std::function<void()> size_changed)
      : job_(job),
        checkpoints_(checkpoints),
        members_(members),
        shards_(shards),
        knows_servers_(shards.addresses().size() > 1),
        memory_bytes_(memory_bytes),
        size_changed_(std::move(size_changed)) {}

  // Takes model and size from the newest checkpoint.
  void Restore();
  // Whether the process may join; if not, logs the reason. If the process may join and the model, the size or
  // the addresses are not known yet, takes them from the request.
  absl::Status Join(const v1::JoinRequest& request);
  // A worker that has declared its fingerprints was admitted, which settles them.
  void OnAdmitted() { fingerprints_settled_ = true; }
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
  absl::Status CheckFingerprints(const v1::JoinRequest& request) const;
  // Names for messages the declaration with which a Join must agree: before the job is settled, that of the
  // first process that waits (the first worker if `worker`), afterwards the job's own.
  std::string DeclaredBy(bool worker) const;
  bool settled() const { return shards_.begun() || checkpoints_.any(); }
  // Whether the next process that joins says where the servers are: ps:0 does not know, and none waits.
  bool AddressesOpen() const;
  template <typename Message>
  void DescribeSize(Message* message) const;
  void SetModel(ModelSpec model);
  JobSize SizeWith(uint64_t train_examples) const;
  void SetSize(const JobSize& size);

  const JobContext& job_;
  const Checkpoints& checkpoints_;
  const MemberTable& members_;
  ShardFleet& shards_;
  // Whether the cluster spec of ps:0 lists all servers.
  const bool knows_servers_;
  const uint64_t memory_bytes_;
  const std::function<void()> size_changed_;
  std::optional<ModelSpec> model_;
  JobSize size_;
  struct Fingerprint {
    std::string value;
    std::string task;  // of the first worker that gave the name
  };
  std::map<std::string, Fingerprint> fingerprints_;  // by name
  bool fingerprints_settled_ = false;
  // Limits the log lines, since a refused process tries again and again.
  LogLimit refusals_{absl::Seconds(1)};
};

}  // namespace weir

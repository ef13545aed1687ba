#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/compute_time.h"
#include "client/memberships.h"
#include "common/model/model_spec.h"
#include "common/threads/mutex.h"
#include "local/in_process_cluster.h"
#include "proto/job_config.pb.h"
#include "python/capi/weir_c.h"

namespace weir {

// This process as a member of a job: its place in the cluster, its servers if there is no cluster, and its
// membership, which may be lost and begun again.
//
// Thread safety: all functions are thread-safe.
class Member {
 public:
  // Starts servers if there is no cluster.
  static absl::StatusOr<std::shared_ptr<Member>> Open(v1::JobConfig config, const weir_options& options,
                                                      ModelSpec model);

  const v1::JobConfig& config() const { return config_; }
  const ModelSpec& model() const { return model_; }
  // The servers are in this process.
  bool has_servers() const { return has_servers_; }
  // Of the gradients that the program computes.
  ComputeTime& compute_time() { return *compute_time_; }
  // Takes as long as Client::Join(). `initial`: ClientOptions::initial_values.
  // Errors: too many memberships without progress were lost (Rejoining).
  absl::Status Join(const std::vector<ConstTensor>& initial);
  // Errors: FailedPrecondition: not joined, or left, or closed; or Forked().
  absl::StatusOr<std::shared_ptr<Client>> client() const;
  // OK: the work is done. Ends the membership, and the job of servers in this process (weir_leave()).
  absl::Status Leave(const absl::Status& failure);
  // Ends the membership and servers in this process, at the latest when the calls in flight have ended.
  void Close();

  // The checkpoint that the job of servers in this process continues from; "": there is none.
  const std::string& resumed_from() const { return resumed_from_; }
  // Reads its weights, in the model's order, and rows.
  absl::Status LoadResumed(const std::vector<MutableTensor>& tensors,
                           const std::vector<RowsToRead>& rows) const;

 private:
  Member(v1::JobConfig config, ModelSpec model, ClientOptions options,
         std::unique_ptr<InProcessCluster> local, std::string resumed_from)
      : config_(std::move(config)),
        model_(std::move(model)),
        has_servers_(local != nullptr),
        options_(std::move(options)),
        resumed_from_(std::move(resumed_from)),
        rejoining_(absl::Seconds(config_.cluster().start_seconds())),
        local_(std::move(local)) {}

  absl::StatusOr<std::shared_ptr<Client>> JoinedClient() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the job of servers in this process, and saves it first if it was asked to end.
  absl::Status EndJob(InProcessCluster& local, const absl::Status& failure) const;

  const v1::JobConfig config_;
  const ModelSpec model_;
  const bool has_servers_;
  // A client, which may outlive this object, has a share.
  const std::shared_ptr<ComputeTime> compute_time_ = std::make_shared<ComputeTime>();
  ClientOptions options_;
  const std::string resumed_from_;
  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Rejoining rejoining_ ABSL_GUARDED_BY(mutex_);
  // Why this process does not join again; OK: it may.
  absl::Status last_fence_ ABSL_GUARDED_BY(mutex_);
  // Null in a cluster. The client has a share of it, and so it outlives the client.
  std::shared_ptr<InProcessCluster> local_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Client> client_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir

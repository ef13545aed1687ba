#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "common/model/model_spec.h"
#include "common/threads/mutex.h"
#include "local/in_process_cluster.h"
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

  const ModelSpec& model() const { return model_; }
  // See common/protocol/mode_traits.h.
  bool overtakes_slow_pushes() const { return overtakes_slow_pushes_; }
  bool works_on_parts() const { return works_on_parts_; }
  // The servers are in this process.
  bool has_servers() const { return has_servers_; }
  // Takes as long as Client::Join(). `initial`: ClientOptions::initial_values.
  absl::Status Join(const std::vector<ConstTensor>& initial);
  // Errors: FailedPrecondition: not joined, or left, or closed.
  absl::StatusOr<std::shared_ptr<Client>> client() const;
  // OK: the work is done. Ends the membership, and the job of servers in this process (weir_leave()).
  absl::Status Leave(const absl::Status& failure);
  // Ends the membership and servers in this process, at the latest when the calls in flight have ended.
  void Close();

  // The checkpoint that the job of servers in this process continues from; "": there is none.
  const std::string& resumed_from() const { return resumed_from_; }
  // The embedding tables of the job's config.
  const std::vector<TableSpec>& tables() const { return tables_; }
  // Reads its weights, in the model's order, and rows.
  absl::Status LoadResumed(absl::Span<float> weights, const std::vector<RowsToRead>& rows) const;

 private:
  Member(ModelSpec model, std::vector<TableSpec> tables, ClientOptions options, bool overtakes_slow_pushes,
         bool works_on_parts, bool saves, std::unique_ptr<InProcessCluster> local, std::string resumed_from)
      : model_(std::move(model)),
        tables_(std::move(tables)),
        overtakes_slow_pushes_(overtakes_slow_pushes),
        works_on_parts_(works_on_parts),
        saves_(saves),
        has_servers_(local != nullptr),
        options_(std::move(options)),
        resumed_from_(std::move(resumed_from)),
        local_(std::move(local)) {}

  absl::StatusOr<std::shared_ptr<Client>> JoinedClient() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the job of servers in this process, and saves it first if it was asked to end.
  absl::Status EndJob(InProcessCluster& local, const absl::Status& failure) const;

  const ModelSpec model_;
  const std::vector<TableSpec> tables_;
  // saves_: the job has checkpoints.
  const bool overtakes_slow_pushes_, works_on_parts_, saves_, has_servers_;
  ClientOptions options_;
  const std::string resumed_from_;
  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  // Null in a cluster. The client has a share of it, and so it outlives the client.
  std::shared_ptr<InProcessCluster> local_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Client> client_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace weir

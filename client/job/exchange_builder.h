#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "client/exchange/shard_set.h"
#include "client/exchange/shared_weights.h"
#include "client/tables/key_cuts.h"
#include "client/tables/row_routes.h"
#include "client/tensors/gradient_memory.h"
#include "client/tensors/outgoing_gradient.h"
#include "client/tensors/residuals.h"
#include "client/tensors/tensor_map.h"
#include "client/tensors/wire_options.h"
#include "common/protocol/mode_traits.h"
#include "common/system/float_pool.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"

namespace weir {

// Checks that `values`, which may be empty, are the initial values that a worker with this model must upload.
// InvalidArgument: what is wrong.
absl::Status CheckInitialValues(const std::vector<ConstTensor>& values, const ModelSpec& model);

// Makes the pushes and pulls of the orders that a program gives to its client, and what the program gets of
// the shards' answers. Sends nothing. Thread-safe.
class ExchangeBuilder {
 public:
  using Answers = ShardSet::Answers;

  // `chunk_unit`: as WireOptions::chunk_unit. The options outlive this object.
  ExchangeBuilder(const ClientOptions& options, const ModelSpec& model, const v1::JobConfig& config,
                  const v1::JoinReply& reply, int64_t chunk_unit);

  const WireOptions& wire() const { return wire_; }
  const TensorMap& tensors() const { return tensors_; }
  const std::vector<TableSpec>& tables() const { return tables_; }
  std::shared_ptr<float> NewGradient() { return gradients_.Take(); }
  // Pulls of rows alone wait for nobody, at whatever version the weights are.
  bool rows_on_arrival() const { return rows_on_arrival_; }
  // consistency.on_nonfinite is "reject".
  bool rejects() const { return rejects_; }

  // The rows of both; null: they have none.
  absl::StatusOr<std::shared_ptr<const RowRoutes>> Rows(absl::Span<const RowGradients> push,
                                                        absl::Span<const RowsToRead> pull);
  // rows_finite: RowRoutes::finite().
  absl::StatusOr<ShardSet::Push> Push(ExchangeOrder::Push order, const absl::Status& rows_finite);
  // The push of ClientOptions::initial_values.
  absl::StatusOr<ShardSet::Push> InitialValues() const;
  // `alone`: the job has no other worker; for a pull in place. In sync, `step_opens` runs on the event loop
  // when the first tensor has arrived: all shards have published the step.
  absl::StatusOr<ShardSet::Pull> Pull(ExchangeOrder::Pull order, bool alone,
                                      std::function<void()> step_opens) const;
  // The result of a pull in place, which has filled `views`.
  WeightsView ViewOf(PullResult pull, std::vector<ShardView> views) const;

  // Why this push, which has been answered, is done without an update: values that are not finite, as the
  // gradient or a shard has found. Empty: the push was taken, or came too late.
  std::string RefusalOf(const OutgoingGradient& gradient, const Answers& answers) const;
  // The push of this gradient has failed: servers may still read the gradient's memory.
  void GiveUp(const OutgoingGradient& gradient);

 private:
  // The views that a pull in place fills, by shard.
  std::shared_ptr<std::vector<ShardView>> MakeViews(bool alone) const;

  const ClientOptions& options_;
  const ModeTraits& mode_;
  const uint32_t worker_, shards_;
  const WireOptions wire_;
  const bool backup_workers_;
  const bool rows_on_arrival_;
  const bool rejects_;
  // OutgoingGradient::Options::shard_checks. False if the answer may be that of a part that came late, or if
  // other workers must do a refused push again, because the shard counts the push as done.
  const bool shard_checks_;
  // ps:0, the last server to be upgraded, knows PushRequest.weight.
  const bool weighs_pushes_;
  const TensorMap tensors_;
  const std::vector<TableSpec> tables_;
  KeyCuts key_cuts_;
  // The buffers of views, by shard.
  std::vector<std::shared_ptr<FloatPool<>>> buffers_;
  GradientMemory gradients_;
  // Null: no error feedback.
  std::shared_ptr<Residuals> residuals_;
};

}  // namespace weir

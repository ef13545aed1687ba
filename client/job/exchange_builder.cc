#include "client/job/exchange_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/codec/floats.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/push_weight.h"

namespace weir {
namespace {

std::vector<TableSpec> TablesOf(const v1::JobConfig& config) {
  std::vector<TableSpec> tables;
  for (const v1::TableConfig& table : config.tables()) tables.push_back({table.name(), table.dim()});
  return tables;
}

}  // namespace

absl::Status CheckInitialValues(const std::vector<ConstTensor>& values, const ModelSpec& model) {
  if (values.empty() != !model.uploaded()) {
    return absl::InvalidArgumentError(
        model.uploaded() ? "the initial values of this model are uploaded, but this worker gives none"
                         : "this worker gives initial values, but those of this model are not uploaded");
  }
  if (values.empty()) return absl::OkStatus();
  WEIR_RETURN_IF_ERROR(TensorMap(model, 1).Match(values).status());
  for (const ConstTensor& tensor : values) {
    const auto n = static_cast<int64_t>(tensor.values.size());
    const int64_t bad = FirstNonFinite(tensor.values.data(), n);
    if (bad == n) continue;
    return absl::InvalidArgumentError(
        NonFiniteValue(absl::StrCat("the initial value ", tensor.name, "[", bad, "]"), tensor.values[bad]));
  }
  return absl::OkStatus();
}

ExchangeBuilder::ExchangeBuilder(const ClientOptions& options, const ModelSpec& model,
                                 const v1::JobConfig& config, const v1::JoinReply& reply, int64_t chunk_unit)
    : options_(options),
      mode_(TraitsOf(config)),
      worker_(reply.worker()),
      shards_(reply.num_shards()),
      wire_(WireOptions::From(config.wire(), chunk_unit)),
      backup_workers_(config.consistency().backup_workers() > 0),
      rows_on_arrival_(RowsOnArrival(config)),
      rejects_(config.consistency().on_nonfinite() == v1::ConsistencyConfig::ON_NONFINITE_REJECT),
      shard_checks_(shards_ == 1 && !backup_workers_ &&
                    config.consistency().on_nonfinite() != v1::ConsistencyConfig::ON_NONFINITE_SKIP_WORKER),
      weighs_pushes_(WeighsPushes(reply.protocol())),
      tensors_(model, shards_),
      tables_(TablesOf(config)),
      key_cuts_(tables_.size(), shards_),
      gradients_(model, wire_.shared_memory && wire_.push_dtype == v1::F32) {
  std::vector<int64_t> elements;
  for (uint32_t shard = 0; shard < shards_; ++shard) {
    elements.push_back(tensors_.partition().shard_elements(shard));
    buffers_.push_back(std::make_shared<FloatPool<>>(static_cast<size_t>(elements.back()), HeapFloats));
  }
  if (wire_.error_feedback) residuals_ = std::make_shared<Residuals>(elements, mode_.commits_steps);
}

absl::StatusOr<std::shared_ptr<const RowRoutes>> ExchangeBuilder::Rows(absl::Span<const RowGradients> push,
                                                                       absl::Span<const RowsToRead> pull) {
  if (push.empty() && pull.empty()) return nullptr;
  return RowRoutes::Create(tables_, key_cuts_, push, pull, {wire_.push_dtype, wire_.pull_dtype});
}

absl::StatusOr<ShardSet::Push> ExchangeBuilder::Push(ExchangeOrder::Push order,
                                                     const absl::Status& rows_finite) {
  if (order.work.examples == 0) return absl::InvalidArgumentError("a push needs work of at least 1 example");
  WEIR_RETURN_IF_ERROR(CheckPushWeight(order.weight, mode_.commits_steps));
  if (order.weight != 0 && !weighs_pushes_) {
    return absl::FailedPreconditionError(
        "weight: ps:0 cannot give a push a weight: that needs version 1.10 of the protocol, and it speaks an "
        "earlier one. Upgrade the servers");
  }
  const PullResult& base = order.base;
  if (base.no_base) {
    return absl::InvalidArgumentError(
        "`base` waited for nobody: it is a snapshot, or rows alone with consistency.tables \"async\". Give "
        "the result of a pull of weights at the push's clock");
  }
  if (base.past || base.versions.size() != shards_ || base.incarnations.size() != shards_) {
    return absl::InvalidArgumentError(
        "`base` is not the result of a pull of weights, so no server could tell which weights the gradient "
        "was computed from");
  }
  ShardSet::Push push{order.work, std::move(order.base), {}, order.weight};
  WEIR_ASSIGN_OR_RETURN(GradientTensors tensors, tensors_.Match(order.gradient));
  std::shared_ptr<const SharedSegment> memory;
  if (tensors.dtype == v1::F32) memory = gradients_.Find(tensors.begin);
  WEIR_ASSIGN_OR_RETURN(
      push.gradient,
      OutgoingGradient::Create({worker_, options_.task, push.work.clock, push.work.batch,
                                push.work.first_example, push.work.examples, rejects_, shard_checks_,
                                residuals_, push.work.part, push.base.incarnations, rows_finite},
                               tensors_, std::move(tensors), wire_, order.gate.get(), std::move(memory)));
  return push;
}

absl::StatusOr<ShardSet::Push> ExchangeBuilder::InitialValues() const {
  ShardSet::Push push;
  push.initial_values = true;
  WEIR_ASSIGN_OR_RETURN(GradientTensors tensors, tensors_.Match(options_.initial_values));
  WEIR_ASSIGN_OR_RETURN(push.gradient,
                        OutgoingGradient::Create({worker_, options_.task}, tensors_, std::move(tensors),
                                                 wire_.Exact(), /*gate=*/nullptr));
  return push;
}

absl::StatusOr<ShardSet::Pull> ExchangeBuilder::Pull(ExchangeOrder::Pull order, bool alone,
                                                     std::function<void()> step_opens) const {
  const uint64_t clock = order.clock;
  ShardSet::Pull pull;
  pull.request.set_clock(clock);
  if (mode_.commits_steps) pull.want.assign(shards_, clock);
  if (order.in_place) {
    pull.views = MakeViews(alone);
    return pull;
  }
  if (!order.rows.empty() && order.tensors.empty()) {
    if (order.on_weights) {
      return absl::InvalidArgumentError(
          "a pull of rows alone brings no tensors, so it takes no on_weights; give `tensors`, or none");
    }
    pull.request.set_header_only(true);
    pull.request.set_rows_alone(true);
    if (rows_on_arrival_) pull.want.clear();
    return pull;
  }
  WEIR_ASSIGN_OR_RETURN(pull.tensors, tensors_.Match(order.tensors));
  pull.on_tensor = std::move(order.on_weights);
  if (mode_.commits_steps && pull.on_tensor) {
    pull.on_tensor = [tell = std::move(pull.on_tensor), step_opens = std::move(step_opens),
                      told = false](size_t tensor) mutable {
      tell(tensor);
      if (!std::exchange(told, true)) step_opens();
    };
  }
  return pull;
}

std::shared_ptr<std::vector<ShardView>> ExchangeBuilder::MakeViews(bool alone) const {
  // This worker may make servers keep what it reads (WeightsView). Otherwise pushes, which make versions
  // while other workers hold theirs, would wait for the memory of those versions.
  const bool in_place = alone || (mode_.commits_steps && !backup_workers_);
  auto views = std::make_shared<std::vector<ShardView>>();
  for (uint32_t shard = 0; shard < shards_; ++shard) {
    views->emplace_back(tensors_.partition().shard_elements(shard), wire_.chunk_unit, buffers_[shard],
                        in_place);
  }
  return views;
}

WeightsView ExchangeBuilder::ViewOf(PullResult pull, std::vector<ShardView> views) const {
  if (pull.past) return WeightsView(std::move(pull), {}, nullptr, false);
  const auto shards = std::make_shared<const std::vector<ShardView>>(std::move(views));
  const bool in_place =
      std::all_of(shards->begin(), shards->end(), [](const ShardView& shard) { return shard.in_place(); });
  return WeightsView(std::move(pull), PiecesOf(tensors_, *shards), shards, in_place);
}

std::string ExchangeBuilder::RefusalOf(const OutgoingGradient& gradient, const Answers& answers) const {
  std::string refusal = gradient.refusal();
  // With backup workers a refused push may only have come late.
  for (size_t shard = 0; shard < answers.size() && refusal.empty() && !backup_workers_; ++shard) {
    const v1::PushReply& reply = answers[shard].push;
    // A push that is only too stale is no concern of consistency.on_nonfinite.
    if (reply.outcome() == v1::REFUSED && reply.staleness() == 0)
      refusal = absl::StrCat(reply.reason(), " (ps:", shard, ")");
  }
  return refusal;
}

void ExchangeBuilder::GiveUp(const OutgoingGradient& gradient) {
  if (gradient.memory() != nullptr) gradients_.GiveUp(*gradient.memory());
}

}  // namespace weir

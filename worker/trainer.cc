#include "worker/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "common/status_macros.h"
#include "common/telemetry/logging.h"
#include "worker/model/gradient_norm.h"

namespace weir {
namespace {

template <typename Tensor, typename Float>
std::vector<Tensor> Cut(const ModelSpec& spec, absl::Span<Float> flat) {
  std::vector<Tensor> tensors;
  size_t offset = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    const size_t elements = static_cast<size_t>(tensor.elements());
    tensors.push_back({tensor.name, flat.subspan(offset, elements)});
    offset += elements;
  }
  return tensors;
}

}  // namespace

std::vector<MutableTensor> TensorsOf(const ModelSpec& spec, absl::Span<float> flat) {
  return Cut<MutableTensor>(spec, flat);
}
std::vector<ConstTensor> TensorsOf(const ModelSpec& spec, absl::Span<const float> flat) {
  return Cut<ConstTensor>(spec, flat);
}

Trainer::Trainer(const v1::JobConfig& config, const Dataset& train, Replicas* replicas, Client* client)
    : config_(config),
      train_(train),
      replicas_(replicas),
      model_(&replicas->model()),
      client_(client),
      order_(static_cast<int32_t>(train.size()), config.seed()),
      incoming_(std::make_shared<std::vector<float>>(model_->weights().size())) {}

absl::Status Trainer::Run() {
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const std::optional<Work> work, client_->NextWork());
    if (!work.has_value()) return absl::OkStatus();
    WEIR_RETURN_IF_ERROR(Step(*work));
  }
}

absl::Status Trainer::Step(const Work& work) {
  WEIR_ASSIGN_OR_RETURN(const bool loaded, LoadWeights(work.clock));
  if (!loaded) return absl::OkStatus();
  WEIR_RETURN_IF_ERROR(ComputeGradient(work));
  HoldBack(work);
  client_->SetProgress(progress_);

  WEIR_ASSIGN_OR_RETURN(Outgoing* const out, FreeBuffer());
  out->gradient->assign(model_->gradients().begin(), model_->gradients().end());
  const auto gradient = TensorsOf(model_->spec(), absl::MakeConstSpan(*out->gradient));
  // With an exchange in the air this is a part of the same step that a dead worker left.
  if (work.last_of_clock && exchange_ == nullptr) {
    exchange_ = out;
    exchange_clock_ = work.clock + 1;
    out->exchange =
        client_->PushPull(work, base_, gradient, TensorsOf(model_->spec(), absl::MakeSpan(*incoming_)));
    out->exchange->OnReady([sent = out->gradient, received = incoming_](const auto&) {});
  } else {
    out->push = client_->Push(work, base_, gradient);
    out->push->OnReady([sent = out->gradient](const auto&) {});
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Trainer::LoadWeights(uint64_t clock) {
  if (clock_ == clock) return true;
  PullResult pulled;
  if (exchange_ != nullptr) {
    const absl::StatusOr<PushPullResult>& result = exchange_->exchange->Get();
    if (!result.ok()) return result.status();
    progressed_ = true;
    const bool wanted = exchange_clock_ == clock && !result->pull.past;
    if (wanted) pulled = result->pull;
    exchange_->exchange.reset();
    exchange_ = nullptr;
    if (!wanted) return LoadWeights(clock);
  } else {
    const Future<PullResult> pull =
        client_->Pull(clock, TensorsOf(model_->spec(), absl::MakeSpan(*incoming_)));
    if (!pull.Get().ok()) return pull.Get().status();
    pulled = *pull.Get();
    if (pulled.past) return false;
  }
  std::copy(incoming_->begin(), incoming_->end(), model_->weights().begin());
  base_ = std::move(pulled);
  clock_ = clock;
  return true;
}

absl::Status Trainer::ComputeGradient(const Work& work) {
  indexes_.resize(work.examples);
  order_.Fill(static_cast<int64_t>(work.first_example), absl::MakeSpan(indexes_));
  WEIR_ASSIGN_OR_RETURN(const double loss,
                        replicas_->ComputeGradient(train_, indexes_, config_.train().micro_batches(),
                                                   config_.seed(), work.batch));
  ClipToNorm(config_.train().clip_norm(), model_->gradients());
  // A NaN would stay in the sum for ever, also where the job goes on (consistency.on_nonfinite).
  if (std::isfinite(loss)) {
    progress_.examples += work.examples;
    progress_.batches += 1;
    progress_.loss_sum += loss;
  }
  return absl::OkStatus();
}

void Trainer::HoldBack(const Work& work) const {
  const v1::DebugConfig& debug = config_.debug();
  if (debug.worker_delay() <= 0) return;
  if (debug.has_delayed_worker() && debug.delayed_worker() != client_->worker()) return;
  const auto bits = Philox(RandomKey(config_.seed(), "worker_delay"), client_->worker(), work.clock);
  std::this_thread::sleep_for(std::chrono::duration<double>(debug.worker_delay() * UniformFloat(bits[0])));
}

absl::StatusOr<Trainer::Outgoing*> Trainer::FreeBuffer() {
  Outgoing* free = nullptr;
  for (const auto& out : outgoing_) {
    if (out->push.has_value() && out->push->ready()) {
      const absl::StatusOr<PushResult> result = out->push->Get();
      out->push.reset();
      if (!result.ok()) return result.status();
      if (!result->applied) LogWarning("a push was not applied: ", result->reason);
    }
    if (!out->push.has_value() && !out->exchange.has_value()) free = out.get();
  }
  if (free == nullptr) free = outgoing_.emplace_back(std::make_unique<Outgoing>()).get();
  return free;
}

}  // namespace weir

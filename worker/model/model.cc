#include "worker/model/model.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>
#include <utility>

#include "common/base/statistics.h"
#include "common/base/status_macros.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

size_t Index(int position) { return static_cast<size_t>(position); }

const float* FirstOf(const std::vector<const float*>& x) { return x.empty() ? nullptr : x[0]; }

double SumOfSquares(absl::Span<const float> values) {
  // Eight running sums: an order that is fixed and that the compiler can vectorise.
  double sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  for (size_t lane = 0; i < values.size(); ++i, ++lane) sums[lane] += double{values[i]} * values[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

}  // namespace

absl::Status RepeatedCalls::Run(ComputeBackend* backend, const Key& key, const std::function<void()>& calls) {
  const auto found = captured_.find(key);
  if (found == captured_.end()) {
    if (captured_.size() < kMost) captured_[key] = nullptr;
    calls();
    return absl::OkStatus();
  }
  if (found->second == nullptr) {
    auto captured = backend->Capture(calls);
    if (!captured.ok()) {
      calls();
      return captured.status();
    }
    found->second = *std::move(captured);
  }
  backend->Replay(found->second.get());
  return absl::OkStatus();
}

void Model::Bind(float* weights, float* gradients) {
  host_weights_ = weights;
  host_gradients_ = gradients;
}

void Model::ZeroGradients() { backend_->Fill(spec_.elements(), 0, device_gradients()); }

void Model::CopyToDevice(const Batch& batch, const DeviceBatch& to, uint64_t after) {
  const auto copy = [&](const auto& from, const auto& to) {
    if (from.empty()) return;
    std::copy(from.begin(), from.end(), to.host());
    backend_->CopyToDevice(to.get(), to.host(), from.size() * sizeof(from[0]), after);
  };
  copy(batch.features, to.features);
  copy(batch.targets, to.targets);
  copy(batch.labels, to.labels);
}

void Model::Prepare(const Batch& batch) {
  if (backend_->unified()) return;
  // The pass that used this memory was over when the current pass began.
  CopyToDevice(batch, batches_[1 - turn_], pass_began_);
  next_batch_ = &batch;
}

absl::Status Model::Forward(const Batch& batch, const Pass& pass, float gradient_scale,
                            const Traffic& traffic) {
  const float *features = batch.features.data(), *targets = batch.targets.data();
  const int32_t* labels = batch.labels.data();
  if (!backend_->unified()) {
    // Earlier passes use neither the device's memory nor the staged copies after this mark.
    pass_began_ = backend_->Record();
    if (next_batch_ == &batch) {
      turn_ = 1 - turn_;
    } else {
      CopyToDevice(batch, batches_[turn_], pass_began_);
    }
    next_batch_ = nullptr;
    features = batches_[turn_].features.get();
    targets = batches_[turn_].targets.get();
    labels = batches_[turn_].labels.get();
  }
  bool ahead = false;
  if (traffic.new_weights) {
    ahead = ahead_ != nullptr && ahead_.get() == host_weights_;
    if (ahead) std::swap(weights_.device, weights_ahead_);
    ahead_ = nullptr;
  }
  for (size_t first = 0, end; first < stages_.size(); first = end) {
    end = first + 1;
    while (end < stages_.size() && stages_[end].tensors == 0) ++end;
    for (size_t i = first; i < end; ++i) {
      Stage& stage = stages_[i];
      stage.x.clear();
      for (const int input : stage.inputs) {
        stage.x.push_back(input == kFeatures ? features : stages_[Index(input)].y);
      }
      stage.y = stage.layer->is_view() ? stage.x[0] : stage.output.get();
    }
    WEIR_RETURN_IF_ERROR(BringWeights(stages_[first], traffic, ahead));
    const bool last = end == stages_.size();
    const RepeatedCalls::Key key(pass.n, gradient_scale, false, FirstOf(stages_[first].x),
                                 device_weights() + stages_[first].offset, last ? features : nullptr);
    Run(first, end, pass, &stages_[first].forward, key, [=] {
      for (size_t i = first; i < end; ++i) {
        const Stage& stage = stages_[i];
        if (stage.layer->is_view()) continue;
        stage.layer->Forward(backend_, pass, device_weights() + stage.offset, stage.x, stage.output.get());
      }
      if (!last) return;
      const float* const y = stages_.back().y;
      float* const slope = pass.training ? between_[0].get() : nullptr;
      switch (loss_) {
        case v1::ModelConfig::LOSS_MEAN_SQUARED_ERROR:
          return backend_->MeanSquaredError(pass.n, outputs_, y, targets, gradient_scale, losses_.get(),
                                            slope);
        case v1::ModelConfig::LOSS_SIGMOID_CROSS_ENTROPY:
          return backend_->SigmoidCrossEntropy(pass.n, y, targets, gradient_scale, losses_.get(), slope);
        case v1::ModelConfig::LOSS_UNSPECIFIED:  // refused with the config
        case v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY:
          break;
      }
      backend_->SoftmaxCrossEntropy(pass.n, outputs_, y, labels, gradient_scale, losses_.get(), slope);
    });
  }
  if (!backend_->unified()) {
    backend_->CopyToHost(losses_.host(), losses_.get(), static_cast<size_t>(pass.n) * sizeof(float));
  }
  return absl::OkStatus();
}

absl::Status Model::BringWeights(const Stage& stage, const Traffic& traffic, bool ahead) {
  if (stage.tensors == 0 || !traffic.new_weights) return absl::OkStatus();
  if (traffic.await_weights) {
    WEIR_RETURN_IF_ERROR(traffic.await_weights(stage.first_tensor, stage.first_tensor + stage.tensors));
  }
  if (ahead) {
    backend_->Join(stage.copied_ahead);
  } else if (!backend_->unified()) {
    backend_->CopyToDevice(weights_.get() + stage.offset, host_weights_ + stage.offset,
                           static_cast<size_t>(stage.elements) * sizeof(float), pass_began_);
  }
  return absl::OkStatus();
}

template <typename Calls>
void Model::Run(size_t first, size_t end, const Pass& pass, RepeatedCalls* repeated,
                const RepeatedCalls::Key& key, const Calls& calls) {
  bool some = false, random = false;
  for (size_t i = first; i < end; ++i) {
    some |= !stages_[i].layer->is_view();
    random |= stages_[i].layer->is_random();
  }
  if (!replays_ || !pass.training || !some || random) return calls();
  if (const absl::Status status = repeated->Run(backend_, key, calls); !status.ok()) {
    LogWarning(backend_->name(), ": steps are not replayed, but made call by call: ", status.message());
    replays_ = false;
  }
}

void Model::CopyGradientsToHost(const Stage& stage) {
  const auto elements = static_cast<size_t>(stage.elements);
  if (rounds_gradients_) {
    backend_->CopyToHost(reinterpret_cast<uint16_t*>(host_gradients_) + stage.offset,
                         rounded_gradients_.get() + stage.offset, elements * sizeof(uint16_t));
  } else {
    backend_->CopyToHost(host_gradients_ + stage.offset, gradients_.get() + stage.offset,
                         elements * sizeof(float));
  }
}

absl::Status Model::Backward(const Pass& pass, const Traffic& traffic) {
  const auto report = [&](const Stage& stage) {
    if (!traffic.last || !traffic.gradient_ready) return;
    for (size_t i = stage.tensors; i > 0; --i) traffic.gradient_ready(stage.first_tensor + i - 1);
  };
  // Gradients on their way to the host, and the marks behind them. This thread waits for them when all work
  // is queued, so that the device never waits for this thread.
  std::vector<std::pair<const Stage*, uint64_t>> copied;
  for (size_t end = stages_.size(), first; end > first_trained_; end = first) {
    first = end - 1;
    while (stages_[first].tensors == 0 && first > first_trained_) --first;
    const Stage& stage = stages_[first];
    const bool rounds = rounds_gradients_ && traffic.last;
    const RepeatedCalls::Key key(pass.n, 0, rounds, FirstOf(stage.x), device_weights() + stage.offset,
                                 nullptr);
    Run(first, end, pass, &stages_[first].backward, key, [=] {
      std::vector<float*> dx;
      for (size_t i = end; i-- > first;) {
        const Stage& at = stages_[i];
        if (!at.trained || at.layer->is_view()) continue;
        dx.clear();
        for (const InputGradient& to : at.input_gradients) {
          dx.push_back(to.buffer < 0 ? nullptr : between_[Index(to.buffer)].get());
        }
        at.layer->Backward(backend_, pass, device_weights() + at.offset, at.x, at.y,
                           between_[Index(at.gradient)].get(), dx, device_gradients() + at.offset);
        for (size_t j = 0; j < dx.size(); ++j) {
          if (!at.input_gradients[j].adds) continue;
          const Stage& from = stages_[Index(at.inputs[j])];
          backend_->Axpy(pass.n * from.output_elements, 1, dx[j], between_[Index(from.gradient)].get());
        }
      }
      if (!rounds) return;
      const Stage& done = stages_[first];
      backend_->RoundToBfloat16(done.elements, gradients_.get() + done.offset,
                                rounded_gradients_.get() + done.offset);
    });
    if (backend_->unified()) {
      report(stage);
    } else if (traffic.last) {
      CopyGradientsToHost(stage);
      copied.emplace_back(&stage, backend_->Record());
    }
  }
  if (traffic.queued) traffic.queued();
  pass_queued_ = backend_->Record();
  for (const auto& [stage, mark] : copied) {
    WEIR_RETURN_IF_ERROR(Wait(mark, traffic));
    report(*stage);
  }
  return absl::OkStatus();
}

bool Model::CopyWeightsAhead(const Traffic& traffic) {
  std::shared_ptr<const float> next = traffic.next_weights();
  if (next == nullptr) return false;
  for (Stage& stage : stages_) {
    if (stage.tensors == 0) continue;
    // Passes before the current one have used that memory.
    backend_->CopyAhead(weights_ahead_.get() + stage.offset, next.get() + stage.offset,
                        static_cast<size_t>(stage.elements) * sizeof(float), pass_began_);
    stage.copied_ahead = backend_->Record();
  }
  ahead_ = std::move(next);
  return true;
}

absl::Status Model::Wait(uint64_t mark, const Traffic& traffic) {
  if (keeps_weights_ahead_ && traffic.last && traffic.next_weights) {
    while (ahead_ == nullptr && !backend_->Passed(mark)) {
      // Drivers wait for a mark in the same way.
      if (!CopyWeightsAhead(traffic)) std::this_thread::yield();
    }
  }
  return backend_->Wait(mark);
}

absl::StatusOr<double> Model::SumLosses(int64_t n) {
  WEIR_RETURN_IF_ERROR(backend_->Wait(pass_queued_));
  const float* const losses = losses_.host();
  return std::accumulate(losses, losses + n, 0.0);
}

absl::StatusOr<double> Model::ForwardBackward(const Batch& batch, int64_t divisor,
                                              const RandomContext& random, const Traffic& traffic) {
  const Pass pass{batch.n, /*training=*/true, random, &batch, rows_, row_gradients_};
  absl::Status status = Forward(batch, pass, 1.0f / static_cast<float>(divisor), traffic);
  if (status.ok() && traffic.last && traffic.forward_done) status = traffic.forward_done();
  if (status.ok()) status = Backward(pass, traffic);
  if (!status.ok()) {
    // Queued work uses the caller's memory. If the wait fails, so does the next call.
    static_cast<void>(backend_->Wait(backend_->Record()));
    return status;
  }
  return SumLosses(batch.n);
}

absl::StatusOr<Evaluation> Model::Evaluate(const Dataset& dataset,
                                           absl::FunctionRef<absl::Status()> goes_on) {
  Evaluation result;
  result.examples = dataset.size();
  const bool binary = loss_ == v1::ModelConfig::LOSS_SIGMOID_CROSS_ENTROPY;
  int64_t right = 0;
  std::vector<Score> scores;
  Batch batch;
  std::vector<int32_t> indexes;
  Traffic traffic;
  for (int64_t first = 0; first < dataset.size(); first += batch.n) {
    WEIR_RETURN_IF_ERROR(goes_on());
    indexes.resize(static_cast<size_t>(std::min(max_batch_, dataset.size() - first)));
    std::iota(indexes.begin(), indexes.end(), static_cast<int32_t>(first));
    dataset.Gather(indexes, &batch);
    const Pass pass{batch.n, /*training=*/false, {}, &batch, rows_, nullptr};
    WEIR_RETURN_IF_ERROR(Forward(batch, pass, 0, traffic));
    traffic.new_weights = false;
    if (binary && !backend_->unified()) {
      backend_->CopyToHost(staged_logits_.get(), stages_.back().y, indexes.size() * sizeof(float));
    }
    if (dataset.classes() > 0) {
      backend_->Argmax(batch.n, outputs_, stages_.back().y, predictions_.get());
      if (!backend_->unified()) {
        backend_->CopyToHost(predictions_.host(), predictions_.get(), indexes.size() * sizeof(int32_t));
      }
    }
    pass_queued_ = backend_->Record();
    WEIR_ASSIGN_OR_RETURN(const double losses, SumLosses(batch.n));
    result.loss += losses;
    const int32_t* predictions = predictions_.host();
    for (size_t i = 0; i < batch.labels.size(); ++i) right += predictions[i] == batch.labels[i];
    if (binary) {
      const float* const logits = backend_->unified() ? stages_.back().y : staged_logits_.get();
      for (size_t i = 0; i < indexes.size(); ++i) {
        right += (logits[i] > 0) == (batch.targets[i] == 1);
        scores.push_back({logits[i], batch.targets[i] == 1});
      }
    }
  }
  const double n = static_cast<double>(std::max<int64_t>(1, dataset.size()));
  result.loss /= n;
  if (dataset.classes() > 0 || binary) result.accuracy = static_cast<double>(right) / n;
  result.auc = AreaUnderCurve(std::move(scores));
  return result;
}

void ClipValues(float limit, absl::Span<const absl::Span<float>> pieces) {
  if (limit == 0) return;
  for (const absl::Span<float> piece : pieces) {
    for (float& value : piece) value = std::clamp(value, -limit, limit);
  }
}

double ClipToNorm(double max_norm, absl::Span<const absl::Span<float>> pieces) {
  double squares = 0;
  for (const absl::Span<float> piece : pieces) squares += SumOfSquares(piece);
  const double norm = std::sqrt(squares);
  if (max_norm > 0 && norm > max_norm && std::isfinite(norm)) {
    const float scale = static_cast<float>(max_norm / norm);
    for (const absl::Span<float> piece : pieces) {
      for (float& value : piece) value *= scale;
    }
  }
  return norm;
}

}  // namespace weir

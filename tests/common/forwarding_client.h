#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/client.h"

namespace weir {

// Hands each call on to another client, which outlives this one: for those that change some.
class ForwardingClient : public Client {
 public:
  explicit ForwardingClient(Client* to) : to_(to) {}

  absl::StatusOr<std::optional<Work>> NextWork() override { return to_->NextWork(); }
  Future<PullResult> Pull(uint64_t clock, std::vector<MutableTensor> tensors, OnWeights on_weights) override {
    return to_->Pull(clock, std::move(tensors), std::move(on_weights));
  }
  Future<PushResult> Push(const Work& work, const PullResult& base, std::vector<ConstTensor> gradient,
                          std::shared_ptr<GradientGate> gate) override {
    return to_->Push(work, base, std::move(gradient), std::move(gate));
  }
  std::shared_ptr<float> NewGradient() override { return to_->NewGradient(); }
  Future<PushPullResult> PushPull(const Work& work, const PullResult& base, std::vector<ConstTensor> gradient,
                                  std::vector<MutableTensor> weights, std::shared_ptr<GradientGate> gate,
                                  OnWeights on_weights) override {
    return to_->PushPull(work, base, std::move(gradient), std::move(weights), std::move(gate),
                         std::move(on_weights));
  }
  Future<WeightsView> PullInPlace(uint64_t clock) override { return to_->PullInPlace(clock); }
  Future<PushPullView> PushPullInPlace(const Work& work, const PullResult& base,
                                       std::vector<ConstTensor> gradient,
                                       std::shared_ptr<GradientGate> gate) override {
    return to_->PushPullInPlace(work, base, std::move(gradient), std::move(gate));
  }
  Future<PullResult> PullSnapshot(std::vector<MutableTensor> tensors) override {
    return to_->PullSnapshot(std::move(tensors));
  }
  bool draining() const override { return to_->draining(); }
  absl::StatusOr<bool> WaitDraining(std::chrono::steady_clock::time_point deadline) override {
    return to_->WaitDraining(deadline);
  }
  bool leading() const override { return to_->leading(); }
  absl::StatusOr<bool> AwaitsEvaluation() override { return to_->AwaitsEvaluation(); }
  absl::StatusOr<std::optional<EvaluationOrder>> WaitEvaluation(
      std::chrono::steady_clock::time_point deadline) override {
    return to_->WaitEvaluation(deadline);
  }
  void SetProgress(const Progress& progress) override { to_->SetProgress(progress); }
  absl::Status Report(const PullResult& of, const EvaluationResult& result) override {
    return to_->Report(of, result);
  }
  absl::Status Leave(const absl::Status& failure) override { return to_->Leave(failure); }
  uint32_t worker() const override { return to_->worker(); }
  uint64_t start_clock() const override { return to_->start_clock(); }
  const ModelSpec& model() const override { return to_->model(); }

 private:
  Client* const to_;
};

}  // namespace weir

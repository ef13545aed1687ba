#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/client.h"

namespace weir {

// Passes each call on to another client, which outlives this one. Derived classes change some of the calls.
class ForwardingClient : public Client {
 public:
  explicit ForwardingClient(Client* to) : to_(to) {}

  absl::StatusOr<std::optional<Work>> NextWork() override { return to_->NextWork(); }
  std::optional<absl::StatusOr<std::optional<Work>>> NextWorkBy(
      std::chrono::steady_clock::time_point deadline) override {
    return to_->NextWorkBy(deadline);
  }
  Future<ExchangeResult> Exchange(ExchangeOrder order) override { return to_->Exchange(std::move(order)); }
  std::shared_ptr<float> NewGradient() override { return to_->NewGradient(); }
  bool gradient_has_chunks() const override { return to_->gradient_has_chunks(); }
  Future<PullResult> PullSnapshot(std::vector<MutableTensor> tensors, std::vector<RowsToRead> rows) override {
    return to_->PullSnapshot(std::move(tensors), std::move(rows));
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
  absl::Status Log(absl::Span<const LoggedValue> values, bool last, double weight) override {
    return to_->Log(values, last, weight);
  }
  absl::Status LogScores(absl::string_view name, absl::Span<const float> scores,
                         absl::Span<const float> labels) override {
    return to_->LogScores(name, scores, labels);
  }
  absl::Status Stop(const std::string& reason) override { return to_->Stop(reason); }
  absl::Status Leave(const absl::Status& failure) override { return to_->Leave(failure); }
  uint32_t worker() const override { return to_->worker(); }
  JobSteps steps() const override { return to_->steps(); }
  uint64_t start_clock() const override { return to_->start_clock(); }
  bool progressed() const override { return to_->progressed(); }
  uint64_t job() const override { return to_->job(); }
  const ModelSpec& model() const override { return to_->model(); }
  const std::vector<TableSpec>& tables() const override { return to_->tables(); }

 private:
  Client* const to_;
};

}  // namespace weir

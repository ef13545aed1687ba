#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/client.h"

namespace weir {

// A client without servers that has no work and does nothing. Derived classes do what their test needs.
class StubClient : public Client {
 public:
  explicit StubClient(ModelSpec model = {}) : model_(std::move(model)) {}

  absl::StatusOr<std::optional<Work>> NextWork() override { return std::nullopt; }
  std::optional<absl::StatusOr<std::optional<Work>>> NextWorkBy(
      std::chrono::steady_clock::time_point) override {
    return NextWork();
  }
  Future<ExchangeResult> Exchange(ExchangeOrder) override { return Unused<ExchangeResult>(); }
  std::shared_ptr<float> NewGradient() override { return nullptr; }
  bool gradient_has_chunks() const override { return true; }
  Future<PullResult> PullSnapshot(std::vector<MutableTensor>, std::vector<RowsToRead>) override {
    return Unused<PullResult>();
  }
  bool draining() const override { return false; }
  absl::StatusOr<bool> WaitDraining(std::chrono::steady_clock::time_point) override { return false; }
  bool leading() const override { return false; }
  absl::StatusOr<bool> AwaitsEvaluation() override { return false; }
  absl::StatusOr<std::optional<EvaluationOrder>> WaitEvaluation(
      std::chrono::steady_clock::time_point) override {
    return std::nullopt;
  }
  void SetProgress(const Progress&) override {}
  absl::Status Report(const PullResult&, const EvaluationResult&) override { return absl::OkStatus(); }
  absl::Status Log(absl::Span<const LoggedValue>, bool, double) override { return absl::OkStatus(); }
  absl::Status LogScores(absl::string_view, absl::Span<const float>, absl::Span<const float>) override {
    return absl::OkStatus();
  }
  absl::Status Stop(const std::string&) override { return absl::OkStatus(); }
  absl::Status Leave(const absl::Status&) override { return absl::OkStatus(); }
  uint32_t worker() const override { return 0; }
  JobSteps steps() const override { return {}; }
  uint64_t start_clock() const override { return 0; }
  bool progressed() const override { return false; }
  uint64_t job() const override { return 0; }
  const ModelSpec& model() const override { return model_; }
  const std::vector<TableSpec>& tables() const override { return tables_; }

 protected:
  template <typename T>
  static Future<T> Unused() {
    Promise<T> promise;
    promise.Set(absl::UnimplementedError("not used here"));
    return promise.future();
  }

 private:
  const ModelSpec model_;
  const std::vector<TableSpec> tables_;
};

}  // namespace weir

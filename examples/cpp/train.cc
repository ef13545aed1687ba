// Logistic regression with a gradient of its own, through the client in C++:
//
//   weir up --ps=2 --workers=2 train.json -- build/train train.json
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <random>
#include <vector>

#include "client/client.h"
#include "client/task.h"
#include "common/base/status_macros.h"
#include "common/program/exit_codes.h"

namespace {

constexpr int kExamples = 2000, kInputs = 20;

// Two clouds of points that overlap a little; the same for every worker.
struct Data {
  std::vector<float> x = std::vector<float>(kExamples * kInputs);  // row by row
  std::vector<float> y = std::vector<float>(kExamples);            // 0 or 1
};

Data MakeData() {
  Data data;
  // Not std::normal_distribution: each library has its own.
  std::mt19937 bits(1);
  const auto even = [&] { return static_cast<float>(bits()) / 4294967296.0f * 2 - 1; };
  for (int i = 0; i < kExamples; ++i) {
    data.y[i] = i % 2 == 0 ? 0.0f : 1.0f;
    for (int j = 0; j < kInputs; ++j) {
      data.x[i * kInputs + j] = even() + (data.y[i] - 0.5f) * (j % 2 == 0 ? 0.5f : -0.5f);
    }
  }
  return data;
}

// The tensors "weight" and "bias", end to end.
weir::ModelSpec Model() {
  weir::ModelSpec model;
  model.tensors.resize(2);
  model.tensors[0].name = "weight";
  model.tensors[0].shape = {kInputs};
  model.tensors[1].name = "bias";
  return model;
}

// The probability that the label of example i is 1.
float Predict(const Data& data, int i, const std::vector<float>& weights) {
  float sum = weights[kInputs];
  for (int j = 0; j < kInputs; ++j) sum += data.x[i * kInputs + j] * weights[j];
  return 1 / (1 + std::exp(-sum));
}

// Puts the gradient of the mean loss over the work's examples into `gradient`; returns that loss.
double ComputeGradient(const Data& data, const weir::Work& work, const std::vector<float>& weights,
                       std::vector<float>* gradient) {
  std::fill(gradient->begin(), gradient->end(), 0.0f);
  double loss = 0;
  // Each epoch in the same order, since the data have none.
  for (uint64_t n = 0; n < work.examples; ++n) {
    const int i = static_cast<int>((work.first_example + n) % kExamples);
    const float p = Predict(data, i, weights);
    const float error = (p - data.y[i]) / static_cast<float>(work.examples);
    for (int j = 0; j < kInputs; ++j) (*gradient)[j] += error * data.x[i * kInputs + j];
    (*gradient)[kInputs] += error;
    loss -= std::log((data.y[i] > 0 ? p : 1 - p) + 1e-9);
  }
  return loss / static_cast<double>(work.examples);
}

weir::EvaluationResult Evaluate(const Data& data, const std::vector<float>& weights) {
  weir::EvaluationResult result;
  int right = 0;
  for (int i = 0; i < kExamples; ++i) {
    const float p = Predict(data, i, weights);
    right += (p > 0.5f) == (data.y[i] > 0);
    result.test_loss -= std::log((data.y[i] > 0 ? p : 1 - p) + 1e-9) / kExamples;
  }
  result.test_accuracy = static_cast<double>(right) / kExamples;
  result.examples = kExamples;
  result.final = true;
  return result;
}

absl::Status Train(const char* job) {
  const Data data = MakeData();
  const weir::ModelSpec model = Model();
  weir::TaskFlags flags;
  flags.config = job;
  WEIR_ASSIGN_OR_RETURN(weir::ClientOptions options, weir::OptionsOfTask(flags));
  options.train_examples = kExamples;
  WEIR_ASSIGN_OR_RETURN(const auto client, weir::Client::Join(options, model));
  std::vector<float> weights(model.elements()), gradient(model.elements());
  std::optional<uint64_t> have;  // the clock of the weights at hand
  weir::PullResult base;         // which weights these are
  weir::Progress progress;
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const std::optional<weir::Work> work, client->NextWork());
    if (!work.has_value()) break;  // the job is done
    if (have != work->clock) {
      const auto tensors = TensorsOf(model, absl::MakeSpan(weights));
      WEIR_ASSIGN_OR_RETURN(base, client->Pull(work->clock, tensors).Get());
      if (base.past) continue;  // the others were faster
      have = work->clock;
    }
    const double loss = ComputeGradient(data, *work, weights, &gradient);
    const auto tensors = TensorsOf(model, absl::MakeConstSpan(gradient));
    WEIR_RETURN_IF_ERROR(client->Push(*work, base, tensors).Get().status());
    progress.examples += work->examples;
    progress.batches += 1;
    progress.loss_sum += loss * static_cast<double>(work->examples);
    client->SetProgress(progress);
  }
  WEIR_ASSIGN_OR_RETURN(const bool evaluate, client->AwaitsEvaluation());
  if (evaluate) {
    WEIR_ASSIGN_OR_RETURN(const weir::PullResult of,
                          client->PullSnapshot(TensorsOf(model, absl::MakeSpan(weights))).Get());
    const weir::EvaluationResult result = Evaluate(data, weights);
    std::printf("accuracy on the training set: %.3f\n", result.test_accuracy);
    WEIR_RETURN_IF_ERROR(client->Report(of, result));
  }
  return client->Leave();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: train JOB\n");
    return weir::kExitUsage;
  }
  const absl::Status status = Train(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "train: %s\n", std::string(status.message()).c_str());
  return weir::ExitCodeOf(status);
}

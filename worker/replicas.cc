#include "worker/replicas.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace weir {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Precision Replicas::PrecisionOf(const v1::ComputeConfig& config) {
  switch (config.precision()) {
    case v1::ComputeConfig::PRECISION_TF32:
      return Precision::kTf32;
    case v1::ComputeConfig::PRECISION_BF16:
      return Precision::kBfloat16;
    case v1::ComputeConfig::PRECISION_UNSPECIFIED:  // refused where configs are read
    case v1::ComputeConfig::PRECISION_FLOAT32:
      break;
  }
  return Precision::kFloat32;
}

absl::StatusOr<std::unique_ptr<Replicas>> Replicas::Create(const v1::JobConfig& config, const Dataset& train,
                                                           const std::vector<std::string>& devices) {
  const int64_t share = DivideUp(config.data().batch_size(), static_cast<int64_t>(devices.size()));
  std::vector<Replica> replicas;
  for (const std::string& device : devices) {
    ComputeOptions options;
    options.device = device;
    options.threads = static_cast<int>(config.compute().threads());
    options.precision = PrecisionOf(config.compute());
    Replica replica;
    WEIR_ASSIGN_OR_RETURN(replica.backend, MakeComputeBackend(options));
    WEIR_ASSIGN_OR_RETURN(replica.model, Model::Create(config.model(), train.shape(), train.outputs(), share,
                                                       replica.backend.get()));
    replicas.push_back(std::move(replica));
  }
  return std::unique_ptr<Replicas>(new Replicas(std::move(replicas)));
}

absl::StatusOr<double> Replicas::ComputeGradient(const Dataset& train, absl::Span<const int32_t> examples,
                                                 uint32_t micro_batches, uint64_t seed, uint64_t batch) {
  const int64_t n = static_cast<int64_t>(examples.size());
  const int64_t share = DivideUp(n, static_cast<int64_t>(replicas_.size()));
  const auto compute = [&](int64_t index) -> absl::StatusOr<double> {
    Replica& replica = replicas_[static_cast<size_t>(index)];
    if (index > 0) {
      std::copy(model().weights().begin(), model().weights().end(), replica.model->weights().begin());
    }
    replica.model->ZeroGradients();
    const int64_t begin = std::min(n, index * share), end = std::min(n, begin + share);
    const int64_t micro = DivideUp(end - begin, micro_batches);
    double loss = 0;
    for (int64_t first = begin; first < end; first += micro) {
      const int64_t examples_here = std::min(micro, end - first);
      train.Gather(examples.subspan(static_cast<size_t>(first), static_cast<size_t>(examples_here)),
                   &replica.batch);
      WEIR_ASSIGN_OR_RETURN(const double sum,
                            replica.model->ForwardBackward(replica.batch, n, {seed, batch, first}));
      loss += sum;
    }
    return loss;
  };
  threads_.ParallelFor(static_cast<int64_t>(replicas_.size()),
                       [&](int64_t i) { replicas_[static_cast<size_t>(i)].loss = compute(i); });
  double loss = 0;
  const absl::Span<float> sum = model().gradients();
  for (size_t i = 0; i < replicas_.size(); ++i) {
    WEIR_RETURN_IF_ERROR(replicas_[i].loss.status());
    loss += *replicas_[i].loss;
    if (i == 0) continue;
    const absl::Span<const float> gradient = replicas_[i].model->gradients();
    std::transform(sum.begin(), sum.end(), gradient.begin(), sum.begin(), std::plus<float>());
  }
  return loss;
}

}  // namespace weir

#include "worker/replicas.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/tensors/wire_options.h"
#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/config/written_text.h"
#include "worker/clipping.h"
#include "worker/local_rule.h"

namespace weir {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

absl::StatusOr<std::shared_ptr<float>> HostMemory(ComputeBackend* backend, size_t elements) {
  auto memory = std::make_shared<Buffer<float>>();
  WEIR_ASSIGN_OR_RETURN(
      *memory, Buffer<float>::Make(backend, ComputeBackend::Memory::kHost, static_cast<int64_t>(elements)));
  float* const values = memory->get();
  return std::shared_ptr<float>(std::move(memory), values);
}

// A Unix socket is on this host, whatever its path.
std::string HostOf(const std::string& address) {
  const auto parsed = ParseAddress(address);
  return parsed.ok() ? parsed->host : "";
}

}  // namespace

absl::StatusOr<double> CountCompute(ComputeTime* time, const Traffic& traffic,
                                    absl::FunctionRef<absl::StatusOr<double>(const Traffic&)> compute) {
  Mutex mutex;
  int waiting = 0;  // replicas
  Traffic timed = traffic;
  if (traffic.await_weights) {
    timed.await_weights = [&](size_t first, size_t end) {
      {
        MutexLock lock(mutex);
        if (waiting++ == 0) time->Stop();
      }
      absl::Status status = traffic.await_weights(first, end);
      MutexLock lock(mutex);
      if (--waiting == 0) time->Start();
      return status;
    };
  }
  time->Start();
  absl::StatusOr<double> loss = compute(timed);
  time->Stop();
  return loss;
}

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

DeviceOptions Replicas::DeviceOptionsOf(const v1::JobConfig& config, size_t replicas) {
  DeviceOptions options;
  options.rounds_gradients = WireOptions::From(config.wire()).push_dtype == v1::BF16 && replicas == 1 &&
                             !ClipsPushes(config.train()) && !TakesLocalSteps(config);
  options.weights_ahead = config.consistency().prefetch();
  return options;
}

absl::StatusOr<std::unique_ptr<Replicas>> Replicas::Create(const v1::JobConfig& config, const Dataset& train,
                                                           const std::vector<std::string>& devices) {
  std::vector<std::unique_ptr<ComputeBackend>> backends;
  for (const std::string& device : devices) {
    ComputeOptions options;
    options.device = device;
    options.threads = static_cast<int>(config.compute().threads());
    options.precision = PrecisionOf(config.compute());
    WEIR_ASSIGN_OR_RETURN(backends.emplace_back(), MakeComputeBackend(options));
  }
  return On(config, train, std::move(backends));
}

absl::StatusOr<std::unique_ptr<Replicas>> Replicas::On(
    const v1::JobConfig& config, const Dataset& train,
    std::vector<std::unique_ptr<ComputeBackend>> backends) {
  const int64_t share = DivideUp(config.data().batch_size(), static_cast<int64_t>(backends.size()));
  const DeviceOptions options = DeviceOptionsOf(config, backends.size());
  std::vector<Replica> replicas;
  for (std::unique_ptr<ComputeBackend>& backend : backends) {
    Replica replica;
    replica.backend = std::move(backend);
    WEIR_ASSIGN_OR_RETURN(replica.model,
                          Model::Create(config.model(), ModelInputsOf(config, train.shape()), train.outputs(),
                                        share, replica.backend.get(), options));
    replicas.push_back(std::move(replica));
  }
  return std::unique_ptr<Replicas>(new Replicas(std::move(replicas)));
}

Replicas::Replicas(std::vector<Replica> replicas)
    : replicas_(std::move(replicas)),
      buffers_(
          static_cast<size_t>(model().spec().elements()),
          [backend = replicas_[0].backend.get()](size_t elements) { return HostMemory(backend, elements); }),
      threads_(static_cast<int>(replicas_.size())) {
  // The model's own memory, which is used before any is made.
  for (const absl::Span<float> own : {model().weights(), model().gradients()}) {
    buffers_.Add(std::shared_ptr<float>(std::shared_ptr<void>(), own.data()));
  }
}

Replicas::~Replicas() {
  // Models may hold buffers.
  for (Replica& replica : replicas_) replica.model = nullptr;
}

void Replicas::Sum(size_t tensor, size_t replicas) {
  const ModelSpec& spec = model().spec();
  const auto first = static_cast<size_t>(spec.offset(tensor)),
             n = static_cast<size_t>(spec.tensors[tensor].elements());
  const absl::Span<float> sum = model().gradients().subspan(first, n);
  for (size_t i = 1; i < replicas; ++i) {
    const absl::Span<const float> gradient = replicas_[i].model->gradients().subspan(first, n);
    std::transform(sum.begin(), sum.end(), gradient.begin(), sum.begin(), std::plus<float>());
  }
}

Replicas::Cut Replicas::CutUp(int64_t n, uint32_t micro_batches) const {
  Cut cut;
  const int64_t share = DivideUp(n, static_cast<int64_t>(replicas_.size()));
  for (int64_t begin = 0; begin < n; begin += share) {
    const int64_t end = std::min(n, begin + share), micro = DivideUp(end - begin, micro_batches);
    cut.first_of.push_back(cut.sizes.size());
    for (int64_t first = begin; first < end; first += micro) {
      cut.sizes.push_back(static_cast<size_t>(std::min(micro, end - first)));
      cut.first_example.push_back(first);
    }
  }
  cut.first_of.push_back(cut.sizes.size());
  return cut;
}

absl::StatusOr<double> Replicas::ComputeGradient(const Dataset& train, absl::Span<const int32_t> examples,
                                                 uint32_t micro_batches, uint64_t seed, uint64_t batch,
                                                 const Traffic& traffic, absl::Span<const int32_t> next,
                                                 const std::vector<TableRows>* rows,
                                                 RowGradientValues* row_gradients) {
  const int64_t n = static_cast<int64_t>(examples.size());
  const Cut cut = CutUp(n, micro_batches);
  const size_t used = cut.first_of.size() - 1;  // replicas; the others have no examples
  const std::vector<Batch>& batches = ahead_.Take(train, examples, cut.sizes);
  Cut next_cut;
  if (!next.empty()) {
    next_cut = CutUp(static_cast<int64_t>(next.size()), micro_batches);
    ahead_.Begin(train, next, next_cut.sizes);
  }
  for (Replica& replica : replicas_) replica.stale |= traffic.new_weights;
  // For each tensor, the replicas that are not done with it. The last of them adds up all gradients.
  Mutex mutex;
  std::vector<size_t> awaits(model().spec().tensors.size(), used);
  const auto compute = [&](size_t index) -> absl::StatusOr<double> {
    Replica& replica = replicas_[index];
    if (index > 0) replica.model->Bind(model().weights().data(), replica.model->gradients().data());
    replica.model->ZeroGradients();
    if (rows != nullptr) {
      replica.row_gradients.resize(rows->size());
      for (size_t i = 0; i < rows->size(); ++i) {
        replica.row_gradients[i].assign((*rows)[i].values.size(), 0.0f);
      }
      replica.model->BindRows(rows, &replica.row_gradients);
    }
    Traffic own;
    own.new_weights = replica.stale;
    own.await_weights = traffic.await_weights;
    own.next_weights = traffic.next_weights;
    // The forward passes of other replicas may not be done then, but their gradients come after it all the
    // same.
    if (index == 0) own.forward_done = traffic.forward_done;
    own.gradient_ready = [&](size_t tensor) {
      MutexLock lock(mutex);
      if (--awaits[tensor] > 0) return;
      Sum(tensor, used);
      if (traffic.gradient_ready) traffic.gradient_ready(tensor);
    };
    double loss = 0;
    for (size_t i = cut.first_of[index], end = cut.first_of[index + 1]; i < end; ++i) {
      own.last = i + 1 == end;
      own.queued = [&] {
        if (!own.last) return replica.model->Prepare(batches[i + 1]);
        const std::vector<Batch>* const begun = ahead_.Peek();
        if (begun == nullptr || index + 1 >= next_cut.first_of.size()) return;
        replica.model->Prepare((*begun)[next_cut.first_of[index]]);
      };
      WEIR_ASSIGN_OR_RETURN(const double sum, replica.model->ForwardBackward(
                                                  batches[i], n, {seed, batch, cut.first_example[i]}, own));
      own.new_weights = replica.stale = false;
      loss += sum;
    }
    return loss;
  };
  threads_.ParallelFor(static_cast<int64_t>(used), [&](int64_t i) {
    replicas_[static_cast<size_t>(i)].loss = compute(static_cast<size_t>(i));
  });
  double loss = 0;
  for (size_t i = 0; i < used; ++i) {
    WEIR_RETURN_IF_ERROR(replicas_[i].loss.status());
    loss += *replicas_[i].loss;
  }
  if (rows == nullptr) return loss;
  // Summed in the order of the replicas, as the tensors' gradients.
  std::swap(*row_gradients, replicas_[0].row_gradients);
  for (size_t i = 1; i < used; ++i) {
    for (size_t t = 0; t < rows->size(); ++t) {
      std::vector<float>& sum = (*row_gradients)[t];
      std::transform(sum.begin(), sum.end(), replicas_[i].row_gradients[t].begin(), sum.begin(),
                     std::plus<float>());
    }
  }
  return loss;
}

uint32_t LocalRank(const std::optional<TaskEnvironment>& environment) {
  if (!environment.has_value()) return 0;
  const ClusterSpec& cluster = environment->cluster;
  const std::optional<uint32_t> rank = cluster.WorkerRank(environment->task);
  if (cluster.IsDynamic()) return rank.value_or(0);
  const std::string host = HostOf(environment->address);
  uint32_t before = 0;
  for (const auto& [type, addresses] : cluster.jobs()) {
    for (const auto& [index, address] : addresses) {
      const std::optional<uint32_t> other = cluster.WorkerRank({type, index});
      if (other.has_value() && (!rank.has_value() || *other < *rank) && HostOf(address) == host) ++before;
    }
  }
  return before;
}

absl::StatusOr<ChosenDevices> ChooseDevices(absl::string_view flag, Precision precision, uint32_t local_rank,
                                            absl::FunctionRef<absl::StatusOr<std::vector<int>>()> usable) {
  WEIR_ASSIGN_OR_RETURN(std::vector<std::string> names, ParseDevices(flag));
  if (names != std::vector<std::string>{"auto"}) return ChosenDevices{std::move(names), ""};
  const absl::StatusOr<std::vector<int>> devices = usable();
  if (devices.ok()) {
    const int device = (*devices)[local_rank % devices->size()];
    return ChosenDevices{{absl::StrCat("cuda:", device)},
                         absl::StrCat(devices->size(), devices->size() == 1 ? " device" : " devices",
                                      " to use, this is worker ", local_rank, " of the host")};
  }
  if (precision != Precision::kFloat32) {
    return absl::FailedPreconditionError(
        absl::StrCat("compute.precision is ", PrecisionName(precision),
                     ", which needs a GPU, and --device=auto finds none: ", devices.status().message(),
                     "; take compute.precision out to train on the CPU"));
  }
  return ChosenDevices{{"cpu"}, absl::StrCat("no GPU: ", devices.status().message())};
}

}  // namespace weir

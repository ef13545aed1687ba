#include "tests/integration/counting_job.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/types.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/model/partition.h"

namespace weir {

v1::JobConfig CountingJob(const std::vector<std::string>& overrides) {
  // Called before there are threads: protobuf creates a string's default at its first use, under a lock
  // inside a library that ThreadSanitizer does not see.
  v1::JobConfig::default_instance().name();
  // The layers and data are not used: the clients declare the model.
  const auto config = ParseJobConfig(R"({
    "name": "counting",
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 10}]},
    "data": {"format": "digits", "batch_size": 1},
    "train": {"examples": 1000000000000},
    "consistency": {"mode": "async"},
    "optimizer": {"type": "sgd", "learning_rate": -1},
    "cluster": {"workers": 2, "start_seconds": 60, "wait_seconds": 60},
    "server": {"min_shard_kib": 0}
  })",
                                     "the test's job", overrides);
  if (!config.ok()) {
    fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    std::abort();
  }
  return *config;
}

ModelSpec CountingModel() {
  ModelSpec model;
  model.tensors = {{"a", {1031, 1021}, TensorKind::kParameter, Initializer::Zeros()},
                   {"b", {}, TensorKind::kParameter, Initializer::Zeros()},
                   {"c", {3, 701}, TensorKind::kParameter, Initializer::Zeros()}};
  return model;
}

absl::StatusOr<std::unique_ptr<CountingClient>> CountingClient::Join(const v1::JobConfig& config,
                                                                     const std::vector<std::string>& servers,
                                                                     uint32_t rank, bool reader) {
  ClientOptions options;
  options.servers = servers;
  options.rank = rank;
  options.reader = reader;
  options.task = absl::StrCat(reader ? "evaluator:" : "worker:", rank);
  options.job_config = config.SerializeAsString();
  options.train_examples = reader ? 0 : 1000;
  WEIR_ASSIGN_OR_RETURN(auto client, Client::Join(options, CountingModel()));
  return std::unique_ptr<CountingClient>(
      new CountingClient(std::move(client), static_cast<uint32_t>(servers.size())));
}

CountingClient::CountingClient(std::unique_ptr<Client> client, uint32_t shards)
    : client_(std::move(client)),
      shards_(shards),
      // Not a possible count: elements that a pull leaves out show.
      weights_(model_.elements(), -1.0f),
      ones_(model_.elements(), 1.0f),
      ones_in_place_(client_->NewGradient()) {
  std::copy(ones_.begin(), ones_.end(), ones_in_place_.get());
}

absl::StatusOr<bool> CountingClient::Step() {
  WEIR_ASSIGN_OR_RETURN(const std::optional<Work> work, client_->NextWork());
  if (!work.has_value()) return false;
  if (base_.versions.empty()) WEIR_RETURN_IF_ERROR(Pull());
  const auto exchange = client_->PushPull(*work, base_, Gradient(ones_.data()), Weights());
  if (!exchange.Get().ok()) return exchange.Get().status();
  push_ = exchange.Get()->push;
  base_ = exchange.Get()->pull;
  return true;
}

absl::Status CountingClient::Pull() {
  const auto pull = client_->Pull(0, Weights());
  if (pull.Get().ok()) base_ = *pull.Get();
  return pull.Get().status();
}

absl::Status CountingClient::PullSnapshot() {
  const auto pull = client_->PullSnapshot(Weights());
  if (pull.Get().ok()) base_ = *pull.Get();
  return pull.Get().status();
}

absl::StatusOr<bool> CountingClient::StepInPlace() {
  WEIR_ASSIGN_OR_RETURN(const std::optional<Work> work, client_->NextWork());
  if (!work.has_value()) return false;
  if (view_.tensors() == 0) WEIR_RETURN_IF_ERROR(PullInPlace());
  WEIR_ASSIGN_OR_RETURN(PushPullView result,
                        client_->PushPullInPlace(*work, view_.pull(), Gradient(ones_in_place_.get())).Take());
  push_ = std::move(result.push);
  view_ = std::move(result.weights);
  base_ = view_.pull();
  return true;
}

absl::Status CountingClient::PullInPlace() {
  WEIR_ASSIGN_OR_RETURN(view_, client_->PullInPlace(0).Take());
  base_ = view_.pull();
  return absl::OkStatus();
}

int64_t CountingClient::TornElementsOf(const WeightsView& view) {
  const ModelSpec model = CountingModel();
  const auto shards = static_cast<uint32_t>(view.pull().versions.size());
  const Partition partition(model.elements(), shards);
  int64_t torn = 0, element = 0;
  for (size_t tensor = 0; tensor < view.tensors(); ++tensor) {
    for (absl::Span<const float> piece : view.pieces(tensor)) {
      for (float value : piece) {
        const auto shard = static_cast<uint32_t>(element++ / partition.block_size() % shards);
        torn += value != static_cast<float>(view.pull().versions[shard]);
      }
    }
  }
  return torn + model.elements() - element;
}

int64_t CountingClient::TornElements() const {
  const Partition partition(model_.elements(), shards_);
  int64_t torn = 0;
  for (uint32_t shard = 0; shard < shards_; ++shard) {
    const float count = static_cast<float>(base_.versions[shard]);
    for (int64_t block = 0; block < partition.shard_blocks(shard); ++block) {
      const float* values = weights_.data() + partition.block_start(shard, block);
      for (int64_t i = 0; i < partition.block_length(shard, block); ++i) torn += values[i] != count;
    }
  }
  return torn;
}

std::vector<MutableTensor> CountingClient::Weights() { return TensorsOf(model_, absl::MakeSpan(weights_)); }

std::vector<ConstTensor> CountingClient::Gradient(const float* all) const {
  return TensorsOf(model_, absl::MakeConstSpan(all, ones_.size()));
}

}  // namespace weir

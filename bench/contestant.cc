#include "bench/contestant.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/memory.h"
#include "bench/server_process.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/rpc/tls.h"

namespace weir::bench {
namespace {

// The job's config, for servers and clients. The job never ends by itself. The client brings the model and
// the data, but a config is complete only with some. Every server holds a part, as in the other contestants.
std::string JobJson(const Contestant& contestant) {
  nlohmann::json job = nlohmann::json::parse(R"({
    "name": "bench",
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 10}]},
    "data": {"format": "digits"},
    "train": {"examples": 1000000000000},
    "consistency": {"mode": "async"},
    "cluster": {"lease_seconds": 600, "grace_seconds": 600},
    "server": {"min_shard_kib": 0}
  })");
  job["optimizer"] = {{"type", contestant.optimizer}, {"learning_rate", 1e-6}};
  job["cluster"]["workers"] = contestant.clients;
  if (!contestant.config.empty()) job.merge_patch(nlohmann::json::parse(contestant.config, nullptr, false));
  return job.dump(2);
}

TlsFiles FilesOf(const Contestant& contestant, Role role, int index) {
  if (contestant.certificates.empty()) return {};
  return TlsFilesIn(contestant.certificates, {"weir", role, static_cast<uint32_t>(index)});
}

class WeirServer : public StepServer {
 public:
  explicit WeirServer(std::unique_ptr<ServerProcess> process) : process_(std::move(process)) {}
  std::string address() const override { return process_->address(); }
  pid_t pid() const override { return process_->pid(); }

 private:
  const std::unique_ptr<ServerProcess> process_;
};

class WeirClient : public StepClient {
 public:
  explicit WeirClient(const Contestant& contestant)
      : in_place_(contestant.in_place), tensors_(contestant.elements) {
    weights_ = {{"w", absl::MakeSpan(tensors_.weights.data(), contestant.elements)}};
    gradient_ = {{"w", absl::MakeConstSpan(tensors_.gradient.data(), contestant.elements)}};
  }

  absl::Status Join(const Contestant& contestant, int index, const std::vector<std::string>& addresses) {
    const ModelSpec model{{{"w", {contestant.elements}, TensorKind::kParameter, Initializer::Zeros()}}};
    WEIR_ASSIGN_OR_RETURN(const ClientOptions options, WeirClientOptions(contestant, index, addresses));
    WEIR_ASSIGN_OR_RETURN(client_, Client::Join(options, model));
    if (in_place_) {
      const size_t elements = static_cast<size_t>(contestant.elements);
      made_ = client_->NewGradient();
      std::copy(gradient_[0].values.begin(), gradient_[0].values.end(), made_.get());
      gradient_[0].values = absl::MakeConstSpan(made_.get(), elements);
    }
    WEIR_RETURN_IF_ERROR(TakeWork());
    if (in_place_) {
      WEIR_ASSIGN_OR_RETURN(view_, client_->PullInPlace(work_->clock).Take());
      base_ = view_.pull();
      return absl::OkStatus();
    }
    const auto pull = client_->Pull(work_->clock, weights_);
    WEIR_ASSIGN_OR_RETURN(base_, pull.Get());
    return absl::OkStatus();
  }

  absl::Status Step() override {
    if (in_place_) {
      WEIR_ASSIGN_OR_RETURN(PushPullView result, client_->PushPullInPlace(*work_, base_, gradient_).Take());
      view_ = std::move(result.weights);
      base_ = view_.pull();
      return Finish(result.push);
    }
    const auto exchange = client_->PushPull(*work_, base_, gradient_, weights_);
    const auto& result = exchange.Get();
    if (!result.ok()) return result.status();
    base_ = result->pull;
    return Finish(result->push);
  }

 private:
  absl::Status Finish(const PushResult& push) {
    if (!push.applied) return absl::InternalError("an update was not applied: " + push.reason);
    return TakeWork();
  }
  absl::Status TakeWork() {
    WEIR_ASSIGN_OR_RETURN(work_, client_->NextWork());
    return work_.has_value() ? absl::OkStatus() : absl::OutOfRangeError("the benchmark's job has ended");
  }

  const bool in_place_;
  WorkerTensors tensors_;
  std::vector<MutableTensor> weights_;
  std::vector<ConstTensor> gradient_;
  // In place: the memory of the gradient.
  std::shared_ptr<float> made_;
  std::unique_ptr<Client> client_;
  std::optional<Work> work_;
  PullResult base_;
  WeightsView view_;
};

absl::StatusOr<std::unique_ptr<StepServer>> StartServer(const Contestant& contestant, int index,
                                                        const std::string& host) {
  const TlsFiles tls = FilesOf(contestant, Role::kServer, index);
  WEIR_ASSIGN_OR_RETURN(auto process, ServerProcess::Start(JobJson(contestant), index, host, tls));
  return std::make_unique<WeirServer>(std::move(process));
}

absl::StatusOr<std::unique_ptr<StepClient>> ConnectClient(const Contestant& contestant, int index,
                                                          const std::vector<std::string>& addresses) {
  auto client = std::make_unique<WeirClient>(contestant);
  WEIR_RETURN_IF_ERROR(client->Join(contestant, index, addresses));
  return client;
}

std::map<std::string, Kind>& Kinds() {
  static auto& kinds = *new std::map<std::string, Kind>{
      {"raw", RawSockets()},
      {"weir", WeirKind()},
  };
  return kinds;
}

}  // namespace

absl::StatusOr<Kind> FindKind(const std::string& name) {
  const auto found = Kinds().find(name);
  if (found != Kinds().end()) return found->second;
  return absl::InvalidArgumentError(absl::StrCat("no contestant is called '", name, "'"));
}

Kind WeirKind() { return {StartServer, ConnectClient}; }

void AddKind(const std::string& name, Kind kind) { Kinds()[name] = std::move(kind); }

Contestant Weir(const std::string& name, const std::string& config) {
  Contestant contestant;
  contestant.name = name;
  contestant.kind = "weir";
  contestant.config = config;
  return contestant;
}

absl::StatusOr<ClientOptions> WeirClientOptions(const Contestant& contestant, int index,
                                                const std::vector<std::string>& addresses) {
  WEIR_ASSIGN_OR_RETURN(const v1::JobConfig config,
                        ParseJobConfig(JobJson(contestant), "the benchmark's job"));
  ClientOptions options;
  options.servers = addresses;
  options.task = absl::StrCat("worker:", index);
  options.rank = index;
  options.job_config = config.SerializeAsString();
  WEIR_ASSIGN_OR_RETURN(options.tls, Tls::ReadIfGiven(FilesOf(contestant, Role::kWorker, index)));
  options.train_examples = 1000;
  return options;
}

}  // namespace weir::bench

#include "bench/weir_contestant.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/memory.h"
#include "client/client.h"
#include "common/config/job_config.h"
#include "common/status_macros.h"
#include "common/subprocess.h"

namespace weir::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kStartLimit{60};

std::string ps_server_path;

// The job that both sides are told. It never ends by itself; the model and the data are the client's
// business, but a config needs some to be whole.
std::string JobJson(const Contestant& contestant) {
  nlohmann::json job = nlohmann::json::parse(R"({
    "name": "bench",
    "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 10}]},
    "data": {"format": "digits"},
    "train": {"examples": 1000000000000},
    "consistency": {"mode": "async"},
    "cluster": {"lease_seconds": 600, "grace_seconds": 600}
  })");
  job["optimizer"] = {{"type", contestant.optimizer}, {"learning_rate", 1e-6}};
  job["cluster"]["workers"] = contestant.clients;
  if (!contestant.config.empty()) job.merge_patch(nlohmann::json::parse(contestant.config, nullptr, false));
  return job.dump(2);
}

// In a build tree and in a bundle; all of Weir lies in one of the two.
absl::StatusOr<std::string> FindPsServer() {
  if (!ps_server_path.empty()) return ps_server_path;
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& path : {folder / "ps_server", folder.parent_path() / "ps_server" / "ps_server"}) {
    if (fs::is_regular_file(path, error)) return path.string();
  }
  return absl::NotFoundError(
      absl::StrCat("ps_server is not beside ", folder.string(), "; say where with --ps_server"));
}

class WeirServer : public StepServer {
 public:
  ~WeirServer() override {
    process_.reset();
    RemoveFolder();
  }

  absl::Status Start(const Contestant& contestant, int index, const std::string& host) {
    WEIR_ASSIGN_OR_RETURN(const std::string program, FindPsServer());
    std::error_code error;
    std::string folder = (fs::temp_directory_path(error) / "weir-bench-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) return absl::ErrnoToStatus(errno, "mkdtemp");
    folder_ = folder;
    std::ofstream(folder + "/job.json") << JobJson(contestant);

    const std::string port_file = folder + "/port", log = folder + "/log";
    Subprocess::Options options;
    options.args = {program, "--config=" + folder + "/job.json", "--port_file=" + port_file,
                    "--bind=" + host};
    // The benchmark's user has said where it may listen.
    if (host != "127.0.0.1") options.args.push_back("--insecure_plaintext");
    options.environment["TF_CONFIG"] =
        absl::StrCat(R"({"cluster":{"ps":[")", host, R"(:0"]},"task":{"type":"ps","index":)", index, "}}");
    options.output_file = log;
    WEIR_ASSIGN_OR_RETURN(process_, Subprocess::Start(std::move(options)));
    const auto deadline = std::chrono::steady_clock::now() + kStartLimit;
    for (std::string port; address_.empty();) {
      std::ifstream file(port_file);
      if (std::getline(file, port)) {
        address_ = absl::StrCat(host, ":", port);
      } else if (process_->Wait(std::chrono::steady_clock::now() + std::chrono::milliseconds(2))
                     .has_value() ||
                 std::chrono::steady_clock::now() > deadline) {
        std::ostringstream text;
        text << std::ifstream(log).rdbuf();
        return absl::UnavailableError(absl::StrCat("ps_server did not start; its log:\n", text.str()));
      }
    }
    // It is of no more use, and whoever kills this process leaves nothing behind.
    RemoveFolder();
    return absl::OkStatus();
  }
  std::string address() const override { return address_; }
  pid_t pid() const override { return process_->pid(); }

 private:
  void RemoveFolder() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  std::string folder_, address_;
  std::unique_ptr<Subprocess> process_;
};

class WeirClient : public StepClient {
 public:
  explicit WeirClient(const Contestant& contestant)
      : in_place_(contestant.in_place), tensors_(contestant.elements) {
    weights_ = {{"w", absl::MakeSpan(tensors_.weights.data(), contestant.elements)}};
    gradient_ = {{"w", absl::MakeConstSpan(tensors_.gradient.data(), contestant.elements)}};
  }

  absl::Status Join(const Contestant& contestant, int index, const std::vector<std::string>& addresses) {
    WEIR_ASSIGN_OR_RETURN(const v1::JobConfig config,
                          ParseJobConfig(JobJson(contestant), "the benchmark's job"));
    const ModelSpec model{{{"w", {contestant.elements}, TensorKind::kParameter, Initializer::Zeros()}}};
    ClientOptions options;
    options.servers = addresses;
    options.task = absl::StrCat("worker:", index);
    options.rank = index;
    options.job_config = config.SerializeAsString();
    options.train_examples = 1000;
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

  absl::Span<const float> weights() const override {
    if (!in_place_) return tensors_.weights.values();
    if (const float* all = view_.contiguous(0)) return absl::MakeConstSpan(all, weights_[0].values.size());
    // Of several servers. For who asks for them in one piece, which is no part of a step.
    float* to = weights_[0].values.data();
    for (absl::Span<const float> piece : view_.pieces(0)) to = std::copy(piece.begin(), piece.end(), to);
    return weights_[0].values;
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
  uint64_t version() const override { return base_.versions[0]; }

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
  // In place: where the gradient is.
  std::shared_ptr<float> made_;
  std::unique_ptr<Client> client_;
  std::optional<Work> work_;
  PullResult base_;
  WeightsView view_;
};

}  // namespace

Contestant Weir(const std::string& name, const std::string& config) {
  Contestant contestant;
  contestant.name = name;
  contestant.kind = "weir";
  contestant.config = config;
  return contestant;
}

void SetPsServer(const std::string& path) { ps_server_path = path; }

absl::StatusOr<std::unique_ptr<StepServer>> StartWeirServer(const Contestant& contestant, int index,
                                                            const std::string& host) {
  auto server = std::make_unique<WeirServer>();
  WEIR_RETURN_IF_ERROR(server->Start(contestant, index, host));
  return server;
}

absl::StatusOr<std::unique_ptr<StepClient>> ConnectWeirClient(const Contestant& contestant, int index,
                                                              const std::vector<std::string>& addresses) {
  auto client = std::make_unique<WeirClient>(contestant);
  WEIR_RETURN_IF_ERROR(client->Join(contestant, index, addresses));
  return client;
}

}  // namespace weir::bench

#include "tests/chaos/chaos_job.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cli/certs/certificate_files.h"
#include "cli/commands/grpc_status_client.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

// Bytes of a connection through a proxy: some hundred exchanges, and sometimes a connection that ends in the
// first.
constexpr uint64_t kLeastBytes = 20'000, kMostBytes = 2'000'000;

std::string ReadFile(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

bool IsServer(const std::string& task) { return task.rfind("ps:", 0) == 0; }
int IndexOf(const std::string& task) { return std::stoi(task.substr(task.find(':') + 1)); }

// With TLS: the job's name in certificates, which are made for one run.
constexpr char kJob[] = "chaos";
constexpr absl::Duration kCertificatesLast = absl::Hours(100);

}  // namespace

ChaosJob::ChaosJob(Options options) : options_(std::move(options)) {
  for (uint32_t i = 0; i < options_.servers; ++i) tasks_.push_back(absl::StrCat("ps:", i));
  for (uint32_t i = 0; i < options_.workers; ++i) tasks_.push_back(absl::StrCat("worker:", i));
}

absl::StatusOr<std::unique_ptr<ChaosJob>> ChaosJob::Create(Options options) {
  std::unique_ptr<ChaosJob> job(new ChaosJob(std::move(options)));
  std::ofstream config(job->config_path());
  config << job->options_.config;
  config.close();
  if (!config) {
    return absl::UnavailableError(absl::StrCat(job->config_path(), " cannot be written"));
  }
  if (job->options_.token) {
    WEIR_ASSIGN_OR_RETURN(job->token_, JobToken::Random());
    WEIR_RETURN_IF_ERROR(job->token_.Write(job->TokenPath()));
  }
  if (job->options_.tls) {
    const Identity admin{kJob, Role::kAdmin, 0};
    std::vector<Identity> all = {admin, {kJob, Role::kReader, 0}};
    for (uint32_t i = 0; i < job->options_.servers; ++i) all.push_back({kJob, Role::kServer, i});
    for (uint32_t i = 0; i < job->options_.workers; ++i) all.push_back({kJob, Role::kWorker, i});
    WEIR_RETURN_IF_ERROR(
        WriteCertificates(job->CertificateFolder(), kJob, all, absl::Now(), kCertificatesLast));
    WEIR_ASSIGN_OR_RETURN(job->admin_, Tls::ReadIfGiven(TlsFilesIn(job->CertificateFolder(), admin)));
  }
  for (const std::string& task : job->tasks_) WEIR_RETURN_IF_ERROR(job->Reserve(task));
  job->OpenPaths();
  return job;
}

std::vector<std::string> ChaosJob::Prove(Role role, uint32_t index) const {
  std::vector<std::string> flags;
  if (options_.tls) flags = FlagsOf(TlsFilesIn(CertificateFolder(), {kJob, role, index}));
  if (!token_.empty()) flags.push_back("--token_file=" + TokenPath());
  return flags;
}

absl::Status ChaosJob::Reserve(const std::string& task) {
  UniqueFd port(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  if (setsockopt(port.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(port.get(), reinterpret_cast<sockaddr*>(&at), size) != 0 ||
      getsockname(port.get(), reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("a port for ", task));
  }
  addresses_[task] = absl::StrCat("127.0.0.1:", ntohs(at.sin_port));
  ports_[task] = std::move(port);
  return absl::OkStatus();
}

void ChaosJob::OpenPaths() {
  if (options_.path == Options::Path::kDirect) return;
  std::vector<uint32_t> dims;
  for (const nlohmann::json& table :
       nlohmann::json::parse(options_.config).value("tables", nlohmann::json())) {
    dims.push_back(table.at("dim"));
  }
  for (const std::string& caller : tasks_) {
    if (IsServer(caller) && caller != "ps:0") continue;
    for (const std::string& server : tasks_) {
      if (!IsServer(server) || server == caller) continue;
      const std::string& address = addresses_.at(server);
      const uint64_t seed = options_.path_seed + proxies_.size() + repeaters_.size();
      if (options_.path == Options::Path::kRepeaters) {
        repeaters_[{caller, server}] = GrpcRepeater::Start(address, seed, dims);
      } else {
        proxies_[{caller, server}] = std::make_unique<BreakingProxy>(
            address, seed, options_.breaks ? kLeastBytes : BreakingProxy::kNever,
            options_.breaks ? kMostBytes : BreakingProxy::kNever);
      }
    }
  }
}

std::string ChaosJob::TfConfig(const std::string& task) const {
  nlohmann::json config;
  for (const std::string& other : tasks_) {
    const auto proxy = proxies_.find({task, other});
    const auto repeater = repeaters_.find({task, other});
    config["cluster"][IsServer(other) ? "ps" : "worker"].push_back(
        proxy != proxies_.end()        ? proxy->second->address()
        : repeater != repeaters_.end() ? repeater->second->address()
                                       : addresses_.at(other));
  }
  config["task"] = {{"type", task.substr(0, task.find(':'))}, {"index", IndexOf(task)}};
  return config.dump();
}

absl::Status ChaosJob::Start(const std::string& task) {
  ++starts_[task];
  Subprocess::Options process;
  process.args = {IsServer(task) ? options_.programs.ps_server : options_.programs.worker,
                  "--config=" + config_path()};
  if (task == "ps:0") process.args.push_back("--summary=" + options_.folder + "/summary.json");
  const std::vector<std::string>& more = IsServer(task) ? options_.server_args : options_.worker_args;
  process.args.insert(process.args.end(), more.begin(), more.end());
  const std::vector<std::string> proofs =
      Prove(IsServer(task) ? Role::kServer : Role::kWorker, static_cast<uint32_t>(IndexOf(task)));
  process.args.insert(process.args.end(), proofs.begin(), proofs.end());
  if (!IsServer(task) && options_.histories) {
    process.args.push_back("--history=" + HistoryPath(task));
    histories_.push_back({task, HistoryPath(task)});
  }
  process.environment["TF_CONFIG"] = TfConfig(task);
  process.output_file = PathPrefix(task) + ".log";
  WEIR_ASSIGN_OR_RETURN(processes_[task], Subprocess::Start(std::move(process)));
  return absl::OkStatus();
}

absl::Status ChaosJob::StartAll() {
  for (const std::string& task : tasks_) WEIR_RETURN_IF_ERROR(Start(task));
  return absl::OkStatus();
}

void ChaosJob::Kill(const std::string& task) {
  processes_.at(task)->Signal(SIGKILL);
  processes_.at(task)->Wait();
  for (auto log = histories_.rbegin(); log != histories_.rend(); ++log) {
    if (log->task != task) continue;
    log->killed = true;
    break;
  }
}

absl::StatusOr<v1::ClusterStatus> ChaosJob::Status() const {
  // A new connection each time: gRPC delays the retry of a refused one.
  return StatusClient(addresses_.at("ps:0"), token_, admin_).Get(absl::Seconds(2));
}

absl::Status ChaosJob::TakeCheckpoint() const {
  return StatusClient(addresses_.at("ps:0"), token_, admin_).TakeCheckpoint(absl::Minutes(1)).status();
}

std::optional<ProcessExit> ChaosJob::WaitForExit(const std::string& task,
                                                 std::chrono::steady_clock::time_point deadline) {
  return processes_.at(task)->Wait(deadline);
}

std::string ChaosJob::PathPrefix(const std::string& task) const {
  return absl::StrCat(options_.folder, "/", task, ".", starts_.at(task));
}
std::string ChaosJob::Log(const std::string& task) const { return ReadFile(PathPrefix(task) + ".log"); }
std::string ChaosJob::HistoryPath(const std::string& task) const { return PathPrefix(task) + ".history"; }

absl::StatusOr<nlohmann::json> ChaosJob::Summary() const {
  const std::string path = options_.folder + "/summary.json";
  const auto summary = nlohmann::json::parse(ReadFile(path), nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object()) return absl::NotFoundError(absl::StrCat(path, " holds no summary"));
  return summary;
}

absl::StatusOr<std::vector<HistoryEvent>> ChaosJob::Histories() const {
  std::vector<HistoryEvent> events;
  for (const WorkerLog& log : histories_) {
    const std::string name = std::filesystem::path(log.path).filename().string();
    WEIR_RETURN_IF_ERROR(ReadHistory(name, ReadFile(log.path), log.killed, &events));
  }
  return events;
}

std::vector<BreakingProxy*> ChaosJob::Proxies(const std::string& task, const std::string& peer) const {
  std::vector<BreakingProxy*> found;
  for (const auto& [path, proxy] : proxies_) {
    const auto& [caller, server] = path;
    if ((caller == task && (peer.empty() || server == peer)) ||
        (server == task && (peer.empty() || caller == peer))) {
      found.push_back(proxy.get());
    }
  }
  return found;
}

std::map<std::string, uint64_t> ChaosJob::PathFaults() const {
  std::map<std::string, uint64_t> sums;
  for (const auto& [path, proxy] : proxies_) {
    sums["connection cut, request"] += proxy->broken_requests();
    sums["connection cut, reply"] += proxy->broken_replies();
  }
  for (const auto& [path, repeater] : repeaters_) {
    const GrpcRepeater::Counts counts = repeater->counts();
    sums["message overtaken by others"] += counts.delayed;
    sums["push sent twice"] += counts.pushes;
    sums["push with rows sent twice"] += counts.with_rows;
    sums["call sent twice"] += counts.calls;
  }
  return sums;
}

std::vector<std::vector<RepeatedPush>> ChaosJob::RepeatedPushes() const {
  std::vector<std::vector<RepeatedPush>> pushes(options_.servers);
  for (const auto& [path, repeater] : repeaters_) {
    std::vector<RepeatedPush>& of_shard = pushes[std::stoul(path.second.substr(3))];
    for (const RepeatedPush& push : repeater->pushes()) of_shard.push_back(push);
  }
  return pushes;
}

}  // namespace weir

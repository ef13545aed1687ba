#include "cli/local_cluster/local_cluster.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/local_cluster/task_environment.h"
#include "common/base/host.h"
#include "common/base/status_macros.h"
#include "common/config/json_document.h"
#include "common/system/clock.h"

namespace weir {
namespace {

// A file, or a folder with all that is in it.
void RemoveIfThere(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

// A server sets SO_REUSEADDR, too, and so may listen meanwhile. An invalid result means that the port cannot
// be bound, which the server will find, too.
UniqueFd ReservePort(const std::string& address) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  uint32_t port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return UniqueFd();
  name.sin_port = htons(static_cast<uint16_t>(port));
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    return UniqueFd();
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Create(Options options) {
  WEIR_ASSIGN_OR_RETURN(JobToken token, JobToken::Random());
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  std::unique_ptr<LocalCluster> cluster(
      new LocalCluster(std::move(options), std::move(token), std::move(wake)));
  cluster->summary_ = UniqueFd(memfd_create("weir-summary", MFD_CLOEXEC));
  if (!cluster->summary_.valid()) return absl::ErrnoToStatus(errno, "cannot make a file in memory");
  // An earlier job that was killed may have left its token.
  RemoveIfThere(cluster->TokenFile());
  WEIR_RETURN_IF_ERROR(cluster->token_.Write(cluster->TokenFile()));
  if (cluster->options_.tls) WEIR_RETURN_IF_ERROR(cluster->MakeCertificates());
  return cluster;
}

LocalCluster::~LocalCluster() {
  EndAll(SIGKILL);
  tasks_.clear();  // joins their threads, which write to wake_
  RemoveIfThere(TokenFile());
  RemoveIfThere(CertificateFolder());
}

absl::Status LocalCluster::MakeCertificates() {
  RemoveIfThere(CertificateFolder());
  WEIR_RETURN_IF_ERROR(WriteTaskCertificates(CertificateFolder(), options_.ps, options_.workers));
  WEIR_ASSIGN_OR_RETURN(tls_,
                        Tls::ReadIfGiven(TlsFilesIn(CertificateFolder(), TaskIdentity("evaluator", 0))));
  return absl::OkStatus();
}

std::string LocalCluster::PortFile(int server) const {
  return absl::StrCat(options_.log_dir, "/ps-", server, ".port");
}

std::string LocalCluster::TokenFile() const { return absl::StrCat(options_.log_dir, "/token"); }
std::string LocalCluster::CertificateFolder() const { return absl::StrCat(options_.log_dir, "/certs"); }

// A path that works for other processes, too.
std::string LocalCluster::summary_path() const {
  return absl::StrCat("/proc/", getpid(), "/fd/", summary_.get());
}

absl::Status LocalCluster::Start(const std::string& type, int index, const std::string& program,
                                 const std::string& cluster, std::vector<std::string> more_args) {
  TaskProcess& task = tasks_.emplace_back();
  task.type = type;
  task.index = index;
  task.name = absl::StrCat(type, ":", index);
  task.program = program;
  task.cluster = cluster;
  task.more_args = std::move(more_args);
  task.ended = true;  // until it has begun
  TaskLog::Options log;
  log.task = task.name;
  log.path = absl::StrCat(options_.log_dir, "/", type, "-", index, ".log");
  log.verbose = options_.verbose;
  log.console = options_.console;
  log.color = static_cast<Console::Color>(static_cast<int>(Console::Color::kTask0) + tasks_.size() - 1);
  WEIR_ASSIGN_OR_RETURN(task.log, TaskLog::Open(std::move(log)));
  return Launch(task);
}

absl::Status LocalCluster::Launch(TaskProcess& task) {
  Subprocess::Options process;
  if (task.program.empty()) {
    // A program of the user does not have Weir's flags.
    process.args = options_.program;
    // Each program would begin with a thread for each core, and these would spin while they wait for a core.
    const int cpus = UsableCpus();
    const bool shared = options_.workers > 1 || cpus < static_cast<int>(std::thread::hardware_concurrency());
    process.environment = ProgramEnvironment(TokenFile(), options_.overrides,
                                             shared ? std::max(1, cpus / options_.workers) : 0);
  } else {
    process.args = ConfigFlags(options_.config, options_.overrides);
    process.args.insert(process.args.begin(), task.program);
    process.args.push_back(absl::StrCat("--token_file=", TokenFile()));
    for (const auto& arg : task.more_args) process.args.push_back(arg);
  }
  // Without TLS, empty: tasks do not inherit this process's TLS files.
  const TlsFiles files =
      options_.tls ? TlsFilesIn(CertificateFolder(), TaskIdentity(task.type, task.index)) : TlsFiles();
  process.environment[kTlsCaVariable] = files.ca;
  process.environment[kTlsCertificateVariable] = files.certificate;
  process.environment[kTlsKeyVariable] = files.key;
  process.environment["TF_CONFIG"] = TaskConfig(task.cluster, task.type, task.index);
  process.on_line = [log = task.log.get()](absl::string_view line) { log->Add(line); };
  task.ending = std::make_shared<std::atomic<bool>>(false);
  process.on_exit = [this, log = task.log.get(), name = task.name, restarts = task.restarts,
                     own = task.ending, start = Clock::Real().Now()](const ProcessExit& exit) {
    TaskExit ended;
    ended.task = name;
    ended.restarts = restarts;
    ended.last_lines = log->LastLines();
    ended.exit = exit;
    ended.seconds = absl::ToDoubleSeconds(Clock::Real().Now() - start);
    ended.was_ended = ending_ || *own;
    MutexLock lock(mutex_);
    exits_.push_back(std::move(ended));
    eventfd_write(wake_.get(), 1);
  };
  WEIR_ASSIGN_OR_RETURN(task.process, Subprocess::Start(std::move(process)));
  task.ended = false;
  return absl::OkStatus();
}

LocalCluster::TaskProcess* LocalCluster::Find(const std::string& task) {
  const auto found = absl::c_find_if(tasks_, [&](const auto& t) { return t.name == task; });
  return found == tasks_.end() ? nullptr : &*found;
}

absl::Status LocalCluster::Restart(const std::string& task) {
  TaskProcess* const found = Find(task);
  if (found == nullptr || !found->ended) {
    return absl::InternalError(absl::StrCat(task, " cannot be started again: it has not ended"));
  }
  found->process.reset();
  ++found->restarts;
  if (found->type == "ps") {
    const std::string& address = ps_addresses_[found->index];
    if (!address.empty()) {
      if (!found->reserved_port.valid()) found->reserved_port = ReservePort(address);
      found->cluster = absl::StrCat(R"({"ps":[)", JsonQuote(address), "]}");
    } else {
      RemoveIfThere(PortFile(found->index));
    }
  }
  return Launch(*found);
}

absl::Status LocalCluster::StartServers() {
  for (int i = 0; i < options_.ps; ++i) RemoveIfThere(PortFile(i));
  ps_addresses_.assign(options_.ps, "");
  for (int i = 0; i < options_.ps; ++i) {
    std::vector<std::string> args = {absl::StrCat("--port_file=", PortFile(i))};
    if (i == 0) {
      args.push_back(absl::StrCat("--summary=", summary_path()));
      if (options_.http_port.has_value()) args.push_back(absl::StrCat("--http_port=", *options_.http_port));
    }
    // A single address means the server itself, whatever its index: the servers learn of each other from the
    // workers that join.
    WEIR_RETURN_IF_ERROR(
        Start("ps", i, options_.binaries.ps_server, R"({"ps":["127.0.0.1:0"]})", std::move(args)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> LocalCluster::MissingServers() {
  std::vector<std::string> missing;
  for (int i = 0; i < options_.ps; ++i) {
    if (!ps_addresses_[i].empty()) continue;
    std::ifstream file(PortFile(i));
    std::string text;
    if (!std::getline(file, text)) {
      missing.push_back(absl::StrCat("ps:", i));
      continue;
    }
    const auto local_address = [&]() -> absl::StatusOr<std::string> {
      uint32_t port;
      if (absl::SimpleAtoi(text, &port) && port > 0 && port <= 65535) return absl::StrCat("127.0.0.1:", port);
      return absl::InternalError(
          absl::StrCat("ps:", i, " wrote '", text, "' to ", PortFile(i), " instead of its port"));
    };
    WEIR_ASSIGN_OR_RETURN(const std::string address, local_address());
    if (i == 0 && options_.http_port.has_value()) {
      text.clear();
      std::getline(file, text);
      WEIR_ASSIGN_OR_RETURN(const std::string http, local_address());
      dashboard_ = absl::StrCat("http://", http, "/");
    }
    ps_addresses_[i] = address;
  }
  return missing;
}

absl::Status LocalCluster::StartWorkers() {
  const std::string ps = absl::StrCat(R"("ps":)", JsonList(ps_addresses_));
  const std::string device = absl::StrCat("--device=", options_.device);
  const std::string program = options_.program.empty() ? options_.binaries.worker : "";
  for (int i = 0; i < options_.workers; ++i) {
    // No process connects to a worker; the port stands for an address that the format requires.
    const std::string cluster = absl::StrCat(R"({"worker":{")", i, R"(":"127.0.0.1:1"},)", ps, "}");
    WEIR_RETURN_IF_ERROR(Start("worker", i, program, cluster, {device}));
  }
  if (!options_.evaluator) return absl::OkStatus();
  return Start("evaluator", 0, program, absl::StrCat("{", ps, "}"), {device});
}

std::vector<TaskExit> LocalCluster::WaitForExits(int also, absl::Duration limit) {
  pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {also, POLLIN, 0}};
  // An interrupted poll() needs no retry: the caller calls again.
  poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(std::max(limit, absl::ZeroDuration()))));
  eventfd_t ignored;
  eventfd_read(wake_.get(), &ignored);
  std::vector<TaskExit> exits;
  {
    MutexLock lock(mutex_);
    exits.swap(exits_);
  }
  for (const auto& exit : exits) Find(exit.task)->ended = true;
  return exits;
}

void LocalCluster::EndAll(int signal) {
  ending_ = true;
  for (auto& task : tasks_) {
    if (task.process != nullptr) task.process->Signal(signal);
  }
}

void LocalCluster::EndFrom(const std::string& task, int signal) {
  ending_ = true;
  EndOne(task, signal);
}

void LocalCluster::EndOne(const std::string& task, int signal) {
  const TaskProcess* const found = Find(task);
  if (found == nullptr || found->process == nullptr) return;
  *found->ending = true;
  found->process->Signal(signal);
}

void LocalCluster::ShowHeld(absl::Time until) {
  for (auto& task : tasks_) {
    if (task.log != nullptr) task.log->ShowHeld(until);
  }
}

void LocalCluster::Mute() {
  for (auto& task : tasks_) {
    if (task.log != nullptr) task.log->Mute();
  }
}

std::vector<std::string> LocalCluster::running() const {
  std::vector<std::string> names;
  for (const auto& task : tasks_) {
    if (!task.ended) names.push_back(task.name);
  }
  return names;
}

bool LocalCluster::IsRunning(absl::string_view task) const {
  return absl::c_any_of(tasks_, [&](const auto& t) { return t.name == task && !t.ended; });
}

size_t LocalCluster::CountRunning(absl::string_view type) const {
  return static_cast<size_t>(
      absl::c_count_if(tasks_, [&](const auto& t) { return t.type == type && !t.ended; }));
}

std::vector<std::string> LocalCluster::LastLines(const std::string& task) {
  const TaskProcess* const found = Find(task);
  return found == nullptr || found->log == nullptr ? std::vector<std::string>() : found->log->LastLines();
}

}  // namespace weir

#include "cli/local_cluster/local_cluster.h"

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cli/certs/certificate_files.h"
#include "cli/installation/task_environment.h"
#include "cli/report/summary.h"
#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/config/json_document.h"
#include "common/config/written_text.h"
#include "common/rpc/identity.h"
#include "common/system/clock.h"

namespace weir {
namespace {

std::string PortName(int server) { return absl::StrCat("ps-", server, ".port"); }

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

absl::StatusOr<std::unique_ptr<JobCluster>> LocalCluster::Create(Options options) {
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(std::move(options)));
  WEIR_RETURN_IF_ERROR(cluster->Prepare());
  cluster->summary_ = UniqueFd(memfd_create("weir-summary", MFD_CLOEXEC));
  if (!cluster->summary_.valid()) return absl::ErrnoToStatus(errno, "cannot make a file in memory");
  if (!cluster->options_.hosts.empty()) WEIR_RETURN_IF_ERROR(cluster->OpenHosts());
  return cluster;
}

LocalCluster::~LocalCluster() {
  if (hosts_ == nullptr) Kill();
  hosts_.reset();
  processes_.clear();  // joins their threads, which call Wake()
}

absl::Status LocalCluster::OpenHosts() {
  Hosts::Options hosts;
  hosts.hosts = options_.hosts;
  hosts.access = options_.access;
  hosts.copy = options_.copy;
  hosts.scratch = options_.log_dir;
  hosts.stop_fd = options_.stop_fd;
  WEIR_ASSIGN_OR_RETURN(const std::string token, ReadTextFile(File(kToken)));
  hosts.needs = [this, token](int host) { return NeedsOf(host, token); };
  hosts.on_file = [this](const std::string& name, const std::string& content) {
    const absl::Status written = WriteFileWhole(name == kSummary ? summary_path() : File(name), content);
    if (!written.ok()) options_.console->Warn(written.message());
  };
  if (!options_.shared_folder.empty()) {
    shared_file_ = absl::StrCat(options_.shared_folder, "/.weir-up-", getpid());
    std::error_code ignored;  // the next line says it
    std::filesystem::create_directories(options_.shared_folder, ignored);
    WEIR_RETURN_IF_ERROR(WriteFileWhole(shared_file_, ""));
  }
  absl::StatusOr<std::unique_ptr<Hosts>> opened = Hosts::Open(std::move(hosts));
  RemoveIfThere(std::exchange(shared_file_, ""));
  WEIR_ASSIGN_OR_RETURN(hosts_, std::move(opened));
  return absl::OkStatus();
}

HostNeeds LocalCluster::NeedsOf(int host, const std::string& token) const {
  HostNeeds needs;
  if (!options_.program.empty()) needs.program = options_.program[0];
  if (host < options_.ps) needs.shared = shared_file_;
  needs.files = {{kToken, token}};
  const auto add = [&](const std::string& type, int index) {
    if (!options_.tls || HostOf(type, index) != host) return;
    const TlsFiles tls = TlsFilesIn(File(kCertificates), TaskIdentity(type, index));
    for (const std::string& path : {tls.ca, tls.certificate, tls.key}) {
      const absl::StatusOr<std::string> content = ReadTextFile(path);
      // A task without its file says so.
      if (!content.ok()) continue;
      needs.files.emplace_back(
          absl::StrCat(kCertificates, "/", std::filesystem::path(path).filename().string()), *content);
    }
  };
  for (int i = 0; i < options_.ps; ++i) add("ps", i);
  for (int i = 0; i < options_.workers; ++i) add("worker", i);
  if (options_.evaluator) add("evaluator", 0);
  return needs;
}

int LocalCluster::HostOf(absl::string_view type, int index) const {
  if (options_.hosts.empty()) return 0;
  const int count = static_cast<int>(options_.hosts.size());
  if (type == "evaluator") return count - 1;
  return type == "ps" ? index % count : options_.worker_hosts[index];
}

std::string LocalCluster::AddressOn(int host, int port) const {
  Address address;
  address.host = hosts_ == nullptr ? "127.0.0.1" : hosts_->address(host);
  address.port = static_cast<uint16_t>(port);
  return address.ToString();
}

std::string LocalCluster::FolderOf(const TaskProcess& process) const {
  return hosts_ == nullptr ? options_.log_dir : (*hosts_)[process.host].folder();
}

// A path that works for other processes, too.
std::string LocalCluster::summary_path() const {
  return absl::StrCat("/proc/", getpid(), "/fd/", summary_.get());
}

absl::Status LocalCluster::Start(const std::string& type, int index, const std::string& cluster) {
  WEIR_ASSIGN_OR_RETURN(Task* const task, AddTask(type, index));
  return Launch(processes_.emplace_back(TaskProcess{*task, HostOf(type, index), cluster}));
}

// The flags of one of Weir's programs.
std::vector<std::string> LocalCluster::ArgsOf(const TaskProcess& process, const std::string& folder) const {
  const Binaries& binaries = hosts_ == nullptr ? options_.binaries : (*hosts_)[process.host].binaries();
  const bool server = process.task.type == "ps";
  std::vector<std::string> args = ConfigFlags(options_.config, options_.overrides);
  args.insert(args.begin(), server ? binaries.ps_server : binaries.worker);
  args.push_back(absl::StrCat("--token_file=", folder, "/", kToken));
  if (!server) {
    args.push_back(absl::StrCat("--device=", options_.device));
    return args;
  }
  args.push_back(absl::StrCat("--port_file=", folder, "/", PortName(process.task.index)));
  if (hosts_ != nullptr) {
    args.push_back(absl::StrCat("--bind=", hosts_->address(process.host)));
    if (!options_.tls) args.push_back("--insecure_plaintext");
  }
  if (process.task.index != 0) return args;
  args.push_back(
      absl::StrCat("--summary=", hosts_ == nullptr ? summary_path() : absl::StrCat(folder, "/", kSummary)));
  if (options_.http_port.has_value()) args.push_back(absl::StrCat("--http_port=", *options_.http_port));
  if (!options_.tensorboard_dir.empty()) {
    args.push_back(absl::StrCat("--tensorboard_dir=", options_.tensorboard_dir));
  }
  return args;
}

absl::Status LocalCluster::Launch(TaskProcess& process) {
  if (hosts_ != nullptr) WEIR_RETURN_IF_ERROR(hosts_->Reconnect(process.host));
  Task& task = process.task;
  const std::string folder = FolderOf(process);
  const bool own = task.type != "ps" && !options_.program.empty();
  HostConnection::Task start;
  if (own) {
    // A program of the user does not have Weir's flags.
    start.args = options_.program;
    start.environment = ProgramEnvironment(absl::StrCat(folder, "/", kToken), options_.overrides);
    const auto there = static_cast<int>(absl::c_count(options_.worker_hosts, process.host));
    start.sharers = hosts_ == nullptr ? options_.workers : std::max(1, there);
  } else {
    start.args = ArgsOf(process, folder);
    // If this process is itself a task of `weir up`, it has the overrides of that job.
    start.environment["WEIR_SET"] = "";
  }
  const TlsFiles files =
      options_.tls ? TlsFilesIn(absl::StrCat(folder, "/", kCertificates), TaskIdentity(task.type, task.index))
                   : TlsFiles();
  SetTaskEnvironment(process.cluster, task.type, task.index, files, &start.environment);
  start.on_line = [log = task.log.get()](absl::string_view line) { log->Add(line); };
  process.ending = std::make_shared<std::atomic<bool>>(false);
  const std::string host = hosts_ == nullptr ? "" : options_.hosts[process.host].name;
  start.on_exit = [this, log = task.log.get(), name = task.name, host, restarts = process.restarts,
                   own_end = process.ending,
                   begin = Clock::Real().Now()](const ProcessExit& exit, const std::string& lost) {
    TaskExit ended;
    ended.task = name;
    ended.host = host;
    ended.restarts = restarts;
    ended.last_lines = log->LastLines();
    ended.exit = exit;
    ended.lost = lost;
    ended.seconds = absl::ToDoubleSeconds(Clock::Real().Now() - begin);
    ended.was_ended = ending_ || *own_end;
    MutexLock lock(mutex_);
    exits_.push_back(std::move(ended));
    Wake();
  };
  WEIR_RETURN_IF_ERROR(hosts_ == nullptr ? StartHere(process, std::move(start))
                                         : StartOnHost(process, std::move(start)));
  task.ended = false;
  return absl::OkStatus();
}

absl::Status LocalCluster::StartHere(TaskProcess& process, HostConnection::Task start) {
  if (start.sharers > 0) SetProgramEnvironment(ThreadsOfShare(start.sharers), &start.environment);
  Subprocess::Options options;
  options.args = std::move(start.args);
  options.environment = std::move(start.environment);
  options.on_line = std::move(start.on_line);
  options.on_exit = [on_exit = std::move(start.on_exit)](const ProcessExit& exit) { on_exit(exit, ""); };
  WEIR_ASSIGN_OR_RETURN(process.process, Subprocess::Start(std::move(options)));
  return absl::OkStatus();
}

absl::Status LocalCluster::StartOnHost(const TaskProcess& process, HostConnection::Task start) {
  const Task& task = process.task;
  if (task.type == "ps") start.files.push_back(PortName(task.index));
  if (task.name == "ps:0") start.files.push_back(kSummary);
  const std::optional<int> gpus = options_.hosts[process.host].gpus;
  if (task.type == "worker" && gpus.has_value()) {
    const auto first = absl::c_find(options_.worker_hosts, process.host);
    const auto rank = task.index - (first - options_.worker_hosts.begin());
    start.environment["CUDA_VISIBLE_DEVICES"] = *gpus == 0 ? "" : absl::StrCat(rank % *gpus);
  }
  return hosts_->Start(process.host, task.name, std::move(start));
}

LocalCluster::TaskProcess* LocalCluster::Process(absl::string_view task) {
  const auto found = absl::c_find_if(processes_, [&](const auto& p) { return p.task.name == task; });
  return found == processes_.end() ? nullptr : &*found;
}

absl::Status LocalCluster::Restart(const std::string& task) {
  TaskProcess* const found = Process(task);
  if (found == nullptr || !found->task.ended) {
    return absl::InternalError(absl::StrCat(task, " cannot be started again: it has not ended"));
  }
  found->process.reset();
  ++found->restarts;
  if (found->task.type == "ps") {
    const std::string& address = ps_addresses_[found->task.index];
    if (!address.empty()) {
      if (hosts_ == nullptr && !found->reserved_port.valid()) found->reserved_port = ReservePort(address);
      found->cluster = absl::StrCat(R"({"ps":[)", JsonQuote(address), "]}");
    } else {
      RemoveIfThere(File(PortName(found->task.index)));
    }
  }
  return Launch(*found);
}

absl::Status LocalCluster::StartServers() {
  for (int i = 0; i < options_.ps; ++i) RemoveIfThere(File(PortName(i)));
  ps_addresses_.assign(options_.ps, "");
  for (int i = 0; i < options_.ps; ++i) {
    const int before = options_.hosts.empty() ? 0 : i / static_cast<int>(options_.hosts.size());
    const int port = options_.ps_port == 0 ? 0 : options_.ps_port + before;
    // A single address means the server itself, whatever its index: the servers learn of each other from the
    // workers that join.
    WEIR_RETURN_IF_ERROR(
        Start("ps", i, absl::StrCat(R"({"ps":[)", JsonQuote(AddressOn(HostOf("ps", i), port)), "]}")));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> LocalCluster::Missing() {
  std::vector<std::string> missing;
  for (int i = 0; i < options_.ps; ++i) {
    if (!ps_addresses_[i].empty()) continue;
    std::ifstream file(File(PortName(i)));
    std::string text;
    if (!std::getline(file, text)) {
      missing.push_back(absl::StrCat("ps:", i));
      continue;
    }
    const auto local_address = [&]() -> absl::StatusOr<std::string> {
      uint32_t port;
      if (absl::SimpleAtoi(text, &port) && port > 0 && port <= 65535) return AddressOn(HostOf("ps", i), port);
      return absl::InternalError(
          absl::StrCat("ps:", i, " wrote '", text, "' to ", File(PortName(i)), " instead of its port"));
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
  // No process connects to a worker; the port stands for an address that the format requires.
  const auto address = [this](int worker) {
    return JsonQuote(AddressOn(HostOf("worker", worker), worker + 1));
  };
  std::string all;  // of hosts, so that a worker finds its rank on its host
  for (int i = 0; hosts_ != nullptr && i < options_.workers; ++i) {
    absl::StrAppend(&all, i == 0 ? "" : ",", address(i));
  }
  for (int i = 0; i < options_.workers; ++i) {
    const std::string workers =
        hosts_ == nullptr ? absl::StrCat(R"({")", i, R"(":"127.0.0.1:1"})") : absl::StrCat("[", all, "]");
    WEIR_RETURN_IF_ERROR(Start("worker", i, absl::StrCat(R"({"worker":)", workers, ",", ps, "}")));
  }
  if (!options_.evaluator) return absl::OkStatus();
  return Start("evaluator", 0, absl::StrCat("{", ps, "}"));
}

std::vector<TaskExit> LocalCluster::WaitForExits(int also, absl::Duration limit) {
  if (hosts_ != nullptr) hosts_->Beat();
  WaitForWake(also, limit);
  std::vector<TaskExit> exits;
  {
    MutexLock lock(mutex_);
    exits.swap(exits_);
  }
  for (const TaskExit& exit : exits) Find(exit.task)->ended = true;
  return exits;
}

void LocalCluster::EndAll() { SignalAll(SIGTERM); }

void LocalCluster::Kill() { SignalAll(SIGKILL); }

void LocalCluster::Save() {
  ending_ = true;
  EndOne("ps:0", SIGTERM);
}

void LocalCluster::SignalAll(int signal) {
  ending_ = true;
  for (const TaskProcess& process : processes_) Signal(process, signal);
}

void LocalCluster::Signal(const TaskProcess& process, int signal) {
  if (hosts_ != nullptr) hosts_->Signal(process.host, process.task.name, signal);
  if (process.process != nullptr) process.process->Signal(signal);
}

void LocalCluster::EndOne(const std::string& task, int signal) {
  const TaskProcess* const found = Process(task);
  if (found == nullptr || found->ending == nullptr) return;
  *found->ending = true;
  Signal(*found, signal);
}

}  // namespace weir

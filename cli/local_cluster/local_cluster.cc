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

// Files of a job, in the folder of the logs or of a host's agent.
constexpr char kTokenName[] = "token";
constexpr char kCertificatesName[] = "certs";
constexpr char kSummaryName[] = "summary.json";

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
  if (!cluster->options_.hosts.empty()) WEIR_RETURN_IF_ERROR(cluster->OpenHosts());
  return cluster;
}

LocalCluster::~LocalCluster() {
  if (hosts_ == nullptr) EndAll(SIGKILL);
  hosts_.reset();
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

absl::Status LocalCluster::OpenHosts() {
  Hosts::Options hosts;
  hosts.hosts = options_.hosts;
  hosts.access = options_.access;
  hosts.copy = options_.copy;
  hosts.scratch = options_.log_dir;
  WEIR_ASSIGN_OR_RETURN(const std::string token, ReadTextFile(TokenFile()));
  hosts.needs = [this, token](int host) { return NeedsOf(host, token); };
  hosts.on_file = [this](const std::string& name, const std::string& content) {
    const std::string path =
        name == kSummaryName ? summary_path() : absl::StrCat(options_.log_dir, "/", name);
    const absl::Status written = WriteFileWhole(path, content);
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
  needs.files = {{kTokenName, token}};
  const auto add = [&](const std::string& type, int index) {
    if (!options_.tls || HostOf(type, index) != host) return;
    const TlsFiles tls = TlsFilesIn(CertificateFolder(), TaskIdentity(type, index));
    for (const std::string& path : {tls.ca, tls.certificate, tls.key}) {
      const absl::StatusOr<std::string> content = ReadTextFile(path);
      // A task without its file says so.
      if (!content.ok()) continue;
      needs.files.emplace_back(
          absl::StrCat(kCertificatesName, "/", std::filesystem::path(path).filename().string()), *content);
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

std::string LocalCluster::FolderOf(const TaskProcess& task) const {
  return hosts_ == nullptr ? options_.log_dir : (*hosts_)[task.host].folder();
}

std::string LocalCluster::PortFile(int server) const {
  return absl::StrCat(options_.log_dir, "/", PortName(server));
}

std::string LocalCluster::TokenFile() const { return absl::StrCat(options_.log_dir, "/", kTokenName); }
std::string LocalCluster::CertificateFolder() const {
  return absl::StrCat(options_.log_dir, "/", kCertificatesName);
}

// A path that works for other processes, too.
std::string LocalCluster::summary_path() const {
  return absl::StrCat("/proc/", getpid(), "/fd/", summary_.get());
}

absl::Status LocalCluster::Start(const std::string& type, int index, const std::string& cluster) {
  TaskProcess& task = tasks_.emplace_back();
  task.type = type;
  task.index = index;
  task.name = absl::StrCat(type, ":", index);
  task.host = HostOf(type, index);
  task.cluster = cluster;
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

// The flags of one of Weir's programs.
std::vector<std::string> LocalCluster::ArgsOf(const TaskProcess& task, const std::string& folder) const {
  const Binaries& binaries = hosts_ == nullptr ? options_.binaries : (*hosts_)[task.host].binaries();
  const bool server = task.type == "ps";
  std::vector<std::string> args = ConfigFlags(options_.config, options_.overrides);
  args.insert(args.begin(), server ? binaries.ps_server : binaries.worker);
  args.push_back(absl::StrCat("--token_file=", folder, "/", kTokenName));
  if (!server) {
    args.push_back(absl::StrCat("--device=", options_.device));
    return args;
  }
  args.push_back(absl::StrCat("--port_file=", folder, "/", PortName(task.index)));
  if (hosts_ != nullptr) {
    args.push_back(absl::StrCat("--bind=", hosts_->address(task.host)));
    if (!options_.tls) args.push_back("--insecure_plaintext");
  }
  if (task.index != 0) return args;
  args.push_back(absl::StrCat("--summary=",
                              hosts_ == nullptr ? summary_path() : absl::StrCat(folder, "/", kSummaryName)));
  if (options_.http_port.has_value()) args.push_back(absl::StrCat("--http_port=", *options_.http_port));
  if (!options_.tensorboard_dir.empty()) {
    args.push_back(absl::StrCat("--tensorboard_dir=", options_.tensorboard_dir));
  }
  return args;
}

absl::Status LocalCluster::Launch(TaskProcess& task) {
  if (hosts_ != nullptr) WEIR_RETURN_IF_ERROR(hosts_->Reconnect(task.host));
  const std::string folder = FolderOf(task);
  const bool own = task.type != "ps" && !options_.program.empty();
  HostConnection::Task start;
  if (own) {
    // A program of the user does not have Weir's flags.
    start.args = options_.program;
    start.environment = ProgramEnvironment(absl::StrCat(folder, "/", kTokenName), options_.overrides);
    const auto there = static_cast<int>(absl::c_count(options_.worker_hosts, task.host));
    start.sharers = hosts_ == nullptr ? options_.workers : std::max(1, there);
  } else {
    start.args = ArgsOf(task, folder);
  }
  const TlsFiles files = options_.tls ? TlsFilesIn(absl::StrCat(folder, "/", kCertificatesName),
                                                   TaskIdentity(task.type, task.index))
                                      : TlsFiles();
  SetTaskEnvironment(task.cluster, task.type, task.index, files, &start.environment);
  start.on_line = [log = task.log.get()](absl::string_view line) { log->Add(line); };
  task.ending = std::make_shared<std::atomic<bool>>(false);
  start.on_exit = [this, log = task.log.get(), name = task.name, restarts = task.restarts,
                   own_end = task.ending,
                   begin = Clock::Real().Now()](const ProcessExit& exit, const std::string& lost) {
    TaskExit ended;
    ended.task = name;
    ended.restarts = restarts;
    ended.last_lines = log->LastLines();
    ended.exit = exit;
    ended.lost = lost;
    ended.seconds = absl::ToDoubleSeconds(Clock::Real().Now() - begin);
    ended.was_ended = ending_ || *own_end;
    MutexLock lock(mutex_);
    exits_.push_back(std::move(ended));
    eventfd_write(wake_.get(), 1);
  };
  WEIR_RETURN_IF_ERROR(hosts_ == nullptr ? StartHere(task, std::move(start))
                                         : StartOnHost(task, std::move(start)));
  task.ended = false;
  return absl::OkStatus();
}

absl::Status LocalCluster::StartHere(TaskProcess& task, HostConnection::Task start) {
  if (start.sharers > 0) SetProgramEnvironment(ThreadsOfShare(start.sharers), &start.environment);
  Subprocess::Options process;
  process.args = std::move(start.args);
  process.environment = std::move(start.environment);
  process.on_line = std::move(start.on_line);
  process.on_exit = [on_exit = std::move(start.on_exit)](const ProcessExit& exit) { on_exit(exit, ""); };
  WEIR_ASSIGN_OR_RETURN(task.process, Subprocess::Start(std::move(process)));
  return absl::OkStatus();
}

absl::Status LocalCluster::StartOnHost(const TaskProcess& task, HostConnection::Task start) {
  if (task.type == "ps") start.files.push_back(PortName(task.index));
  if (task.name == "ps:0") start.files.push_back(kSummaryName);
  const std::optional<int> gpus = options_.hosts[task.host].gpus;
  if (task.type == "worker" && gpus.has_value()) {
    const auto first = absl::c_find(options_.worker_hosts, task.host);
    const auto rank = task.index - (first - options_.worker_hosts.begin());
    start.environment["CUDA_VISIBLE_DEVICES"] = *gpus == 0 ? "" : absl::StrCat(rank % *gpus);
  }
  return hosts_->Start(task.host, task.name, std::move(start));
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
      if (hosts_ == nullptr && !found->reserved_port.valid()) found->reserved_port = ReservePort(address);
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
    const int before = options_.hosts.empty() ? 0 : i / static_cast<int>(options_.hosts.size());
    const int port = options_.ps_port == 0 ? 0 : options_.ps_port + before;
    // A single address means the server itself, whatever its index: the servers learn of each other from the
    // workers that join.
    WEIR_RETURN_IF_ERROR(
        Start("ps", i, absl::StrCat(R"({"ps":[)", JsonQuote(AddressOn(HostOf("ps", i), port)), "]}")));
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
      if (absl::SimpleAtoi(text, &port) && port > 0 && port <= 65535) return AddressOn(HostOf("ps", i), port);
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
  pollfd fds[2] = {{wake_.get(), POLLIN, 0}, {also, POLLIN, 0}};
  // An interrupted poll() needs no retry: the caller calls again.
  if (hosts_ != nullptr) hosts_->Beat();
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
  for (const auto& task : tasks_) Signal(task, signal);
}

void LocalCluster::Signal(const TaskProcess& task, int signal) {
  if (hosts_ != nullptr) hosts_->Signal(task.host, task.name, signal);
  if (task.process != nullptr) task.process->Signal(signal);
}

void LocalCluster::EndFrom(const std::string& task, int signal) {
  ending_ = true;
  EndOne(task, signal);
}

void LocalCluster::EndOne(const std::string& task, int signal) {
  const TaskProcess* const found = Find(task);
  if (found == nullptr || found->ending == nullptr) return;
  *found->ending = true;
  Signal(*found, signal);
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

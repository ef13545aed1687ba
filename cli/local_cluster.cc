#include "cli/local_cluster.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace weir {
namespace {

std::string Quoted(const std::string& text) { return absl::StrCat("\"", text, "\""); }

void UnlinkIfThere(const std::string& path) { unlink(path.c_str()); }

}  // namespace

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Create(Options options) {
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake < 0) return absl::ErrnoToStatus(errno, "cannot make an eventfd");
  return std::unique_ptr<LocalCluster>(new LocalCluster(std::move(options), wake));
}

LocalCluster::~LocalCluster() {
  EndAll(SIGKILL);
  tasks_.clear();  // joins their threads, which write to wake_
  close(wake_);
}

std::string LocalCluster::PortFile(int server) const {
  return absl::StrCat(options_.log_dir, "/ps-", server, ".port");
}

std::string LocalCluster::summary_path() const { return absl::StrCat(options_.log_dir, "/summary.json"); }

absl::Status LocalCluster::Start(const std::string& type, int index, const std::string& program,
                                 const std::string& cluster, std::vector<std::string> more_args) {
  const std::string name = absl::StrCat(type, ":", index);
  TaskLog::Options log;
  log.task = name;
  log.path = absl::StrCat(options_.log_dir, "/", type, "-", index, ".log");
  log.show = options_.show;
  log.console = options_.console;
  log.color = static_cast<Console::Color>(static_cast<int>(Console::Color::kTask0) + tasks_.size());

  TaskProcess& task = tasks_.emplace_back();
  task.name = name;
  task.type = type;
  task.ended = true;  // until it has begun
  WEIR_ASSIGN_OR_RETURN(task.log, TaskLog::Open(std::move(log)));

  Subprocess::Options process;
  process.args = {program, absl::StrCat("--config=", options_.config)};
  for (const auto& override : options_.overrides) {
    process.args.push_back("--set");
    process.args.push_back(override);
  }
  for (auto& arg : more_args) process.args.push_back(std::move(arg));
  process.environment["TF_CONFIG"] =
      absl::StrCat(R"({"cluster":)", cluster, R"(,"task":{"type":")", type, R"(","index":)", index, "}}");
  process.on_line = [log = task.log.get()](absl::string_view line) { log->Add(line); };
  process.on_exit = [this, name, start = Clock::Real().Now()](const ProcessExit& exit) {
    TaskExit ended;
    ended.task = name;
    ended.exit = exit;
    ended.seconds = absl::ToDoubleSeconds(Clock::Real().Now() - start);
    ended.was_ended = ending_;
    MutexLock lock(mutex_);
    exits_.push_back(std::move(ended));
    eventfd_write(wake_, 1);
  };
  WEIR_ASSIGN_OR_RETURN(task.process, Subprocess::Start(std::move(process)));
  task.ended = false;
  return absl::OkStatus();
}

absl::Status LocalCluster::StartServers() {
  UnlinkIfThere(summary_path());
  for (int i = 0; i < options_.ps; ++i) UnlinkIfThere(PortFile(i));
  ps_addresses_.assign(options_.ps, "");
  for (int i = 0; i < options_.ps; ++i) {
    std::vector<std::string> args = {absl::StrCat("--port_file=", PortFile(i))};
    if (i == 0) {
      args.push_back(absl::StrCat("--summary=", summary_path()));
      if (options_.http_port.has_value()) args.push_back(absl::StrCat("--http_port=", *options_.http_port));
    }
    // One address whatever the index is "me": the servers learn of each other from the workers that join.
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
    uint32_t port;
    if (!absl::SimpleAtoi(text, &port) || port == 0 || port > 65535) {
      return absl::InternalError(
          absl::StrCat("ps:", i, " wrote '", text, "' to ", PortFile(i), " instead of its port"));
    }
    ps_addresses_[i] = absl::StrCat("127.0.0.1:", port);
  }
  return missing;
}

absl::Status LocalCluster::StartWorkers() {
  const std::string ps = absl::StrCat(R"("ps":[)",
                                      absl::StrJoin(ps_addresses_, ",",
                                                    [](std::string* out, const std::string& address) {
                                                      absl::StrAppend(out, Quoted(address));
                                                    }),
                                      "]");
  for (int i = 0; i < options_.workers; ++i) {
    // Nobody connects to a worker; the port stands for an address that the format asks for.
    const std::string cluster = absl::StrCat(R"({"worker":{")", i, R"(":"127.0.0.1:1"},)", ps, "}");
    WEIR_RETURN_IF_ERROR(Start("worker", i, options_.binaries.worker, cluster, {}));
  }
  if (!options_.evaluator) return absl::OkStatus();
  return Start("evaluator", 0, options_.binaries.worker, absl::StrCat("{", ps, "}"), {});
}

std::vector<TaskExit> LocalCluster::WaitForExits(int also, absl::Duration limit) {
  pollfd fds[2] = {{wake_, POLLIN, 0}, {also, POLLIN, 0}};
  // Interrupted or not: what is there is taken, and the caller comes again.
  poll(fds, 2, static_cast<int>(absl::ToInt64Milliseconds(std::max(limit, absl::ZeroDuration()))));
  eventfd_t ignored;
  eventfd_read(wake_, &ignored);
  std::vector<TaskExit> exits;
  {
    MutexLock lock(mutex_);
    exits.swap(exits_);
  }
  for (const auto& exit : exits) {
    for (auto& task : tasks_) {
      if (task.name == exit.task) task.ended = true;
    }
  }
  return exits;
}

void LocalCluster::EndAll(int signal) {
  ending_ = true;
  for (auto& task : tasks_) {
    if (task.process != nullptr) task.process->Signal(signal);
  }
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

bool LocalCluster::Runs(absl::string_view type) const {
  return std::any_of(tasks_.begin(), tasks_.end(), [&](const auto& t) { return t.type == type && !t.ended; });
}

std::vector<std::string> LocalCluster::LastLines(const std::string& task) const {
  for (const auto& candidate : tasks_) {
    if (candidate.name == task && candidate.log != nullptr) return candidate.log->LastLines();
  }
  return {};
}

}  // namespace weir

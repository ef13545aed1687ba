#include "tests/integration/processes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "catch2/catch.hpp"
#include "cli/commands/grpc_status_client.h"
#include "tests/integration/transport.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{10};

std::string JobOf(const std::string& task) { return task.substr(0, task.find(':')); }

}  // namespace

// ---- files

TestFolder::TestFolder() {
  const char* parent = std::getenv("TEST_TMPDIR");
  path_ = std::string(parent == nullptr ? "/tmp" : parent) + "/job-XXXXXX";
  REQUIRE(mkdtemp(path_.data()) != nullptr);
}

TestFolder::~TestFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TestFolder::Write(const std::string& name, const std::string& bytes) const {
  std::ofstream file(path(name), std::ios::binary);
  file << bytes;
  file.close();
  REQUIRE(file.good());
  return path(name);
}

std::vector<std::string> With(std::vector<std::string> set, const std::vector<std::string>& more) {
  set.insert(set.end(), more.begin(), more.end());
  return set;
}

std::string ReadWholeFile(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

// ---- ports

ReservedPort::ReservedPort() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int yes = 1;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
  REQUIRE(bind(socket_, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0);
}

ReservedPort::~ReservedPort() { close(socket_); }

std::string ReservedPort::address() const {
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  REQUIRE(getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &size) == 0);
  return "127.0.0.1:" + std::to_string(ntohs(bound.sin_port));
}

void ReservedPort::Listen() { REQUIRE(listen(socket_, 1) == 0); }

// ---- processes

TestProcess::TestProcess(std::vector<std::string> args, std::map<std::string, std::string> environment,
                         std::string log_path)
    : name_(std::filesystem::path(log_path).stem().string()), log_path_(std::move(log_path)) {
  Subprocess::Options options;
  options.args = std::move(args);
  if (environment.count("TF_CONFIG") == 0) options.remove_environment = {"TF_CONFIG"};
  options.environment = std::move(environment);
  options.output_file = log_path_;
  auto process = Subprocess::Start(std::move(options));
  INFO(process.status());
  REQUIRE(process.ok());
  process_ = std::move(*process);
}

int TestProcess::Wait(std::chrono::milliseconds limit) {
  const auto exit = process_->Wait(Clock::now() + limit);
  INFO(name_ << " did not end within " << limit.count() << " ms; its log:\n" << log());
  REQUIRE(exit.has_value());
  return exit->status();
}

bool TestProcess::Ended() { return process_->Wait(Clock::now()).has_value(); }

void TestProcess::WaitForLog(const std::string& text) {
  const auto deadline = Clock::now() + kHangLimit;
  while (log().find(text) == std::string::npos) {
    INFO(name_ << " has not logged '" << text << "'; its log:\n" << log());
    REQUIRE(Clock::now() < deadline);
    std::this_thread::sleep_for(kPoll);
  }
}

std::string TestProcess::WaitForFile(const std::string& path) {
  const auto deadline = Clock::now() + kHangLimit;
  while (true) {
    std::string contents = ReadWholeFile(path);
    if (!contents.empty()) return contents;
    INFO(name_ << " has not written " << path << "; its log:\n" << log());
    REQUIRE(Clock::now() < deadline);
    std::this_thread::sleep_for(kPoll);
  }
}

RunResult RunToEnd(std::vector<std::string> args, std::map<std::string, std::string> environment) {
  const TestFolder folder;
  TestProcess process(std::move(args), std::move(environment), folder.path("output"));
  RunResult result;
  result.status = process.Wait();
  result.output = process.log();
  return result;
}

// ---- jobs

TestJob::TestJob(Options options) : options_(std::move(options)) {
  for (uint32_t i = 0; i < options_.ps; ++i) tasks_.push_back("ps:" + std::to_string(i));
  if (options_.chief) tasks_.push_back("chief:0");
  for (uint32_t i = 0; i < options_.workers; ++i) tasks_.push_back("worker:" + std::to_string(i));
  if (options_.evaluator) tasks_.push_back("evaluator:0");
  for (const std::string& task : tasks_) addresses_[task] = ports_[task].address();
}

std::vector<std::string> TestJob::ps_addresses() const {
  std::vector<std::string> addresses;
  for (uint32_t i = 0; i < options_.ps; ++i) addresses.push_back(address("ps:" + std::to_string(i)));
  return addresses;
}

std::string TestJob::ClusterJson() const {
  nlohmann::json cluster;
  // In TensorFlow's specs an evaluator is not a part of the training cluster.
  for (const std::string& task : tasks_) {
    if (task != "evaluator:0") cluster[JobOf(task)].push_back(address(task));
  }
  return cluster.dump();
}

std::string TestJob::TfConfig(const std::string& task) const {
  nlohmann::json config;
  config["cluster"] = nlohmann::json::parse(ClusterJson());
  config["task"] = {{"type", JobOf(task)}, {"index", std::stoi(task.substr(task.find(':') + 1))}};
  config["environment"] = "cloud";
  return config.dump();
}

std::vector<std::string> TestJob::Args(const std::string& task) const {
  std::vector<std::string> args = {JobOf(task) == "ps" ? "ps_server/ps_server" : "worker/worker",
                                   "--config=" + options_.config};
  for (const std::string& override : CommonOverrides()) args.insert(args.end(), {"--set", override});
  for (const std::string& override : options_.set) args.insert(args.end(), {"--set", override});
  if (task == "ps:0") args.push_back("--summary=" + folder_.path("summary.json"));
  return args;
}

TestProcess& TestJob::Start(const std::string& task, const std::vector<std::string>& more_args) {
  std::vector<std::string> args = Args(task);
  args.insert(args.end(), more_args.begin(), more_args.end());
  return StartWith(task, args, {{"TF_CONFIG", TfConfig(task)}});
}

TestProcess& TestJob::StartWith(const std::string& task, const std::vector<std::string>& args,
                                const std::map<std::string, std::string>& environment) {
  const std::string log = folder_.path(task + "." + std::to_string(started_++) + ".log");
  processes_[task] = std::make_unique<TestProcess>(args, environment, log);
  return *processes_[task];
}

void TestJob::StartAll() {
  const auto start = [this](const std::string& job) {
    for (const std::string& task : tasks_) {
      if (JobOf(task) == job) Start(task);
    }
  };
  start("ps");
  if (options_.evaluator) {
    start("evaluator");
    WaitForTask("evaluator:0", "waiting");
  }
  start("chief");
  start("worker");
}

v1::ClusterStatus TestJob::WaitForStatus(const std::string& what,
                                         const std::function<bool(const v1::ClusterStatus&)>& wanted) {
  const auto deadline = Clock::now() + kHangLimit;
  while (true) {
    // A new connection each time: a connection that was refused, since the server is only starting, would be
    // slow to retry.
    const auto status = StatusClient(address("ps:0"), {}, tls_).Get(absl::Seconds(5));
    if (status.ok() && wanted(*status)) return *status;
    INFO("waited for: " << what << "; the last status: "
                        << (status.ok() ? status->ShortDebugString() : status.status().ToString())
                        << "\nlog of ps:0:\n"
                        << (processes_.count("ps:0") > 0 ? processes_["ps:0"]->log() : ""));
    REQUIRE(Clock::now() < deadline);
    std::this_thread::sleep_for(kPoll);
  }
}

void TestJob::WaitForTask(const std::string& task, const std::string& state) {
  WaitForStatus(task + " is " + state, [&](const v1::ClusterStatus& status) {
    return std::any_of(status.tasks().begin(), status.tasks().end(), [&](const v1::TaskStatus& shown) {
      return shown.task() == task && shown.state() == state;
    });
  });
}

void TestJob::WaitForPushes(uint64_t pushes) {
  WaitForStatus("pushes", [pushes](const v1::ClusterStatus& status) { return status.pushes() >= pushes; });
}

void TestJob::ExpectExit(const std::string& task, int status, std::chrono::milliseconds limit) {
  TestProcess& process = *processes_.at(task);
  const int got = process.Wait(limit);
  INFO(task << "'s log:\n" << process.log());
  CHECK(got == status);
}

void TestJob::ExpectAllExit(int status) {
  for (auto& [task, process] : processes_) ExpectExit(task, status);
}

nlohmann::json TestJob::Summary() const {
  const std::string text = ReadWholeFile(folder_.path("summary.json"));
  REQUIRE_FALSE(text.empty());
  return nlohmann::json::parse(text);
}

void CheckSummary(const nlohmann::json& summary, const std::string& mode, uint32_t ps, uint32_t workers,
                  uint64_t examples) {
  INFO(summary.dump(2));
  for (const char* field : {"name",
                            "version",
                            "seed",
                            "config",
                            "mode",
                            "staleness_bound",
                            "parts",
                            "ps",
                            "workers",
                            "steps",
                            "pushes",
                            "examples",
                            "wall_seconds",
                            "examples_per_second",
                            "train_loss",
                            "test_accuracy",
                            "test_loss",
                            "evaluations",
                            "version_staleness",
                            "lead",
                            "bytes_pushed",
                            "bytes_pulled",
                            "weights_sha256"}) {
    INFO(field);
    REQUIRE(summary.contains(field));
  }
  CHECK(summary["mode"] == mode);
  CHECK(summary["staleness_bound"].is_null() == (mode != "bounded"));
  CHECK(summary["parts"].is_null() == (mode != "sync"));
  CHECK(summary["config"]["seed"] == summary["seed"]);
  CHECK(summary["config"]["consistency"]["mode"] == mode);
  CHECK(summary["ps"] == ps);
  CHECK(summary["workers"] == workers);
  CHECK(summary["examples"] == examples);
  CHECK(summary["steps"] > 0);
  CHECK(summary["pushes"] >= summary["steps"]);
  CHECK(summary["wall_seconds"] > 0);
  CHECK(summary["examples_per_second"] > 0);
  CHECK(summary["train_loss"] >= 0);
  CHECK(summary["test_loss"] > 0);
  CHECK(summary["version_staleness"]["p50"] <= summary["version_staleness"]["p99"]);
  CHECK(summary["version_staleness"]["p99"] <= summary["version_staleness"]["max"]);
  CHECK(summary["lead"]["p50"] <= summary["lead"]["max"]);
  if (mode == "sync") CHECK(summary["version_staleness"]["max"] == 0);
  CHECK(summary["bytes_pushed"] > 0);
  CHECK(summary["bytes_pulled"] > 0);
  CHECK(summary["weights_sha256"].get<std::string>().size() == 64);
  CHECK_FALSE(summary.contains("failure"));
}

}  // namespace weir

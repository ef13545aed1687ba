#pragma once

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/system/subprocess.h"
#include "common/threads/mutex.h"
#include "tests/cli/fake_coordinator.h"

// `weir up` as a process, with stand-ins for ps_server and worker (fake/).
namespace weir {

namespace fs = std::filesystem;

constexpr auto kLimit = std::chrono::seconds(60);

inline std::string ReadFile(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Each test case has a folder of its own, in which `weir` runs.
class Up {
 public:
  Up() : dir_(fs::path(std::getenv("TEST_TMPDIR")) / "case-XXXXXX") {
    std::string name = dir_.string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    dir_ = name;
    std::ofstream(dir_ / "job.json")
        << R"({"name": "small", "model": {"layers": [{"type": "dense", "units": 10}]},
      "data": {"format": "digits"}})";
    environment["STATE"] = dir_.string();
    environment["TMPDIR"] = dir_.string();
  }
  ~Up() {
    process_.reset();
    // A task that still ends may take a file of its own away meanwhile.
    std::error_code error;
    fs::remove_all(dir_, error);
  }

  std::map<std::string, std::string> environment;
  std::string bin_dir = "tests/cli/fake";  // "": not given
  bool demo = false;                       // `weir demo` instead
  std::string ignored;                     // signals that `weir` is started with as ignored, such as "HUP"

  fs::path dir() const { return dir_; }
  std::string Args(const std::string& task) const { return ReadFile(dir_ / (task + ".args")); }
  // The log folders that `weir` made by itself and that still exist.
  std::vector<std::string> LogFolders() const {
    std::vector<std::string> folders;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      if (entry.path().filename().string().rfind("weir-", 0) == 0) folders.push_back(entry.path().string());
    }
    return folders;
  }
  std::string output() {
    MutexLock lock(mutex_);
    return output_;
  }

  void Start(std::vector<std::string> args) {
    Subprocess::Options options;
    options.args = {"cli/weir", "up", (dir_ / "job.json").string()};
    if (demo) options.args = {"cli/weir", "demo", "--config=" + (dir_ / "job.json").string()};
    if (!bin_dir.empty()) options.args.push_back("--bin_dir=" + bin_dir);
    options.args.insert(options.args.end(), args.begin(), args.end());
    if (!ignored.empty()) {
      const std::vector<std::string> before = {"sh", "-c", "trap '' " + ignored + "; exec \"$0\" \"$@\""};
      options.args.insert(options.args.begin(), before.begin(), before.end());
    }
    options.environment = environment;
    options.on_line = [this](absl::string_view line) {
      MutexLock lock(mutex_);
      output_.append(line.data(), line.size()).append("\n");
    };
    auto started = Subprocess::Start(std::move(options));
    REQUIRE(started.ok());
    process_ = std::move(*started);
  }
  void Signal(int signal) { process_->Signal(signal); }
  // The exit as a shell reports it.
  int Wait() {
    const auto exit = process_->Wait(std::chrono::steady_clock::now() + kLimit);
    REQUIRE(exit.has_value());
    return exit->status();
  }
  int Run(std::vector<std::string> args) {
    Start(std::move(args));
    return Wait();
  }

  // Waits until the task runs; returns its process id.
  pid_t Await(const std::string& task) { return std::stoi(AwaitFile(task + ".pid")); }
  std::string AwaitFile(const std::string& name) {
    const auto deadline = std::chrono::steady_clock::now() + kLimit;
    while (!fs::exists(dir_ / name)) {
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return ReadFile(dir_ / name);
  }
  void AwaitOutput(const std::string& text) {
    const auto deadline = std::chrono::steady_clock::now() + kLimit;
    while (output().find(text) == std::string::npos) {
      INFO(output());
      REQUIRE(std::chrono::steady_clock::now() < deadline);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

 private:
  fs::path dir_;
  Mutex mutex_;
  std::string output_;
  std::unique_ptr<Subprocess> process_;
};

// The ports of its servers answer with this status of the job.
class UpWithStatus : public Up {
 public:
  explicit UpWithStatus(const v1::ClusterStatus& status) : coordinator_(&status) {
    REQUIRE(coordinator_.port() != 0);
    environment["FAKE_PORT"] = std::to_string(coordinator_.port());
  }

 private:
  FakeCoordinator coordinator_;
};

// A zombie that its new parent has not reaped yet counts as gone.
inline bool IsGone(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string id, name, state;
  return !(stat >> id >> name >> state) || state == "Z" || state == "X";
}

inline bool IsSoonGone(pid_t pid) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (!IsGone(pid) && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return IsGone(pid);
}

}  // namespace weir

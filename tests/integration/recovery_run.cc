#include "tests/integration/recovery_run.h"

#include <csignal>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "cli/commands/grpc_status_client.h"

namespace weir {
namespace {

TestJob::Options JobOptions(const RecoveryRun::Options& options, const std::string& directory) {
  TestJob::Options job;
  job.ps = options.servers;
  job.workers = options.workers;
  if (!options.config.empty()) job.config = options.config;
  job.set = {absl::StrCat("checkpoint.directory=\"", directory, "\""), "cluster.server_wait_seconds=30",
             "cluster.grace_seconds=0.05", "cluster.lease_seconds=20"};
  job.set.insert(job.set.end(), options.set.begin(), options.set.end());
  return job;
}

}  // namespace

RecoveryRun::RecoveryRun(const Options& options)
    : workers_(options.workers),
      directory_(options.directory.empty() ? folder_.path("runs") : options.directory),
      job_(std::make_unique<TestJob>(JobOptions(options, directory_))) {
  spec_ = nlohmann::json::parse(job_->ClusterJson());
  job_->StartAll();
}

std::vector<std::string> RecoveryRun::ArgsElsewhere(const std::string& task) {
  spec_["ps"][std::stoi(task.substr(3))] = fresh_ports_.emplace_back().address();
  spec_path_ = folder_.Write(absl::StrCat("cluster_", fresh_ports_.size(), ".json"), spec_.dump());
  return ArgsWithNewSpec(task);
}

std::vector<std::string> RecoveryRun::ArgsWithNewSpec(const std::string& task) const {
  std::vector<std::string> args = job_->Args(task);
  args.insert(args.end(), {"--cluster=" + spec_path_, "--task=" + task});
  return args;
}

std::string RecoveryRun::AddressNow(const std::string& task) const {
  return spec_["ps"][std::stoi(task.substr(3))];
}

v1::ClusterStatus RecoveryRun::WaitForStep(uint64_t step) {
  const auto status = job_->WaitForStatus(absl::StrCat("step ", step), [step](const auto& status) {
    return status.state() == v1::RUNNING && status.step() >= step;
  });
  REQUIRE(status.step() < status.total_steps());
  return status;
}

v1::ClusterStatus RecoveryRun::WaitUntilWhole() {
  return job_->WaitForStatus("the job to run with all workers", [this](const auto& status) {
    return status.state() == v1::RUNNING && status.membership().members_size() == static_cast<int>(workers_);
  });
}

v1::CheckpointReply RecoveryRun::TakeCheckpoint() {
  const auto taken = StatusClient(job_->address("ps:0")).TakeCheckpoint(absl::FromChrono(kHangLimit));
  INFO(taken.status().ToString() << "\nlog of ps:0:\n" << (*job_)["ps:0"].log());
  REQUIRE(taken.ok());
  CHECK(std::filesystem::exists(taken->directory() + "/manifest.json"));
  return *taken;
}

void RecoveryRun::Kill(const std::string& task) {
  (*job_)[task].Signal(SIGKILL);
  REQUIRE((*job_)[task].Wait() == 128 + SIGKILL);
}

nlohmann::json RecoveryRun::WaitForEnd() {
  job_->ExpectAllExit(0);
  return job_->Summary();
}

}  // namespace weir

#include "ps_server/process/grpc_local_coordinator.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/object_store/object_file_system.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/checkpoints/job_store.h"
#include "ps_server/coordinator/shards/shard_fleet.h"

namespace weir {
namespace {

// The coordinator's link to the shard of its own process.
class LocalShardLink final : public ShardLink {
 public:
  LocalShardLink(Shard* shard, ShardLinkEvents events) : shard_(shard), ended_(std::move(events.ended)) {
    shard_->SetReporter(std::move(events.report));
    events.connected();
  }
  void Send(const v1::ControlMessage& message) override {
    shard_->Control(message);
    if (message.has_shutdown()) ended_(absl::OkStatus());
  }

 private:
  Shard* const shard_;
  const std::function<void(absl::Status)> ended_;
};

constexpr absl::Duration kAgain = absl::Seconds(1);
// Between two log lines that say what is awaited.
constexpr absl::Duration kComplaint = absl::Seconds(10);

// Waits for a disk without room, as the job's end does.
absl::StatusOr<std::unique_ptr<JobStore>> OpenStore(const JobStoreOnDisk::Options& options,
                                                    double wait_seconds) {
  const absl::Time until = absl::Now() + absl::Seconds(wait_seconds);
  absl::Time complain = absl::InfinitePast();
  while (true) {
    absl::StatusOr<std::unique_ptr<JobStore>> store = JobStoreOnDisk::Open(options);
    if (store.ok() || !MayPass(store.status())) return store;
    const absl::Time now = absl::Now();
    if (now >= until) {
      return StorageFailure(absl::StrCat(
          "ps:0 could not write there within checkpoint.save_wait_seconds = ", wait_seconds, ": ",
          store.status().message(), "; nothing has changed: make room, and start the job again"));
    }
    if (now >= complain) {
      complain = now + kComplaint;
      LogWarning("ps:0 cannot start yet: ", store.status().message(), "; it is tried again for another ",
                 absl::FormatDuration(absl::Ceil(until - now, absl::Seconds(1))),
                 " (checkpoint.save_wait_seconds = ", wait_seconds, "), make room meanwhile");
    }
    absl::SleepFor(std::min(kAgain, until - now));
  }
}

}  // namespace

GrpcLocalCoordinator::GrpcLocalCoordinator(Options options)
    : options_(std::move(options)), service_(options_.loop, options_.admission) {}

absl::Status GrpcLocalCoordinator::Start() {
  const v1::CheckpointConfig& checkpoint = options_.server->config.checkpoint();
  links_ = std::make_unique<GrpcShardLinks>(options_.loop, options_.server->token, options_.credentials);
  Coordinator::Options coordinator;
  coordinator.config = options_.server->config;
  coordinator.job.set_id(options_.new_job);
  coordinator.job.set_name(options_.server->config.name());
  coordinator.clock = options_.clock;
  coordinator.workers = options_.server->workers;
  coordinator.worker_names = options_.server->worker_names;
  coordinator.shard_addresses = options_.server->ps_addresses;
  coordinator.memory_bytes = options_.memory_bytes;
  coordinator.tls = options_.credentials->tls() != nullptr;
  if (checkpoint.has_init_from()) {
    WEIR_ASSIGN_OR_RETURN(const FoundCheckpoint found,
                          ResolveCheckpoint(AnyStorage(), checkpoint.init_from()));
    for (const std::string& refused : found.refused) {
      LogWarning("passed over a damaged checkpoint: ", refused, "; the job starts with the weights of ",
                 found.folder);
    }
    coordinator.init_from = found.manifest.step();
  }
  coordinator.init_from_before = [this](uint64_t step, std::function<void(absl::StatusOr<uint64_t>)> found) {
    const auto search = [from = options_.server->config.checkpoint().init_from(), step,
                         found = std::move(found)] {
      const auto whole = FindWholeBefore(AnyStorage(), from, step);
      found(whole.ok() ? absl::StatusOr<uint64_t>(whole->manifest.step()) : whole.status());
    };
    try {
      search_ = std::async(std::launch::async, search);
    } catch (const std::system_error&) {
      search();  // no thread can be started now
    }
  };
  coordinator.open_link = [this](uint32_t index, const std::string& address,
                                 ShardLinkEvents events) -> std::unique_ptr<ShardLink> {
    if (index == 0) return std::make_unique<LocalShardLink>(options_.shard, std::move(events));
    return links_->Open(index, address, std::move(events));
  };
  coordinator.on_end = options_.on_end;
  std::unique_ptr<JobStore> store;
  if (checkpoint.has_directory()) {
    JobStoreOnDisk::Options options;
    options.file_system = options_.files;
    options.directory = checkpoint.directory();
    options.job = coordinator.job;
    options.keep = static_cast<int>(checkpoint.keep());
    WEIR_ASSIGN_OR_RETURN(store, OpenStore(options, checkpoint.save_wait_seconds()));
  }
  coordinator_ = std::make_unique<Coordinator>(std::move(coordinator), std::move(store));
  service_.Start(coordinator_.get());
  return absl::OkStatus();
}

void GrpcLocalCoordinator::CloseLinks() {
  if (links_ != nullptr) links_->Close();
}

}  // namespace weir

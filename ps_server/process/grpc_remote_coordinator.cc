#include "ps_server/process/grpc_remote_coordinator.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/address.h"
#include "common/protocol/handshake.h"
#include "common/rpc/tls.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/job/job.h"

namespace weir {

GrpcRemoteCoordinator::GrpcRemoteCoordinator(Options options)
    : options_(std::move(options)),
      control_(Control()),
      refusals_(options_.loop, options_.admission),
      watch_(Watch()) {}

ShardControlService::Options GrpcRemoteCoordinator::Control() const {
  ShardControlService::Options control;
  control.shard = options_.shard;
  control.loop = options_.loop;
  control.admission = options_.admission;
  control.clock = options_.clock;
  control.may_return = options_.config.checkpoint().has_directory();
  control.index = options_.index;
  control.instance = options_.instance;
  control.on_end = options_.end;
  return control;
}

CoordinatorWatch::Options GrpcRemoteCoordinator::Watch() {
  CoordinatorWatch::Options watch;
  watch.config = options_.config;
  watch.coordinator_address = options_.coordinator_address;
  watch.clock = options_.clock;
  watch.presence = [this] {
    return CoordinatorWatch::Presence{control_.last_heard(), control_.attached(), control_.CoordinatorName()};
  };
  watch.background = [this](const std::function<void()>& work) { options_.background->Run(work); };
  watch.is_done = [this] { return IsDone(); };
  watch.probe = [this] {
    return ProbeTls(options_.coordinator_address, /*server=*/0, options_.credentials->tls());
  };
  watch.drop_silent = [this](absl::Duration limit) { control_.DropSilent(limit); };
  watch.end = options_.end;
  watch.complain = [](const std::string& complaint) { LogWarning(complaint); };
  return watch;
}

absl::Status GrpcRemoteCoordinator::Start(uint16_t port) {
  control_.Start();
  refusals_.Refuse(
      [this] { return CheckAddressee(control_.job(), options_.index, /*job=*/0, /*shard_plus_one=*/1); });
  if (options_.coordinator_address.empty()) return absl::OkStatus();
  WEIR_ASSIGN_OR_RETURN(Address own, ParseAddress(options_.own_address));
  if (!own.is_unix() && own.port == 0) own.port = port;
  GrpcAnnouncer::Options announcer;
  announcer.loop = options_.loop;
  announcer.coordinator_address = options_.coordinator_address;
  announcer.token = options_.token;
  announcer.credentials = options_.credentials;
  announcer.config = options_.config;
  announcer.request.set_shard(options_.index);
  announcer.request.set_address(own.ToString());
  announcer.request.set_instance(options_.instance);
  *announcer.request.mutable_protocol() = OwnProtocol();
  announcer.job = [this] { return control_.job(); };
  announcer.on_refused = options_.end;
  announcer.on_answer = [this] { watch_.OnAnswer(); };
  announcer.on_no_answer = [this] { watch_.OnNoAnswer(); };
  announcer_ = std::make_unique<GrpcAnnouncer>(std::move(announcer));
  return absl::OkStatus();
}

void GrpcRemoteCoordinator::Tick(absl::Time now) {
  if (announcer_ != nullptr) announcer_->Tick(now, control_.attached());
  watch_.Tick();
}

void GrpcRemoteCoordinator::StopAnnouncing() {
  if (announcer_ != nullptr) announcer_->Close();
}

bool GrpcRemoteCoordinator::IsDone() const {
  if (!options_.config.checkpoint().has_directory()) return false;
  const auto latest = LatestComplete(*options_.files, options_.config.checkpoint().directory());
  if (!latest.ok() || !IsEndOf(options_.config, latest->manifest)) return false;
  LogInfo("the job was done before; the result is ", latest->folder);
  return true;
}

}  // namespace weir

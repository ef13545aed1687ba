#include "ps_server/process/grpc_remote_coordinator.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/address.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/rpc/grpc_convert.h"
#include "common/rpc/tls.h"
#include "common/telemetry/logging.h"
#include "common/threads/mutex.h"
#include "proto/coordinator.grpc.pb.h"
#include "ps_server/coordinator/job/job.h"

namespace weir {
namespace {

// The time limit of one call. ps:0 answers at once, unless it has to find out whether another process is
// alive.
constexpr std::chrono::seconds kCallLimit{5};

}  // namespace

// Reports this server's address to ps:0 (Coordinator.Announce): one call at a time, on the loop, each on a
// connection of its own. Has the call in flight, if any, and the times of the next ones. A call keeps this
// object alive. Only the loop's thread uses the members that the lock does not guard.
class GrpcRemoteCoordinator::Announcer final : public std::enable_shared_from_this<Announcer> {
 public:
  Announcer(GrpcRemoteCoordinator* of, const Address& own)
      : of_(*of), options_(of->options_), schedule_(options_.server->config) {
    request_.set_shard(options_.server->index);
    request_.set_address(own.ToString());
    request_.set_instance(options_.instance);
    *request_.mutable_protocol() = OwnProtocol();
  }

  // Begins a call if one is due (AnnounceSchedule). `attached`: a coordinator is attached to this server.
  void Tick(absl::Time now, bool attached) {
    {
      MutexLock lock(mutex_);
      if (closed_ || !schedule_.Due(now, attached)) return;
      schedule_.OnBegin(now);
    }
    options_.loop->Post([self = shared_from_this()] { self->Start(); });
  }

  // Ends the call in flight. Must be called before the loop stops.
  void Close() {
    MutexLock lock(mutex_);
    closed_ = true;
    options_.loop->Post([self = shared_from_this()] {
      if (self->finished_.under_way()) self->context_->TryCancel();
    });
  }

 private:
  void Start() {
    {
      MutexLock lock(mutex_);
      if (closed_) return;
    }
    self_ = shared_from_this();
    // A new connection for each call: on an old one, gRPC would retry a name that does not resolve yet less
    // and less often.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    context_ = std::make_unique<grpc::ClientContext>();
    context_->set_deadline(std::chrono::system_clock::now() + kCallLimit);
    SetToken(options_.server->token, context_.get());
    const std::string& address = options_.server->coordinator_address;
    const auto stub = v1::Coordinator::NewStub(
        grpc::CreateCustomChannel(address, options_.credentials->ToServer(/*server=*/0, address), arguments));
    v1::AnnounceRequest request = request_;
    if (v1::JobIdentity job = of_.control_.job(); job.id() != 0) *request.mutable_job() = std::move(job);
    call_ = stub->AsyncAnnounce(context_.get(), request, options_.loop->queue());
    call_->Finish(&reply_, &status_, finished_.Begin());
  }

  void OnFinished(bool) {
    const std::shared_ptr<Announcer> self = std::move(self_);
    call_ = nullptr;  // its memory belongs to the context
    context_ = nullptr;
    absl::Status refused = FromGrpc(status_, "weir.v1.Coordinator/Announce");
    if (refused.ok()) {
      refused = CheckProtocol("ps:0", reply_.protocol(), "this server");
    } else {
      refused = Reworded(
          refused, absl::StrCat("ps:0 at ", options_.server->coordinator_address, ": ", refused.message()));
    }
    MutexLock lock(mutex_);
    if (closed_) return;
    if (refused.ok()) {
      schedule_.OnTaken();
      of_.watch_.OnAnswer();
    } else if (absl::IsAlreadyExists(refused) || absl::IsFailedPrecondition(refused) ||
               absl::IsNotFound(refused) || absl::IsInvalidArgument(refused) ||
               absl::IsUnauthenticated(refused) || absl::IsPermissionDenied(refused)) {
      // ps:0 refuses this server; NotFound: the server at its address is not ps:0.
      closed_ = true;
      options_.end(refused);
    } else {
      schedule_.OnNoAnswer();
      of_.watch_.OnNoAnswer();
    }
  }

  GrpcRemoteCoordinator& of_;
  const Options& options_;
  v1::AnnounceRequest request_;  // all but its job
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::AnnounceReply>> call_;
  v1::AnnounceReply reply_;
  grpc::Status status_;
  GrpcOperation<Announcer> finished_{this, &Announcer::OnFinished};
  // Set while the operation is in flight.
  std::shared_ptr<Announcer> self_;

  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  AnnounceSchedule schedule_ ABSL_GUARDED_BY(mutex_);
};

GrpcRemoteCoordinator::GrpcRemoteCoordinator(Options options)
    : options_(std::move(options)),
      control_(Control()),
      refusals_(options_.loop, options_.admission),
      watch_(Watch()) {}
GrpcRemoteCoordinator::~GrpcRemoteCoordinator() = default;

ShardControlService::Options GrpcRemoteCoordinator::Control() const {
  ShardControlService::Options control;
  control.shard = options_.shard;
  control.loop = options_.loop;
  control.admission = options_.admission;
  control.clock = options_.clock;
  control.may_return = options_.server->config.checkpoint().has_directory();
  control.index = options_.server->index;
  control.instance = options_.instance;
  control.on_end = options_.end;
  return control;
}

CoordinatorWatch::Options GrpcRemoteCoordinator::Watch() {
  CoordinatorWatch::Options watch;
  watch.config = options_.server->config;
  watch.coordinator_address = options_.server->coordinator_address;
  watch.clock = options_.clock;
  watch.presence = [this] {
    return CoordinatorWatch::Presence{control_.last_heard(), control_.attached(), control_.CoordinatorName()};
  };
  watch.background = [this](const std::function<void()>& work) { options_.background->Run(work); };
  watch.is_done = [this] { return IsDone(); };
  watch.probe = [this] {
    return ProbeTls(options_.server->coordinator_address, /*server=*/0, options_.credentials->tls());
  };
  watch.drop_silent = [this](absl::Duration limit) { control_.DropSilent(limit); };
  watch.end = options_.end;
  watch.complain = [](const std::string& complaint) { LogWarning(complaint); };
  return watch;
}

absl::Status GrpcRemoteCoordinator::Start(uint16_t port) {
  control_.Start();
  refusals_.Refuse([this] {
    return CheckAddressee(control_.job(), options_.server->index, /*job=*/0, /*shard_plus_one=*/1);
  });
  if (options_.server->coordinator_address.empty()) return absl::OkStatus();
  WEIR_ASSIGN_OR_RETURN(Address own, ParseAddress(options_.server->own_address));
  if (!own.is_unix() && own.port == 0) own.port = port;
  announcer_ = std::make_shared<Announcer>(this, own);
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
  if (!options_.server->config.checkpoint().has_directory()) return false;
  const auto latest = LatestComplete(*options_.files, options_.server->config.checkpoint().directory());
  if (!latest.ok() || !IsEndOf(options_.server->config, latest->manifest)) return false;
  LogInfo("the job was done before; the result is ", latest->folder);
  return true;
}

}  // namespace weir

#include "ps_server/grpc/grpc_announcer.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/rpc/grpc_convert.h"
#include "common/rpc/grpc_credentials.h"
#include "common/threads/mutex.h"
#include "proto/coordinator.grpc.pb.h"
#include "ps_server/grpc/announce_schedule.h"

namespace weir {
namespace {

// The time limit of one call. ps:0 answers at once, unless it has to find out whether another process is
// alive.
constexpr std::chrono::seconds kCallLimit{5};

}  // namespace

// The call in flight, if any, and the times of the next ones. A call keeps this object alive. Only the loop's
// thread uses the members that the lock does not guard.
class GrpcAnnouncer::Calls final : public std::enable_shared_from_this<Calls> {
 public:
  explicit Calls(Options options) : options_(std::move(options)), schedule_(options_.config) {}

  void Tick(absl::Time now, bool attached) {
    {
      MutexLock lock(mutex_);
      if (closed_ || !schedule_.Due(now, attached)) return;
      schedule_.OnBegin(now);
    }
    options_.loop->Post([self = shared_from_this()] { self->Start(); });
  }

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
    SetToken(options_.token, context_.get());
    const std::string& address = options_.coordinator_address;
    const auto stub = v1::Coordinator::NewStub(
        grpc::CreateCustomChannel(address, options_.credentials->ToServer(/*server=*/0, address), arguments));
    v1::AnnounceRequest request = options_.request;
    if (v1::JobIdentity job = options_.job(); job.id() != 0) *request.mutable_job() = std::move(job);
    call_ = stub->AsyncAnnounce(context_.get(), request, options_.loop->queue());
    call_->Finish(&reply_, &status_, finished_.Begin());
  }

  void OnFinished(bool) {
    const std::shared_ptr<Calls> self = std::move(self_);
    call_ = nullptr;  // its memory belongs to the context
    context_ = nullptr;
    absl::Status refused = FromGrpc(status_, "weir.v1.Coordinator/Announce");
    if (refused.ok()) {
      refused = CheckProtocol("ps:0", reply_.protocol(), "this server");
    } else {
      refused =
          Reworded(refused, absl::StrCat("ps:0 at ", options_.coordinator_address, ": ", refused.message()));
    }
    MutexLock lock(mutex_);
    if (closed_) return;
    if (refused.ok()) {
      schedule_.OnTaken();
      options_.on_answer();
    } else if (absl::IsAlreadyExists(refused) || absl::IsFailedPrecondition(refused) ||
               absl::IsNotFound(refused) || absl::IsInvalidArgument(refused) ||
               absl::IsUnauthenticated(refused) || absl::IsPermissionDenied(refused)) {
      closed_ = true;
      options_.on_refused(refused);
    } else {
      schedule_.OnNoAnswer();
      options_.on_no_answer();
    }
  }

  const Options options_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<v1::AnnounceReply>> call_;
  v1::AnnounceReply reply_;
  grpc::Status status_;
  GrpcOperation<Calls> finished_{this, &Calls::OnFinished};
  // Set while the operation is in flight.
  std::shared_ptr<Calls> self_;

  Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  AnnounceSchedule schedule_ ABSL_GUARDED_BY(mutex_);
};

GrpcAnnouncer::GrpcAnnouncer(Options options) : calls_(std::make_shared<Calls>(std::move(options))) {}
GrpcAnnouncer::~GrpcAnnouncer() = default;
void GrpcAnnouncer::Tick(absl::Time now, bool attached) { calls_->Tick(now, attached); }
void GrpcAnnouncer::Close() { calls_->Close(); }

}  // namespace weir

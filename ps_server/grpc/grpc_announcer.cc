#include "ps_server/grpc/grpc_announcer.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/protocol_version.h"
#include "common/rpc/grpc_credentials.h"
#include "common/rpc/grpc_token.h"
#include "common/sync/mutex.h"
#include "proto/coordinator.grpc.pb.h"

namespace weir {
namespace {

// The time limit of one call. ps:0 answers at once, unless it has to find out whether another process is
// alive.
constexpr std::chrono::seconds kCallLimit{5};
// The time between calls: after ps:0 has taken the address but has not attached yet; and after ps:0 did not
// answer.
constexpr absl::Duration kAgain = absl::Milliseconds(500);
constexpr absl::Duration kFirstWait = absl::Milliseconds(50);
constexpr absl::Duration kLongestWait = absl::Seconds(1);

}  // namespace

// The call in flight, if any, and the time of the next one. A call keeps this object alive. Only the loop's
// thread uses the members that the lock does not guard.
class GrpcAnnouncer::Calls final : public std::enable_shared_from_this<Calls> {
 public:
  explicit Calls(Options options) : options_(std::move(options)) {}

  void Tick(absl::Time now) {
    {
      MutexLock lock(mutex_);
      if (closed_ || busy_ || now < next_) return;
      busy_ = true;
      started_ = now;
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
    const auto stub = v1::Coordinator::NewStub(
        grpc::CreateCustomChannel(options_.coordinator_address, JobChannelCredentials(), arguments));
    call_ = stub->AsyncAnnounce(context_.get(), options_.request, options_.loop->queue());
    call_->Finish(&reply_, &status_, finished_.Begin());
  }

  void OnFinished(bool) {
    const std::shared_ptr<Calls> self = std::move(self_);
    call_ = nullptr;  // its memory belongs to the context
    context_ = nullptr;
    const auto code = static_cast<absl::StatusCode>(status_.error_code());
    absl::Status refused(
        code, absl::StrCat("ps:0 at ", options_.coordinator_address, ": ", status_.error_message()));
    if (refused.ok()) refused = CheckProtocol("ps:0", reply_.protocol(), "this server");
    MutexLock lock(mutex_);
    busy_ = false;
    if (closed_) return;
    if (refused.ok()) {
      wait_ = kFirstWait;
      next_ = started_ + kAgain;
    } else if (absl::IsAlreadyExists(refused) || absl::IsFailedPrecondition(refused) ||
               absl::IsInvalidArgument(refused) || absl::IsUnauthenticated(refused) ||
               absl::IsPermissionDenied(refused)) {
      closed_ = true;
      options_.on_refused(refused);
    } else {
      // The call may have failed slowly, for example because no host answers.
      next_ = started_ + wait_;
      wait_ = std::min(2 * wait_, kLongestWait);
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
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time started_ ABSL_GUARDED_BY(mutex_);
  absl::Time next_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  absl::Duration wait_ ABSL_GUARDED_BY(mutex_) = kFirstWait;
};

GrpcAnnouncer::GrpcAnnouncer(Options options) : calls_(std::make_shared<Calls>(std::move(options))) {}
GrpcAnnouncer::~GrpcAnnouncer() = default;
void GrpcAnnouncer::Tick(absl::Time now) { calls_->Tick(now); }
void GrpcAnnouncer::Close() { calls_->Close(); }

}  // namespace weir

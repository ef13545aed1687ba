#include "ps_server/grpc/shard_control_service.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/grpc/grpc_calls.h"
#include "ps_server/grpc/grpc_shard_link.h"

namespace weir {

// A call of Attach. Messages are passed to the shard as they come; reports are sent one after another. Lives
// on the loop's thread. Owns itself until the call is over and all its operations have ended; the shard keeps
// it alive as its reporter.
class ShardControlService::Stream final : public GrpcEventLoop::OperationStarter,
                                          public std::enable_shared_from_this<Stream> {
 public:
  static void Accept(ShardControlService* service) {
    GrpcEventLoop& loop = *service->options_.loop;
    if (loop.stopping()) return;
    const auto call = std::make_shared<Stream>(service);
    call->self_ = call;
    call->context_.AsyncNotifyWhenDone(call->over_.tag());
    service->service_.RequestAttach(&call->context_, &call->stream_, loop.queue(), loop.queue(),
                                    call->accept_.Begin());
  }

  explicit Stream(ShardControlService* service) : service_(service), stream_(&context_) {}

  void Close(const grpc::Status& status) {
    if (!end_.has_value()) end_ = status;
    StartOperationsLater();
  }

 private:
  void StartOperationsLater() { service_->options_.loop->StartOperationsLater(this); }

  void OnAccepted(bool ok) {
    if (!ok) return self_.reset();  // the server is shut down
    over_.Begin();
    service_->options_.loop->CallBegins();
    Accept(service_);
    std::optional<Identity> caller;
    const grpc::Status admitted =
        service_->options_.admission->Admit(context_, RuleOf("weir.v1.ShardControl/Attach"), &caller);
    if (!admitted.ok()) return Close(admitted);
    if (service_->detached_.has_value()) {
      return Close({grpc::StatusCode::UNAVAILABLE, *service_->detached_});
    }
    if (RefuseAnother()) return;
    service_->Heard();
    context_.AddInitialMetadata(kAttachedMetadata, ToString(OwnProtocol()));
    stream_.SendInitialMetadata(metadata_.Begin());
    StartOperationsLater();
  }

  // Closes the stream if the shard has a coordinator that may have no successor.
  bool RefuseAnother() {
    if (service_->MayReturn() || !service_->attached_) return false;
    Close({grpc::StatusCode::FAILED_PRECONDITION, "another coordinator has this shard"});
    return true;
  }

  void Send(v1::ShardReport report) {
    if (closed_) return;
    if (report.has_attached()) report.mutable_attached()->set_instance(service_->options_.instance);
    queue_.push_back(std::move(report));
    StartOperationsLater();
  }

  void OnMetadata(bool) { StartOperationsLater(); }

  void OnWritten(bool ok) {
    if (ok) queue_.pop_front();
    broken_ = !ok;  // OnOver follows
    StartOperationsLater();
  }

  void OnRead(bool ok) {
    StartOperationsLater();
    if (!ok) return Lost();
    if (!end_.has_value() && !adopted_) Adopt();
    if (end_.has_value()) return;
    service_->Heard();
    if (message_.has_install()) {
      MutexLock lock(service_->mutex_);
      service_->coordinator_address_ = message_.install().coordinator_address();
    }
    if (message_.has_ping()) service_->last_ping_ = message_.ping().last();
    const bool shutdown = message_.has_shutdown();
    const absl::Status failure =
        JobFailure(message_.shutdown().failure_kind(), message_.shutdown().failure());
    service_->busy_ = true;
    service_->options_.shard->Control(std::exchange(message_, {}));
    service_->Heard();
    service_->busy_ = false;
    if (shutdown) End(failure);
  }

  // The first message names the coordinator's incarnation.
  void Adopt() {
    if (!message_.has_hello()) {
      return Close(
          {grpc::StatusCode::INVALID_ARGUMENT, "the first message of a control stream must be Hello"});
    }
    const v1::Hello& hello = message_.hello();
    if (const absl::Status fits = CheckProtocol("ps:0", hello.protocol(), "this server"); !fits.ok()) {
      Close(ToGrpc(fits));
      // A server of an older version cannot serve this job; its failure asks the user to upgrade it.
      if (hello.protocol().major() > OwnProtocol().major()) service_->options_.on_end(Misfit(fits.message()));
      return;
    }
    const uint64_t incarnation = hello.coordinator_incarnation();
    if (incarnation < service_->coordinator_incarnation_) {
      return Close({grpc::StatusCode::FAILED_PRECONDITION, "a later coordinator has this shard"});
    }
    if (const absl::Status ours = service_->CheckHello(hello); !ours.ok()) {
      LogWarning("refused the coordinator at ", context_.peer(), ": ", ours.message());
      return Close(ToGrpc(ours));
    }
    if (RefuseAnother()) return;
    adopted_ = true;
    if (hello.has_job()) {
      MutexLock lock(service_->mutex_);
      service_->job_ = hello.job();
    }
    LogInfo("the coordinator at ", context_.peer(), " attached");
    if (service_->stream_ != nullptr) {
      service_->stream_->Close({grpc::StatusCode::UNAVAILABLE, "the coordinator has attached anew"});
    }
    service_->stream_ = this;
    service_->coordinator_incarnation_ = incarnation;
    service_->attached_ = true;
    service_->options_.shard->SetReporter(
        [loop = service_->options_.loop, self = self_](v1::ShardReport report) {
          loop->Post([self, report = std::move(report)]() mutable { self->Send(std::move(report)); });
        });
  }

  void OnFinished(bool) { StartOperationsLater(); }

  void OnOver(bool) {
    service_->options_.loop->CallEnds();
    Lost();
    closed_ = true;
    StartOperationsLater();
  }

  // The stream ended although neither end had ended it. ps:0 leaves a stream before the first message if the
  // server has announced another address; the shard is as it was then.
  void Lost() {
    if (adopted_ && !service_->MayReturn()) {
      return End(LostPeer(absl::StrCat(service_->CoordinatorName(), " was lost: its stream ended")));
    }
    if (end_.has_value()) return;
    end_ = grpc::Status::OK;
    if (service_->stream_ == this) service_->AwaitNext("its stream ended");
  }

  void End(const absl::Status& failure) {
    if (end_.has_value()) return;
    end_ = grpc::Status::OK;
    service_->options_.on_end(failure);
  }

  void StartOperations() override {
    if (service_->options_.loop->stopping()) closed_ = true;
    if (metadata_.under_way() || write_.under_way()) return;
    if (closed_) {
      if (read_.under_way() || finish_.under_way() || over_.under_way()) return;
      if (service_->stream_ == this) service_->stream_ = nullptr;
      self_.reset();
    } else if (end_.has_value()) {
      closed_ = true;
      stream_.Finish(*end_, finish_.Begin());
    } else {
      if (!read_.under_way()) stream_.Read(&message_, read_.Begin());
      if (!broken_ && !queue_.empty()) stream_.Write(queue_.front(), write_.Begin());
    }
  }

  using Operation = GrpcOperation<Stream>;

  ShardControlService* const service_;
  std::shared_ptr<Stream> self_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<v1::ShardReport, v1::ControlMessage> stream_;
  v1::ControlMessage message_;
  std::deque<v1::ShardReport> queue_;  // the front one is being written
  bool adopted_ = false;               // it is, or was, the coordinator's stream
  bool broken_ = false;                // no more writes start
  bool closed_ = false;                // no more operations start
  // The end, once it is decided.
  std::optional<grpc::Status> end_;
  Operation accept_{this, &Stream::OnAccepted};
  Operation metadata_{this, &Stream::OnMetadata};
  Operation read_{this, &Stream::OnRead};
  Operation write_{this, &Stream::OnWritten};
  Operation finish_{this, &Stream::OnFinished};
  // In flight until the call is over, whichever end ended it.
  Operation over_{this, &Stream::OnOver};
};

ShardControlService::ShardControlService(Options options) : options_(std::move(options)) {}

void ShardControlService::Start() {
  options_.loop->Post([this] { Stream::Accept(this); });
}

void ShardControlService::Detach(const std::string& why) {
  options_.loop->Post([this, why] {
    detached_ = why;
    if (stream_ != nullptr) stream_->Close({grpc::StatusCode::UNAVAILABLE, why});
  });
}

void ShardControlService::DropSilent(absl::Duration limit) {
  options_.loop->Post([this, limit] {
    if (stream_ == nullptr) return;  // otherwise it was heard at least once
    const absl::Duration silent = options_.clock->Now() - *last_heard();
    if (silent <= limit) return;
    const std::string why = absl::StrCat("nothing was heard of it for ", absl::FormatDuration(silent));
    stream_->Close({grpc::StatusCode::UNAVAILABLE, why});
    AwaitNext(why);
  });
}

void ShardControlService::AwaitNext(const std::string& why) {
  stream_ = nullptr;
  attached_ = false;
  LogWarning(CoordinatorName(), " was lost: ", why, "; waiting for it to come back");
}

absl::Status ShardControlService::CheckHello(const v1::Hello& hello) const {
  const absl::Status ours = CheckAddressee(job(), options_.index, hello.job().id(), hello.shard_plus_one());
  if (ours.ok()) return ours;
  return absl::NotFoundError(absl::StrCat(
      "this is ps:", options_.index, " of ", Describe(job()), "; ps:0 is of ", Describe(hello.job()),
      " and takes it for ps:", static_cast<int64_t>(hello.shard_plus_one()) - 1,
      ": check the cluster spec of ps:0"));
}

void ShardControlService::Heard() { last_heard_ns_ = absl::ToUnixNanos(options_.clock->Now()); }

std::string ShardControlService::CoordinatorName() const {
  MutexLock lock(mutex_);
  return absl::StrCat("ps:0 (coordinator)", coordinator_address_.empty() ? "" : " at ", coordinator_address_);
}

}  // namespace weir

#include "ps_server/shard_control_service.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/telemetry/logging.h"

namespace weir {

// Reads are handed to the shard as they come; reports leave one after another. The shard keeps a reference as
// its reporter, gRPC another until OnDone.
class ShardControlService::Stream final : public grpc::ServerBidiReactor<v1::ControlMessage, v1::ShardReport>,
                                          public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(ShardControlService* service) : service_(service) {}

  void Begin() {
    self_ = shared_from_this();
    service_->options_.shard->SetReporter(
        [self = shared_from_this()](v1::ShardReport report) { self->Send(std::move(report)); });
    StartRead(&message_);
    StartSendInitialMetadata();  // tells the coordinator that it is attached
  }

  void Close(const grpc::Status& status) {
    {
      MutexLock lock(mutex_);
      if (closed_) return;
      closed_ = true;
    }
    Finish(status);
  }

 private:
  void Send(v1::ShardReport report) {
    MutexLock lock(mutex_);
    if (closed_) return;
    queue_.push_back(std::move(report));
    if (queue_.size() == 1) StartWrite(&queue_.front());
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    if (!ok || closed_) return;  // the read side learns of it and ends the stream
    queue_.pop_front();
    if (!queue_.empty()) StartWrite(&queue_.front());
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Close(grpc::Status::OK);
      service_->End(absl::StrCat(service_->CoordinatorName(), " was lost: its stream ended"));
      return;
    }
    service_->last_heard_ns_ = absl::ToUnixNanos(service_->options_.clock->Now());
    if (message_.has_install()) {
      MutexLock lock(service_->mutex_);
      service_->coordinator_address_ = message_.install().coordinator_address();
    }
    const bool shutdown = message_.has_shutdown();
    const std::string failure = message_.shutdown().failure();
    service_->busy_ = true;
    service_->options_.shard->Control(std::move(message_));
    service_->last_heard_ns_ = absl::ToUnixNanos(service_->options_.clock->Now());
    service_->busy_ = false;
    if (shutdown) {
      Close(grpc::Status::OK);
      service_->End(failure);
      return;
    }
    StartRead(&message_);
  }

  void OnDone() override { self_.reset(); }

  ShardControlService* const service_;
  std::shared_ptr<Stream> self_;
  v1::ControlMessage message_;
  Mutex mutex_;
  std::deque<v1::ShardReport> queue_ ABSL_GUARDED_BY(mutex_);  // the front one is being written
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

ShardControlService::ShardControlService(Options options) : options_(std::move(options)) {}

grpc::ServerBidiReactor<v1::ControlMessage, v1::ShardReport>* ShardControlService::Attach(
    grpc::CallbackServerContext* context) {
  if (attached_.exchange(true)) {
    class Refusal final : public grpc::ServerBidiReactor<v1::ControlMessage, v1::ShardReport> {
     public:
      Refusal() { Finish({grpc::StatusCode::FAILED_PRECONDITION, "another coordinator has this shard"}); }
      void OnDone() override { delete this; }
    };
    return new Refusal;
  }
  last_heard_ns_ = absl::ToUnixNanos(options_.clock->Now());
  LogInfo("the coordinator at ", context->peer(), " attached");
  auto stream = std::make_shared<Stream>(this);
  {
    MutexLock lock(mutex_);
    stream_ = stream;
  }
  stream->Begin();
  return stream.get();
}

void ShardControlService::Detach(const std::string& why) {
  std::shared_ptr<Stream> stream;
  {
    MutexLock lock(mutex_);
    stream = stream_.lock();
  }
  if (stream != nullptr) stream->Close({grpc::StatusCode::UNAVAILABLE, why});
}

std::string ShardControlService::CoordinatorName() const {
  MutexLock lock(mutex_);
  return absl::StrCat("ps:0 (coordinator)", coordinator_address_.empty() ? "" : " at ", coordinator_address_);
}

void ShardControlService::End(const std::string& failure) {
  if (!ended_.exchange(true)) options_.on_end(failure);
}

}  // namespace weir

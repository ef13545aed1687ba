#include "client/grpc/grpc_data_stream.h"

#include <atomic>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/protocol/segment_messages.h"
#include "common/rpc/grpc_completion_loop.h"
#include "common/rpc/grpc_convert.h"
#include "common/rpc/grpc_credentials.h"
#include "common/shared_memory/doorbell.h"
#include "grpcpp/grpcpp.h"

namespace weir {
namespace {

// What both kinds of streams have.
class GrpcStream : public DataStream, public std::enable_shared_from_this<GrpcStream> {
 protected:
  GrpcStream(GrpcPoller& poller, std::shared_ptr<User> user, std::function<void()> gone)
      : poller_(poller), user_(std::move(user)), gone_(std::move(gone)) {}

  void Prepare(grpc::GenericStub& stub, const JobToken& token) {
    SetToken(token, &context_);
    rpc_ = stub.PrepareCall(&context_, absl::StrCat("/", kExchangeMethod), poller_.queue());
    self_ = shared_from_this();
  }
  void TellEnd() { user_->OnEnd(failure_.ok() ? FromGrpc(status_, kExchangeMethod) : failure_); }
  // The stream's last action.
  void LetGo() {
    // The stream is released first: a thread that waits for `gone` may destroy the channel, which the stream
    // may be the last to hold.
    const std::function<void()> gone = std::move(gone_);
    user_ = nullptr;
    self_ = nullptr;
    gone();
  }

  GrpcPoller& poller_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> rpc_;

  // Used on the polling thread.
  std::shared_ptr<User> user_;
  std::function<void()> gone_;
  std::shared_ptr<GrpcStream> self_;
  absl::Status failure_;
  grpc::Status status_;
};

class GrpcCallStream final : public GrpcStream {
 public:
  GrpcCallStream(GrpcPoller& poller, std::shared_ptr<User> user, std::function<void()> gone)
      : GrpcStream(poller, std::move(user), std::move(gone)) {}

  void Start(grpc::GenericStub& stub, const JobToken& token) {
    // The call begins with the first message, and travels together with it.
    context_.set_initial_metadata_corked(true);
    Prepare(stub, token);
    rpc_->StartCall(nullptr);
  }

  bool Write(OutgoingMessage message) override {
    ++operations_;
    rpc_->Write(ToByteBuffer(std::move(message)), static_cast<GrpcEvent*>(&written_));
    return false;
  }

  void Read(bool relaxed) override {
    ++operations_;
    const auto read = [this] { rpc_->Read(&message_, static_cast<GrpcEvent*>(&read_)); };
    if (!relaxed) return read();
    // The read sends a window update, which need not hold up other work.
    poller_.Post(read);
  }

  void Cancel() override { context_.TryCancel(); }

 private:
  struct Event final : GrpcEvent {
    using Handler = void (GrpcCallStream::*)(bool ok);
    Event(GrpcCallStream& stream, Handler handler) : stream(stream), handler(handler) {}
    void OnEvent(bool ok) override { stream.Handle(handler, ok); }
    GrpcCallStream& stream;
    const Handler handler;
  };

  void Handle(Event::Handler handler, bool ok) {
    (this->*handler)(ok);
    if (--operations_ == 0) LetGo();
  }

  void OnWritten(bool ok) {
    // Not ok: the stream has ended, which OnRead() reports. OnRead() may have reported the end before the
    // completion of a message that had left.
    if (ok && !ended_) user_->OnWritten();
  }

  void OnRead(bool ok) {
    absl::StatusOr<IncomingMessage> message;
    if (ok) message = ToIncoming(message_);
    message_.Clear();
    if (ok && message.ok()) return user_->OnMessage(*std::move(message));
    if (ok) {
      failure_ = message.status();
      context_.TryCancel();
    }
    rpc_->Finish(&status_, static_cast<GrpcEvent*>(&finished_));
  }

  void OnFinished(bool /*ok*/) {
    ended_ = true;
    TellEnd();
  }

  Event written_{*this, &GrpcCallStream::OnWritten};
  Event read_{*this, &GrpcCallStream::OnRead};
  Event finished_{*this, &GrpcCallStream::OnFinished};
  // Those under way, and the last one, Finish(), from the beginning on: a user may take its time to read.
  std::atomic<int> operations_ = 1;

  // Used on the polling thread.
  grpc::ByteBuffer message_;
  bool ended_ = false;
};

class GrpcRingStream final : public GrpcStream, SharedWork {
 public:
  GrpcRingStream(GrpcPoller& poller, std::unique_ptr<MessageRing> ring, std::shared_ptr<User> user,
                 std::function<void()> gone)
      : GrpcStream(poller, std::move(user), std::move(gone)), ring_(std::move(ring)) {}

  void Start(grpc::GenericStub& stub, const JobToken& token, const std::string& segments) {
    context_.AddMetadata(kRingsEntry, segments);
    ring_->ReadWith(GrpcPoller::kBell);
    Prepare(stub, token);
    rpc_->StartCall(started_.Begin());
    poller_.Post([this, self = shared_from_this()] {
      if (self_ != nullptr) poller_.Add(this);
    });
  }

  bool Write(OutgoingMessage message) override {
    if (ring_->Write(std::move(message))) return true;
    // The server may have rung for nothing, before this thread said that it waits.
    writing_ = true;
    poller_.Post([] {});
    return false;
  }

  void Read(bool /*relaxed*/) override {
    reading_ = true;
    // The polling thread looks again after OnMessage().
    if (!delivering_) poller_.Post([] {});
  }

  void Cancel() override {
    cancelled_ = true;
    context_.TryCancel();
    // A call that is over already has no more events, and the user may have left its end unread.
    poller_.Post([] {});
  }

 private:
  using Operation = GrpcOperation<GrpcRingStream>;

  bool Ready() const override {
    if (call_over_ && (reading_ || cancelled_)) return true;
    return (writing_ && ring_->MayFlush()) || (reading_ && !cancelled_ && ring_->MayRead());
  }

  void Serve() override {
    if (writing_ && ring_->MayFlush() && ring_->Flush()) {
      writing_ = false;
      user_->OnWritten();
    }
    if (reading_ && !cancelled_) {
      std::string bytes;
      const absl::StatusOr<bool> whole = ring_->Read(&bytes);
      if (!whole.ok()) {
        Break(whole.status());
      } else if (*whole) {
        delivering_ = true;
        reading_ = false;
        user_->OnMessage(ToIncoming(std::move(bytes)));
        delivering_ = false;
        return;
      }
    }
    if (call_over_ && (reading_ || cancelled_)) End();
  }

  void OnStarted(bool) { rpc_->Read(&unexpected_, read_.Begin()); }

  void OnRead(bool ok) {
    if (ok) Break(absl::InternalError("it sent a message beside the rings"));
    rpc_->Finish(&status_, finished_.Begin());
  }

  // The server may have written messages before the end, which Serve() delivers first.
  void OnFinished(bool) { call_over_ = true; }

  void Break(absl::Status why) {
    if (failure_.ok()) failure_ = std::move(why);
    Cancel();
  }

  void End() {
    poller_.Remove(this);
    TellEnd();
    LetGo();
  }

  const std::unique_ptr<MessageRing> ring_;
  Operation started_{this, &GrpcRingStream::OnStarted};
  Operation read_{this, &GrpcRingStream::OnRead};
  Operation finished_{this, &GrpcRingStream::OnFinished};

  // The user waits for a message; for a message to leave.
  std::atomic<bool> reading_ = false, writing_ = false;
  // The user takes a message.
  std::atomic<bool> delivering_ = false;
  std::atomic<bool> cancelled_ = false;

  // Used on the polling thread.
  grpc::ByteBuffer unexpected_;
  bool call_over_ = false;
};

}  // namespace

std::shared_ptr<DataStream> OpenCallStream(GrpcPoller& poller, grpc::GenericStub& stub, const JobToken& token,
                                           std::shared_ptr<DataStream::User> user,
                                           std::function<void()> gone) {
  const auto stream = std::make_shared<GrpcCallStream>(poller, std::move(user), std::move(gone));
  stream->Start(stub, token);
  return stream;
}

std::shared_ptr<DataStream> OpenRingStream(GrpcPoller& poller, grpc::GenericStub& stub, const JobToken& token,
                                           std::unique_ptr<MessageRing> ring, const std::string& segments,
                                           std::shared_ptr<DataStream::User> user,
                                           std::function<void()> gone) {
  const auto stream =
      std::make_shared<GrpcRingStream>(poller, std::move(ring), std::move(user), std::move(gone));
  stream->Start(stub, token, segments);
  return stream;
}

}  // namespace weir

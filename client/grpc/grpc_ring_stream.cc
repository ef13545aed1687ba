#include "client/grpc/grpc_ring_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/segment_messages.h"
#include "common/rpc/grpc_convert.h"
#include "common/rpc/grpc_credentials.h"

namespace weir {

GrpcRingStream::GrpcRingStream(GrpcPoller& poller, std::unique_ptr<MessageRing> ring,
                               std::shared_ptr<User> user, std::function<void()> gone)
    : poller_(poller), ring_(std::move(ring)), user_(std::move(user)), gone_(std::move(gone)) {}

void GrpcRingStream::Start(grpc::GenericStub& stub, const JobToken& token, const std::string& segments) {
  SetToken(token, &context_);
  context_.AddMetadata(kRingsEntry, segments);
  self_ = shared_from_this();
  ring_->ReadWith(GrpcPoller::kBell);
  rpc_ = stub.PrepareCall(&context_, absl::StrCat("/", kExchangeMethod), poller_.queue());
  rpc_->StartCall(started_.Begin());
  poller_.Post([self = shared_from_this()] {
    if (self->self_ != nullptr) self->poller_.Add(self.get());
  });
}

bool GrpcRingStream::Write(OutgoingMessage message) {
  if (ring_->Write(std::move(message))) return true;
  // The server may have rung for nothing, before this thread said that it waits.
  writing_ = true;
  poller_.Post([] {});
  return false;
}

void GrpcRingStream::Read(bool /*relaxed*/) {
  reading_ = true;
  // The polling thread looks again after OnMessage().
  if (!delivering_) poller_.Post([] {});
}

void GrpcRingStream::Cancel() {
  cancelled_ = true;
  context_.TryCancel();
  // A call that is over already has no more events, and the user may have left its end unread.
  poller_.Post([] {});
}

bool GrpcRingStream::Ready() const {
  if (call_over_ && (reading_ || cancelled_)) return true;
  return (writing_ && ring_->MayFlush()) || (reading_ && !cancelled_ && ring_->MayRead());
}

void GrpcRingStream::Serve() {
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

void GrpcRingStream::OnStarted(bool) { rpc_->Read(&unexpected_, read_.Begin()); }

void GrpcRingStream::OnRead(bool ok) {
  if (ok) Break(absl::InternalError("it sent a message beside the rings"));
  rpc_->Finish(&status_, finished_.Begin());
}

// The server may have written messages before the end, which Serve() delivers first.
void GrpcRingStream::OnFinished(bool) { call_over_ = true; }

void GrpcRingStream::Break(absl::Status why) {
  if (failure_.ok()) failure_ = std::move(why);
  Cancel();
}

void GrpcRingStream::End() {
  poller_.Remove(this);
  user_->OnEnd(failure_.ok() ? FromGrpc(status_, kExchangeMethod) : failure_);
  // The stream is released first: a thread that waits for `gone` may destroy the channel, which the stream
  // may be the last to hold.
  const std::function<void()> gone = std::move(gone_);
  user_ = nullptr;
  self_ = nullptr;
  gone();
}

}  // namespace weir

#include "ps_server/grpc/grpc_exchange_call.h"

#include <utility>

#include "common/protocol/segment_messages.h"
#include "common/rpc/grpc_convert.h"
#include "ps_server/grpc/grpc_unary_call.h"

namespace weir {

void GrpcExchangeCall::Accept(Host* host) {
  if (host->loop->stopping()) return;
  auto* const call = new GrpcExchangeCall(host);
  call->context_.AsyncNotifyWhenDone(call->over_.tag());
  host->service->Accept(host->service->IndexOf(kExchangeMethod), &call->context_, &call->stream_,
                        host->loop->queue(), call->accept_.Begin());
}

void GrpcExchangeCall::OnAccepted(bool ok) {
  if (!ok) {
    delete this;  // the server is shut down
    return;
  }
  over_.Begin();
  host_->loop->CallBegins();
  host_->calls.insert(this);
  ++host_->open;
  host_->accept_next();
  ExchangeSession::Options options = host_->session;
  options.id = ++*host_->sessions;
  const RpcRule& rule = RuleOf(kExchangeMethod);
  std::optional<Identity> caller;
  grpc::Status refused = host_->admission->Admit(context_, rule, &caller);
  if (refused.ok()) {
    options.admit = [this, &rule, caller](const v1::Caller& named, bool pushes) {
      return FromGrpc(host_->admission->AdmitMessage(context_, rule, caller, SpeakerOf(named), pushes),
                      kExchangeMethod);
    };
  }
  session_ = std::make_shared<ExchangeSession>(options, [this] { host_->loop->StartOperationsLater(this); });
  if (refused.ok()) refused = TakeRing();
  if (!refused.ok()) end_ = std::move(refused);
  if (host_->over.has_value()) EndJob();
  host_->loop->StartOperationsLater(this);
}

void GrpcExchangeCall::OnRead(bool ok) {
  host_->loop->StartOperationsLater(this);
  if (closed_ || end_.has_value()) return;
  if (!ok) {
    // The client has half-closed the stream, or the call is over (OnOver).
    input_ended_ = true;
    session_->EndInput();
    return;
  }
  if (ring_ == nullptr) {
    Receive(ToIncoming(received_));
  } else {
    Receive(absl::InvalidArgumentError("a message in the call, where messages travel over rings"));
  }
  received_.Clear();
}

void GrpcExchangeCall::Receive(const absl::StatusOr<IncomingMessage>& message) {
  ++host_->messages_received;
  const absl::Status status = message.ok() ? session_->Receive(*message) : message.status();
  if (status.ok()) return;
  session_->End();
  end_ = ToGrpc(status);
}

grpc::Status GrpcExchangeCall::TakeRing() {
  const auto named = context_.client_metadata().find(kRingsEntry);
  if (named == context_.client_metadata().end()) return grpc::Status::OK;
  if (host_->rings != nullptr) ring_ = host_->rings->TakeRing({named->second.data(), named->second.size()});
  if (ring_ == nullptr) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the server has no rings under this token any more");
  }
  if (host_->wants_releases) ring_->WantAll();
  ring_->ReadWith(host_->bell);
  host_->loop->Add(this, host_->rings->bells()->Bell(host_->bell));
  return grpc::Status::OK;
}

bool GrpcExchangeCall::Ready() const { return ring_->MayFlush() || (may_read() && ring_->MayRead()); }

void GrpcExchangeCall::Serve() {
  host_->loop->StartOperationsLater(this);
  if (ring_->MayFlush() && ring_->Flush()) session_->Sent();
  if (!may_read()) return;
  std::string bytes;
  const absl::StatusOr<bool> whole = ring_->Read(&bytes);
  if (!whole.ok()) return Receive(whole.status());
  if (*whole) Receive(ToIncoming(std::move(bytes)));
}

void GrpcExchangeCall::OnWritten(bool ok) {
  session_->Sent();
  if (!ok) closed_ = true;  // OnOver comes
  host_->loop->StartOperationsLater(this);
}

void GrpcExchangeCall::OnFinished(bool) { host_->loop->StartOperationsLater(this); }

void GrpcExchangeCall::OnOver(bool) {
  host_->loop->CallEnds();
  closed_ = true;
  const std::optional<v1::Caller>& caller = session_->caller();
  if (context_.IsCancelled() && !cut_off_ && caller.has_value() && host_->on_broken) {
    host_->on_broken(*caller);
  }
  session_->End();
  host_->loop->StartOperationsLater(this);
}

void GrpcExchangeCall::EndJob() {
  session_->EndJob(*host_->over);
  host_->loop->StartOperationsLater(this);
}

void GrpcExchangeCall::WantReleases() {
  if (ring_ != nullptr) ring_->WantAll();
}

void GrpcExchangeCall::DropRevoked() {
  if (session_->DropRevoked()) {
    cut_off_ = true;
    context_.TryCancel();
  }
  host_->loop->StartOperationsLater(this);
}

void GrpcExchangeCall::StartOperations() {
  if (host_->loop->stopping()) closed_ = true;
  if (closed_) {
    if (over_.under_way() || read_.under_way() || write_.under_way() || finish_.under_way()) return;
    if (ring_ != nullptr) host_->loop->Remove(this);
    host_->calls.erase(this);
    --host_->open;
    delete this;
    return;
  }
  Send();
  if (!end_.has_value() && session_->idle()) {
    if (host_->over.has_value()) {
      end_ = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the job is over");
    } else if (input_ended_) {
      end_ = grpc::Status::OK;
    }
  }
  if (end_.has_value() && !writing()) {
    closed_ = true;
    stream_.Finish(*end_, finish_.Begin());
  } else if (!read_.under_way() && may_read()) {
    stream_.Read(&received_, read_.Begin());
  }
}

void GrpcExchangeCall::Send() {
  OutgoingMessage message;
  while (!writing() && !end_.has_value() && session_->Send(&message)) {
    ++host_->messages_sent;
    if (ring_ == nullptr) {
      stream_.Write(ToByteBuffer(std::move(message)), write_.Begin());
    } else if (ring_->Write(std::move(message))) {
      session_->Sent();
    }
  }
}

}  // namespace weir

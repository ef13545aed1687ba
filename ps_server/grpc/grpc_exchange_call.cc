#include "ps_server/grpc/grpc_exchange_call.h"

#include <utility>

#include "common/rpc/grpc_payload.h"
#include "ps_server/grpc/grpc_unary_call.h"

namespace weir {

void GrpcExchangeCall::Accept(Host* host) {
  if (host->loop->stopping()) return;
  auto* const call = new GrpcExchangeCall(host);
  call->context_.AsyncNotifyWhenDone(call->over_.tag());
  host->service->RequestExchange(&call->context_, &call->stream_, host->loop->queue(), host->loop->queue(),
                                 call->accept_.Begin());
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
  session_ = std::make_shared<ExchangeSession>(options, [this] { host_->loop->StartOperationsLater(this); });
  if (grpc::Status refused = host_->admission->Admit(context_); !refused.ok()) end_ = std::move(refused);
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
  ++host_->messages_received;
  absl::Status status;
  if (const absl::StatusOr<IncomingMessage> message = ToIncoming(received_); message.ok()) {
    status = session_->Receive(*message);
  } else {
    status = message.status();
  }
  if (!status.ok()) {
    session_->End();
    end_ = ToGrpc(status);
  }
  received_.Clear();
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
    host_->calls.erase(this);
    --host_->open;
    delete this;
    return;
  }
  if (OutgoingMessage message; !write_.under_way() && !end_.has_value() && session_->Send(&message)) {
    ++host_->messages_sent;
    stream_.Write(ToByteBuffer(std::move(message)), write_.Begin());
  }
  if (!end_.has_value() && session_->idle()) {
    if (host_->over.has_value()) {
      end_ = grpc::Status(grpc::StatusCode::UNAVAILABLE, "the job is over");
    } else if (input_ended_) {
      end_ = grpc::Status::OK;
    }
  }
  if (end_.has_value() && !write_.under_way()) {
    closed_ = true;
    stream_.Finish(*end_, finish_.Begin());
  } else if (!read_.under_way() && !input_ended_ && !end_.has_value() && !session_->congested()) {
    stream_.Read(&received_, read_.Begin());
  }
}

}  // namespace weir

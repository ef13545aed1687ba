#include "ps_server/parameter_server_service.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/grpc_payload.h"
#include "common/status_macros.h"
#include "common/wire_codec.h"
#include "ps_server/grpc_unary_call.h"

namespace weir {
namespace {

// Puts the chunks of one push together.
class PushReceiver {
 public:
  explicit PushReceiver(Shard* shard) : shard_(shard) {}

  // An error ends the push; nothing of it has any effect.
  absl::Status Take(const grpc::ByteBuffer& message) {
    WEIR_ASSIGN_OR_RETURN(const ReceivedBytes bytes, ReceivedBytes::Take(message));
    WEIR_ASSIGN_OR_RETURN(SplitMessage chunk, SplitPayload(bytes.pieces()));
    v1::PushRequest header;
    if (!header.ParseFromString(chunk.head)) return absl::InvalidArgumentError("not a PushRequest");
    // A serializer that does not put the gradient last.
    const std::string inner = std::move(*header.mutable_gradient());
    header.clear_gradient();
    if (!inner.empty() && chunk.payload_bytes == 0) {
      chunk.payload.emplace_back(inner);
      chunk.payload_bytes = inner.size();
    }
    const uint64_t first = header.first();
    const bool complete_before = complete();
    if (push_.gradient == nullptr) {
      push_.header = std::move(header);
      WEIR_ASSIGN_OR_RETURN(push_.gradient, shard_->Admit(push_.header));
    }
    const uint64_t count = chunk.payload_bytes / sizeof(float);
    if (complete_before || first != received_ || chunk.payload_bytes % sizeof(float) != 0 ||
        count > elements() - received_ || (count == 0 && !complete())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a chunk of ", chunk.payload_bytes, " bytes at position ", first, " came when ", received_, " of ",
          elements(), " values were there; chunks must follow one another without gaps"));
    }
    float* const target = push_.gradient.get() + received_;
    char* to = reinterpret_cast<char*>(target);
    for (absl::string_view piece : chunk.payload) {
      std::memcpy(to, piece.data(), piece.size());
      to += piece.size();
    }
    const size_t bad = shard_->kernels().first_non_finite(target, count);
    if (bad < count && push_.non_finite < 0) push_.non_finite = static_cast<int64_t>(received_ + bad);
    received_ += count;
    return absl::OkStatus();
  }

  bool complete() const { return push_.gradient != nullptr && received_ == elements(); }
  // The stream has ended here: may the push be taken?
  absl::Status CheckEnd() const {
    if (complete()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the push ended after ", received_, " of ", elements(), " values"));
  }
  const v1::PushRequest& header() const { return push_.header; }
  ArrivedPush Release() { return std::move(push_); }

 private:
  uint64_t elements() const { return push_.header.elements(); }

  Shard* const shard_;
  ArrivedPush push_;
  uint64_t received_ = 0;
};

// Cuts the answer to one pull into messages, whose payloads are references to the version.
class PullSender {
 public:
  void Start(PullAnswer answer) {
    answer_ = std::move(answer);
    left_ = answer_.version == nullptr ? 0 : static_cast<int64_t>(answer_.header.elements());
  }
  // The next reply, as a PullReply or as the pull of a PushPullReply. False: there is none.
  bool Next(bool in_exchange, grpc::ByteBuffer* message) {
    if (started_ && left_ == 0) return false;
    v1::PullReply later;
    v1::PullReply& reply = started_ ? later : answer_.header;
    started_ = true;
    const int64_t count = std::min(left_, kChunkElements);
    const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(float);
    reply.set_first(position_);
    std::string head = reply.SerializeAsString() + PayloadPrefix(bytes);
    if (in_exchange) head = NestedPrefix(v1::PushPullReply::kPullFieldNumber, head.size() + bytes) + head;
    std::vector<grpc::Slice> payload;
    if (count > 0) {
      payload.push_back(BorrowedSlice(answer_.version->weights.get() + position_, bytes, answer_.version));
      position_ += count;
      left_ -= count;
    }
    *message = MakeMessage(head, std::move(payload));
    return true;
  }

 private:
  PullAnswer answer_;
  bool started_ = false;
  int64_t position_ = 0, left_ = 0;
};

// The reactors own themselves: they go in OnDone, after Finish. Shard answers each call once, so Finish
// always comes.

class PullCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  PullCall(Shard* shard, const grpc::ByteBuffer& message) {
    absl::StatusOr<v1::PullRequest> request = ParseMessage<v1::PullRequest>(message);
    if (!request.ok()) {
      Finish(ToGrpc(request.status()));
      return;
    }
    shard->Pull(*std::move(request), [this](absl::StatusOr<PullAnswer> answer) {
      if (!answer.ok()) return Finish(ToGrpc(answer.status()));
      sender_.Start(*std::move(answer));
      Continue();
    });
  }

 private:
  void Continue() {
    if (sender_.Next(/*in_exchange=*/false, &reply_)) {
      StartWrite(&reply_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    Continue();
  }
  void OnDone() override { delete this; }

  PullSender sender_;
  grpc::ByteBuffer reply_;
};

class PushCall final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  PushCall(Shard* shard, grpc::ByteBuffer* reply) : shard_(shard), reply_(reply), receiver_(shard) {
    StartRead(&chunk_);
  }

 private:
  void OnReadDone(bool ok) override {
    const absl::Status status = ok ? receiver_.Take(chunk_) : receiver_.CheckEnd();
    chunk_.Clear();
    if (!status.ok()) return Finish(ToGrpc(status));
    if (ok) return StartRead(&chunk_);
    shard_->Push(receiver_.Release(), [this](absl::StatusOr<v1::PushReply> reply) {
      if (!reply.ok()) return Finish(ToGrpc(reply.status()));
      *reply_ = MakeMessage(reply->SerializeAsString());
      Finish(grpc::Status::OK);
    });
  }
  void OnDone() override { delete this; }

  Shard* const shard_;
  grpc::ByteBuffer* const reply_;
  PushReceiver receiver_;
  grpc::ByteBuffer chunk_;
};

class PushPullCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit PushPullCall(Shard* shard) : shard_(shard), receiver_(shard) { StartRead(&chunk_); }

 private:
  void OnReadDone(bool ok) override {
    const absl::Status status = ok ? receiver_.Take(chunk_) : receiver_.CheckEnd();
    chunk_.Clear();
    if (!status.ok()) return Finish(ToGrpc(status));
    if (ok) return StartRead(&chunk_);
    *pull_.mutable_caller() = receiver_.header().caller();
    pull_.set_clock(receiver_.header().clock() + 1);
    shard_->Push(receiver_.Release(), [this](absl::StatusOr<v1::PushReply> reply) {
      if (!reply.ok()) return Finish(ToGrpc(reply.status()));
      const v1::Outcome outcome = reply->outcome();
      pushed_ = outcome == v1::OK || outcome == v1::REFUSED || outcome == v1::DUPLICATE_BATCH;
      v1::PushPullReply exchange;
      *exchange.mutable_push() = *std::move(reply);
      reply_ = MakeMessage(exchange.SerializeAsString());
      StartWrite(&reply_);
    });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    if (pulling_) return Continue();
    if (!pushed_) return Finish(grpc::Status::OK);
    pulling_ = true;
    shard_->Pull(pull_, [this](absl::StatusOr<PullAnswer> answer) {
      if (!answer.ok()) return Finish(ToGrpc(answer.status()));
      sender_.Start(*std::move(answer));
      Continue();
    });
  }

  void Continue() {
    if (sender_.Next(/*in_exchange=*/true, &reply_)) {
      StartWrite(&reply_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

  Shard* const shard_;
  PushReceiver receiver_;
  grpc::ByteBuffer chunk_;
  v1::PullRequest pull_;
  bool pushed_ = false, pulling_ = false;
  PullSender sender_;
  grpc::ByteBuffer reply_;
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* ParameterServerService::Pull(grpc::CallbackServerContext*,
                                                                         const grpc::ByteBuffer* request) {
  return new PullCall(shard_, *request);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* ParameterServerService::Push(grpc::CallbackServerContext*,
                                                                        grpc::ByteBuffer* reply) {
  return new PushCall(shard_, reply);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ParameterServerService::PushPull(
    grpc::CallbackServerContext*) {
  return new PushPullCall(shard_);
}

}  // namespace weir

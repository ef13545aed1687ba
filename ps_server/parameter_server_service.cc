#include "ps_server/parameter_server_service.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "ps_server/grpc_unary_call.h"

namespace weir {
namespace {

constexpr int64_t kChunkElements = (1 << 20) / sizeof(float);

// Puts the chunks of one push together.
class PushReceiver {
 public:
  explicit PushReceiver(Shard* shard) : shard_(shard) {}

  // Takes the bytes out of `chunk`. An error ends the push; nothing of it has any effect.
  absl::Status Take(v1::PushRequest& chunk) {
    const std::string bytes = std::move(*chunk.mutable_gradient());
    const uint64_t first = chunk.first();
    if (push_.gradient == nullptr) {
      chunk.clear_gradient();
      push_.header = std::move(chunk);
      WEIR_ASSIGN_OR_RETURN(push_.gradient, shard_->Admit(push_.header));
    }
    const uint64_t count = bytes.size() / sizeof(float);
    if (first != received_ || bytes.size() % sizeof(float) != 0 || count > elements() - received_ ||
        (count == 0 && !complete())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a chunk of ", bytes.size(), " bytes at position ", first, " came when ", received_, " of ",
          elements(), " values were there; chunks must follow one another without gaps"));
    }
    float* target = push_.gradient.get() + received_;
    std::memcpy(target, bytes.data(), bytes.size());
    const size_t bad = shard_->kernels().first_non_finite(target, count);
    if (bad < count && push_.non_finite < 0) push_.non_finite = static_cast<int64_t>(received_ + bad);
    received_ += count;
    return absl::OkStatus();
  }

  bool complete() const { return push_.gradient != nullptr && received_ == elements(); }
  // Why a push whose stream ended here cannot be taken.
  absl::Status Incomplete() const {
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

// Cuts the answer to one pull into replies. Holds its version until it is gone.
class PullSender {
 public:
  void Start(PullAnswer answer) {
    answer_ = std::move(answer);
    left_ = answer_.version == nullptr ? 0 : static_cast<int64_t>(answer_.header.elements());
  }
  // The next reply. False: there is none.
  bool Next(v1::PullReply& reply) {
    if (started_ && left_ == 0) return false;
    if (started_) {
      reply.Clear();
    } else {
      reply = answer_.header;
      started_ = true;
    }
    const int64_t count = std::min(left_, kChunkElements);
    if (count > 0) {
      reply.set_first(position_);
      reply.set_weights(answer_.version->weights.get() + position_, count * sizeof(float));
      position_ += count;
      left_ -= count;
    }
    return true;
  }

 private:
  PullAnswer answer_;
  bool started_ = false;
  int64_t position_ = 0, left_ = 0;
};

// The reactors own themselves: they go in OnDone, after Finish. Shard answers each call once, so Finish
// always comes.

class PullCall final : public grpc::ServerWriteReactor<v1::PullReply> {
 public:
  PullCall(Shard* shard, const v1::PullRequest& request) {
    shard->Pull(request, [this](absl::StatusOr<PullAnswer> answer) {
      if (!answer.ok()) return Finish(ToGrpc(answer.status()));
      sender_.Start(*std::move(answer));
      Continue();
    });
  }

 private:
  void Continue() {
    if (sender_.Next(reply_)) {
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
  v1::PullReply reply_;
};

class PushCall final : public grpc::ServerReadReactor<v1::PushRequest> {
 public:
  PushCall(Shard* shard, v1::PushReply* reply) : shard_(shard), reply_(reply), receiver_(shard) {
    StartRead(&chunk_);
  }

 private:
  void OnReadDone(bool ok) override {
    const absl::Status status = ok ? receiver_.Take(chunk_) : receiver_.Incomplete();
    if (!status.ok()) return Finish(ToGrpc(status));
    if (!receiver_.complete()) return StartRead(&chunk_);
    shard_->Push(receiver_.Release(), [this](absl::StatusOr<v1::PushReply> reply) {
      if (!reply.ok()) return Finish(ToGrpc(reply.status()));
      *reply_ = *std::move(reply);
      Finish(grpc::Status::OK);
    });
  }
  void OnDone() override { delete this; }

  Shard* const shard_;
  v1::PushReply* const reply_;
  PushReceiver receiver_;
  v1::PushRequest chunk_;
};

class PushPullCall final : public grpc::ServerBidiReactor<v1::PushRequest, v1::PushPullReply> {
 public:
  explicit PushPullCall(Shard* shard) : shard_(shard), receiver_(shard) { StartRead(&chunk_); }

 private:
  void OnReadDone(bool ok) override {
    const absl::Status status = ok ? receiver_.Take(chunk_) : receiver_.Incomplete();
    if (!status.ok()) return Finish(ToGrpc(status));
    if (!receiver_.complete()) return StartRead(&chunk_);
    *pull_.mutable_caller() = receiver_.header().caller();
    pull_.set_clock(receiver_.header().clock() + 1);
    shard_->Push(receiver_.Release(), [this](absl::StatusOr<v1::PushReply> reply) {
      if (!reply.ok()) return Finish(ToGrpc(reply.status()));
      const v1::Outcome outcome = reply->outcome();
      pushed_ = outcome == v1::OK || outcome == v1::REFUSED || outcome == v1::DUPLICATE_BATCH;
      *reply_.mutable_push() = *std::move(reply);
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
    if (sender_.Next(*reply_.mutable_pull())) {
      StartWrite(&reply_);
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

  Shard* const shard_;
  PushReceiver receiver_;
  v1::PushRequest chunk_;
  v1::PullRequest pull_;
  bool pushed_ = false, pulling_ = false;
  PullSender sender_;
  v1::PushPullReply reply_;
};

}  // namespace

grpc::ServerWriteReactor<v1::PullReply>* ParameterServerService::Pull(grpc::CallbackServerContext*,
                                                                      const v1::PullRequest* request) {
  return new PullCall(shard_, *request);
}

grpc::ServerReadReactor<v1::PushRequest>* ParameterServerService::Push(grpc::CallbackServerContext*,
                                                                       v1::PushReply* reply) {
  return new PushCall(shard_, reply);
}

grpc::ServerBidiReactor<v1::PushRequest, v1::PushPullReply>* ParameterServerService::PushPull(
    grpc::CallbackServerContext*) {
  return new PushPullCall(shard_);
}

}  // namespace weir

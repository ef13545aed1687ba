#include "client/grpc_shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/grpc_call.h"
#include "client/grpc_channel.h"
#include "common/grpc_payload.h"
#include "common/status_macros.h"
#include "common/wire_codec.h"
#include "grpcpp/generic/generic_stub.h"

namespace weir {

struct GrpcShard::Impl {
  const uint32_t index;
  const std::string address, name;
  const TensorMap& tensors;
  const v1::Caller caller;
  const std::atomic<uint64_t>& epoch;
  CallGroup& group;
  const CallLimits limits;
  // Replaced by Connect() alone, before the first exchange.
  std::shared_ptr<grpc::Channel> channel = MakeChannel(address, limits.unreachable);
  // Of bytes, not of messages: tensors travel in slices of their own memory.
  std::unique_ptr<grpc::GenericStub> stub = std::make_unique<grpc::GenericStub>(channel);

  int64_t elements() const { return tensors.partition().shard_elements(index); }
  v1::Caller CallerNow() const {
    v1::Caller now = caller;
    now.set_epoch(epoch.load());
    return now;
  }
};

namespace {

// A slice of the caller's memory costs gRPC about as much as copying so many bytes.
constexpr int64_t kWorthBorrowing = 4096;
// How often a call that has ended looks whether gRPC still holds slices of the caller's memory.
constexpr std::chrono::microseconds kLoanPoll{200};

bool IsKnown(v1::Outcome outcome) {
  return v1::Outcome_IsValid(outcome) && outcome != v1::OUTCOME_UNSPECIFIED;
}

// What an exchange asks and has been answered so far. A stream below moves the bytes of one try.
//
// Reactors run on several threads of gRPC, though never two callbacks of one direction at once. Their mutexes
// order these callbacks for those (like ThreadSanitizer) who cannot see how gRPC does.
class ExchangeCall final : public GrpcCall {
 public:
  ExchangeCall(const GrpcShard::Impl& shard, std::string what, std::optional<GrpcShard::Push> push,
               std::optional<GrpcShard::Pull> pull, GrpcShard::Done done)
      : GrpcCall(shard.group, std::move(what), shard.name, shard.limits),
        shard_(shard),
        push_(std::move(push)),
        pull_(std::move(pull)),
        done_(std::move(done)) {}

  // For the streams.

  // The message at local position `first`, and where the next one starts. Slices of the gradient count in
  // `loans` until gRPC lets them go.
  grpc::ByteBuffer MakeChunk(int64_t first, const std::shared_ptr<std::atomic<int>>& loans,
                             int64_t* next) const;
  grpc::ByteBuffer MakePullRequest() const;
  int64_t elements() const { return shard_.elements(); }
  // The next reply. An error ends the call.
  absl::Status TakeReply(const grpc::ByteBuffer& message, bool exchange);
  // The stream of a try has ended.
  void StreamDone(const absl::Status& broken, const grpc::Status& status);

 private:
  void StartTry(grpc::ClientContext* context) override;
  void Finish(const absl::Status& status) override;
  absl::Status TakePush(v1::PushReply reply);
  absl::Status TakePull(const SplitMessage& message);
  bool PullComplete() const;
  absl::Status Broken(const std::string& problem) const {
    return absl::InternalError(absl::StrCat("in answer to ", what(), " it ", problem));
  }

  const GrpcShard::Impl& shard_;
  const std::optional<GrpcShard::Push> push_;
  const std::optional<GrpcShard::Pull> pull_;
  const GrpcShard::Done done_;

  // Touched by one try at a time, under its reactor's mutex.
  GrpcShard::Answer answer_;
  bool push_answered_ = false;
  bool pull_started_ = false;
  int64_t received_ = 0;
};

// One try: sends the request, or the chunks of a push one after another, and takes the replies. All three
// RPCs are bidirectional streams to it; gRPC's wire knows no difference.
class Stream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Stream(std::shared_ptr<ExchangeCall> call, grpc::GenericStub* stub, grpc::ClientContext* context, bool push,
         bool pull)
      : call_(std::move(call)), context_(context), push_(push), exchange_(push && pull) {
    MutexLock reading(read_mutex_);
    MutexLock writing(write_mutex_);
    stub->PrepareBidiStreamingCall(
        context_, absl::StrCat("/weir.v1.ParameterServer/", push ? "Push" : "", pull ? "Pull" : ""),
        grpc::StubOptions(), this);
    StartRead(&reply_);
    Write();
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(write_mutex_);
    // Not ok: the shard has answered before it had all, or is gone; OnDone() tells.
    if (ok && !last_) Write();
  }

  void OnReadDone(bool ok) override {
    MutexLock lock(read_mutex_);
    if (!ok) return;
    broken_ = call_->TakeReply(reply_, exchange_);
    reply_.Clear();
    if (!broken_.ok()) {
      context_->TryCancel();
    } else {
      StartRead(&reply_);
    }
  }

  void OnDone(const grpc::Status& status) override {
    {
      MutexLock lock(write_mutex_);
      request_.Clear();
    }
    status_ = status;
    End();
  }

 private:
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    if (push_) {
      request_ = call_->MakeChunk(next_, loans_, &next_);
      last_ = next_ == call_->elements();
    } else {
      request_ = call_->MakePullRequest();
      last_ = true;
    }
    if (last_) {
      StartWriteLast(&request_, grpc::WriteOptions());
    } else {
      StartWrite(&request_);
    }
  }

  // The caller may free its tensors when the call has ended: not before gRPC has let go of them, which it
  // nearly always has, unless the call was cancelled.
  void End() {
    if (loans_->load(std::memory_order_acquire) > 0) {
      alarm_.Set(std::chrono::system_clock::now() + kLoanPoll, [this](bool) { End(); });
      return;
    }
    const std::unique_ptr<Stream> self(this);
    read_mutex_.Lock();
    const absl::Status broken = broken_;
    read_mutex_.Unlock();
    call_->StreamDone(broken, status_);
  }

  const std::shared_ptr<ExchangeCall> call_;
  grpc::ClientContext* const context_;
  const bool push_, exchange_;
  const std::shared_ptr<std::atomic<int>> loans_ = std::make_shared<std::atomic<int>>(0);
  grpc::Alarm alarm_;
  grpc::Status status_;
  Mutex read_mutex_, write_mutex_;
  grpc::ByteBuffer request_;
  int64_t next_ ABSL_GUARDED_BY(write_mutex_) = 0;
  bool last_ ABSL_GUARDED_BY(write_mutex_) = false;
  grpc::ByteBuffer reply_;
  absl::Status broken_ ABSL_GUARDED_BY(read_mutex_);
};

void ExchangeCall::StartTry(grpc::ClientContext* context) {
  auto self = std::static_pointer_cast<ExchangeCall>(shared_from_this());
  pull_started_ = false;
  received_ = 0;
  // Deletes itself when it has ended.
  new Stream(std::move(self), shard_.stub.get(), context, push_.has_value() && !push_answered_,
             pull_.has_value());
}

grpc::ByteBuffer ExchangeCall::MakeChunk(int64_t first, const std::shared_ptr<std::atomic<int>>& loans,
                                         int64_t* next) const {
  v1::PushRequest header;
  if (first == 0) {
    header = push_->header;
    *header.mutable_caller() = shard_.CallerNow();
    header.set_elements(static_cast<uint64_t>(elements()));
  }
  const int64_t count = std::min(kChunkElements, elements() - first);
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  header.set_first(static_cast<uint64_t>(first));
  *next = first + count;

  std::vector<grpc::Slice> payload;
  const std::vector<absl::Span<const float>> runs =
      shard_.tensors.Locate(shard_.index, first, count, push_->gradient);
  if (static_cast<int64_t>(bytes) >= kWorthBorrowing * static_cast<int64_t>(runs.size())) {
    for (absl::Span<const float> run : runs) {
      loans->fetch_add(1, std::memory_order_relaxed);
      payload.push_back(BorrowedSlice(run.data(), run.size() * sizeof(float),
                                      std::shared_ptr<const void>(run.data(), [loans](const void*) {
                                        loans->fetch_sub(1, std::memory_order_release);
                                      })));
    }
  } else if (count > 0) {
    auto gathered = std::make_shared<std::vector<char>>(bytes);
    shard_.tensors.Gather(shard_.index, first, count, push_->gradient, gathered->data());
    payload.push_back(BorrowedSlice(gathered->data(), bytes, gathered));
  }
  return MakeMessage(header.SerializeAsString() + PayloadPrefix(bytes), std::move(payload));
}

grpc::ByteBuffer ExchangeCall::MakePullRequest() const {
  v1::PullRequest request = pull_->request;
  *request.mutable_caller() = shard_.CallerNow();
  return MakeMessage(request.SerializeAsString());
}

absl::Status ExchangeCall::TakeReply(const grpc::ByteBuffer& message, bool exchange) {
  WEIR_ASSIGN_OR_RETURN(const ReceivedBytes bytes, ReceivedBytes::Take(message));
  SplitExchangeReply reply;
  if (exchange) {
    WEIR_ASSIGN_OR_RETURN(reply, SplitExchange(bytes.pieces()));
  } else {
    reply.is_pull = !push_.has_value() || push_answered_;
    WEIR_ASSIGN_OR_RETURN(reply.message, SplitPayload(bytes.pieces()));
  }
  if (reply.is_pull) return TakePull(reply.message);
  v1::PushReply push;
  if (!push.ParseFromString(reply.message.head)) return Broken("sent what is not a PushReply");
  return TakePush(std::move(push));
}

absl::Status ExchangeCall::TakePush(v1::PushReply reply) {
  if (push_answered_) return Broken("answered the push twice");
  if (!IsKnown(reply.outcome())) {
    return Broken(absl::StrCat("sent the outcome ", static_cast<int>(reply.outcome()),
                               ", which this client does not know"));
  }
  answer_.push = std::move(reply);
  push_answered_ = true;
  return absl::OkStatus();
}

absl::Status ExchangeCall::TakePull(const SplitMessage& message) {
  v1::PullReply reply;
  if (!reply.ParseFromString(message.head)) return Broken("sent what is not a PullReply");
  // A serializer that does not put the weights last.
  const std::string inner = std::move(*reply.mutable_weights());
  reply.clear_weights();
  const absl::string_view inner_piece(inner);
  const bool split = message.payload_bytes > 0 || inner.empty();
  const absl::Span<const absl::string_view> weights =
      split ? absl::MakeConstSpan(message.payload) : absl::MakeConstSpan(&inner_piece, 1);
  const uint64_t bytes = split ? message.payload_bytes : inner.size();

  if (push_.has_value() && !push_answered_) return Broken("sent weights before it answered the push");
  const bool header = !pull_started_;
  if (header) {
    pull_started_ = true;
    if (!IsKnown(reply.outcome())) {
      return Broken(absl::StrCat("sent the outcome ", static_cast<int>(reply.outcome()),
                                 ", which this client does not know"));
    }
    if (reply.outcome() == v1::OK && static_cast<int64_t>(reply.elements()) != elements()) {
      return Broken(absl::StrCat("said that it has ", reply.elements(),
                                 " elements; by this client's model it has ", elements()));
    }
  }
  if (bytes > 0) {
    const int64_t count = static_cast<int64_t>(bytes / sizeof(float));
    if (bytes % sizeof(float) != 0 || static_cast<int64_t>(reply.first()) != received_ ||
        count > elements() - received_ || pull_->request.header_only()) {
      return Broken(absl::StrCat("sent ", bytes, " bytes of weights for position ", reply.first(), " after ",
                                 received_, " of its ", elements(), " elements"));
    }
    shard_.tensors.Scatter(shard_.index, received_, count, weights, pull_->tensors);
    received_ += count;
  }
  if (header) answer_.pull = std::move(reply);
  return absl::OkStatus();
}

bool ExchangeCall::PullComplete() const {
  return pull_started_ &&
         (answer_.pull.outcome() != v1::OK || pull_->request.header_only() || received_ == elements());
}

void ExchangeCall::StreamDone(const absl::Status& broken, const grpc::Status& status) {
  if (!broken.ok()) {
    TryDone(broken);
  } else if (!status.ok()) {
    TryDone(FromGrpc(status));
  } else if (push_.has_value() && !push_answered_) {
    TryDone(Broken("did not answer the push"));
  } else if (!pull_.has_value() || PullComplete()) {
    TryDone(absl::OkStatus());
  } else if (pull_started_) {
    TryDone(Broken(absl::StrCat("sent ", received_, " of its ", elements(), " elements")));
  } else if (!push_.has_value()) {
    TryDone(Broken("sent nothing"));
  } else if (answer_.push.outcome() == v1::STEP_PAST) {
    // The exchange ends with such an answer, but the caller wants the weights all the same.
    TryDone(absl::OkStatus(), Next::kGoOn);
  } else if (answer_.push.outcome() == v1::OK || answer_.push.outcome() == v1::REFUSED ||
             answer_.push.outcome() == v1::DUPLICATE_BATCH) {
    TryDone(Broken("sent no weights"));
  } else {
    TryDone(absl::OkStatus());
  }
}

void ExchangeCall::Finish(const absl::Status& status) {
  if (status.ok()) {
    done_(std::move(answer_));
  } else {
    done_(status);
  }
}

}  // namespace

GrpcShard::GrpcShard(uint32_t index, std::string address, const TensorMap& tensors, const v1::Caller& caller,
                     const std::atomic<uint64_t>& epoch, CallGroup& group, const CallLimits& limits)
    : impl_(new Impl{index, address, absl::StrCat("ps:", index, " at ", address), tensors, caller, epoch,
                     group, limits}) {}

GrpcShard::~GrpcShard() = default;

const std::string& GrpcShard::name() const { return impl_->name; }

absl::Status GrpcShard::Connect(std::chrono::steady_clock::time_point deadline) {
  while (true) {
    const auto left = deadline - std::chrono::steady_clock::now();
    // A second at a time, each on a fresh channel: gRPC would ask for a name that does not resolve yet more
    // and more seldom.
    const auto slice = std::min<std::chrono::nanoseconds>(left, std::chrono::seconds(1));
    if (impl_->channel->WaitForConnected(std::chrono::system_clock::now() + slice)) return absl::OkStatus();
    if (std::chrono::steady_clock::now() >= deadline) {
      return absl::UnavailableError(absl::StrCat(name(), " could not be reached"));
    }
    impl_->channel = MakeChannel(impl_->address, impl_->limits.unreachable);
    impl_->stub = std::make_unique<grpc::GenericStub>(impl_->channel);
  }
}

std::shared_ptr<Call> GrpcShard::Exchange(std::optional<Push> push, std::optional<Pull> pull, Done done) {
  std::string what;
  if (push.has_value()) {
    what = absl::StrCat("the push at clock ", push->header.clock());
  } else if (pull->request.pin() != 0) {
    what = absl::StrCat("the pull of pin ", pull->request.pin());
  } else {
    what = absl::StrCat("the pull at clock ", pull->request.clock());
  }
  auto call = std::make_shared<ExchangeCall>(*impl_, std::move(what), std::move(push), std::move(pull),
                                             std::move(done));
  call->Start();
  return call;
}

}  // namespace weir

#include "client/grpc_shard.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/grpc_call.h"
#include "client/grpc_channel.h"
#include "proto/parameter_server.grpc.pb.h"

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
  std::unique_ptr<v1::ParameterServer::Stub> stub = v1::ParameterServer::NewStub(channel);

  int64_t elements() const { return tensors.partition().shard_elements(index); }
  v1::Caller CallerNow() const {
    v1::Caller now = caller;
    now.set_epoch(epoch.load());
    return now;
  }
};

namespace {

// The wire's limit is 1 MiB.
constexpr int64_t kChunkElements = (1 << 20) / sizeof(float);

bool IsKnown(v1::Outcome outcome) {
  return v1::Outcome_IsValid(outcome) && outcome != v1::OUTCOME_UNSPECIFIED;
}

// What an exchange asks and has been answered so far. Its reactors below move the bytes of one try each.
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

  // For the reactors.

  // Fills in the chunk at local position `first`, and returns where the next one starts.
  int64_t FillChunk(int64_t first, v1::PushRequest* request) const;
  int64_t elements() const { return shard_.elements(); }
  // The replies in their order. An error ends the call.
  absl::Status TakePush(v1::PushReply* reply);
  absl::Status TakePull(v1::PullReply* reply);
  // The stream of a try has ended.
  void StreamDone(const absl::Status& broken, const grpc::Status& status);

 private:
  void StartTry(grpc::ClientContext* context) override;
  void Finish(const absl::Status& status) override;
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

// Sends the chunks of a push one after another.
class ChunkWriter {
 public:
  explicit ChunkWriter(const ExchangeCall& call) : call_(call) { next_ = call.FillChunk(0, &request_); }
  const v1::PushRequest* request() const { return &request_; }
  bool last() const { return next_ == call_.elements(); }
  // After request() has been written, and not last().
  void Advance() {
    request_.Clear();
    next_ = call_.FillChunk(next_, &request_);
  }

 private:
  const ExchangeCall& call_;
  v1::PushRequest request_;
  int64_t next_;
};

class PullTry final : public grpc::ClientReadReactor<v1::PullReply> {
 public:
  PullTry(std::shared_ptr<ExchangeCall> call, v1::ParameterServer::Stub* stub, grpc::ClientContext* context,
          v1::PullRequest request)
      : call_(std::move(call)), context_(context), request_(std::move(request)) {
    MutexLock lock(mutex_);
    stub->async()->Pull(context_, &request_, this);
    StartRead(&reply_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    MutexLock lock(mutex_);
    if (!ok) return;
    broken_ = call_->TakePull(&reply_);
    if (!broken_.ok()) {
      context_->TryCancel();
    } else {
      StartRead(&reply_);
    }
  }

  void OnDone(const grpc::Status& status) override {
    const std::unique_ptr<PullTry> self(this);
    mutex_.Lock();
    const absl::Status broken = broken_;
    mutex_.Unlock();
    call_->StreamDone(broken, status);
  }

 private:
  const std::shared_ptr<ExchangeCall> call_;
  grpc::ClientContext* const context_;
  const v1::PullRequest request_;
  Mutex mutex_;
  v1::PullReply reply_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

class PushTry final : public grpc::ClientWriteReactor<v1::PushRequest> {
 public:
  PushTry(std::shared_ptr<ExchangeCall> call, v1::ParameterServer::Stub* stub, grpc::ClientContext* context)
      : call_(std::move(call)), writer_(*call_) {
    MutexLock lock(mutex_);
    stub->async()->Push(context, &reply_, this);
    Write();
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    // Not ok: the shard has answered before it had all, or is gone; OnDone() tells.
    if (!ok || writer_.last()) return;
    writer_.Advance();
    Write();
  }

  void OnDone(const grpc::Status& status) override {
    const std::unique_ptr<PushTry> self(this);
    call_->StreamDone(status.ok() ? call_->TakePush(&reply_) : absl::OkStatus(), status);
  }

 private:
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writer_.last()) {
      StartWriteLast(writer_.request(), grpc::WriteOptions());
    } else {
      StartWrite(writer_.request());
    }
  }

  const std::shared_ptr<ExchangeCall> call_;
  Mutex mutex_;
  ChunkWriter writer_ ABSL_GUARDED_BY(mutex_);
  v1::PushReply reply_;
};

class PushPullTry final : public grpc::ClientBidiReactor<v1::PushRequest, v1::PushPullReply> {
 public:
  PushPullTry(std::shared_ptr<ExchangeCall> call, v1::ParameterServer::Stub* stub,
              grpc::ClientContext* context)
      : call_(std::move(call)), context_(context), writer_(*call_) {
    MutexLock reading(read_mutex_);
    MutexLock writing(write_mutex_);
    stub->async()->PushPull(context_, this);
    StartRead(&reply_);
    Write();
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(write_mutex_);
    if (!ok || writer_.last()) return;
    writer_.Advance();
    Write();
  }

  void OnReadDone(bool ok) override {
    MutexLock lock(read_mutex_);
    if (!ok) return;
    switch (reply_.reply_case()) {
      case v1::PushPullReply::kPush:
        broken_ = call_->TakePush(reply_.mutable_push());
        break;
      case v1::PushPullReply::kPull:
        broken_ = call_->TakePull(reply_.mutable_pull());
        break;
      default:
        broken_ = absl::InternalError("a reply of an exchange holds neither push nor pull");
    }
    if (!broken_.ok()) {
      context_->TryCancel();
    } else {
      StartRead(&reply_);
    }
  }

  void OnDone(const grpc::Status& status) override {
    const std::unique_ptr<PushPullTry> self(this);
    read_mutex_.Lock();
    const absl::Status broken = broken_;
    read_mutex_.Unlock();
    call_->StreamDone(broken, status);
  }

 private:
  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    if (writer_.last()) {
      StartWriteLast(writer_.request(), grpc::WriteOptions());
    } else {
      StartWrite(writer_.request());
    }
  }

  const std::shared_ptr<ExchangeCall> call_;
  grpc::ClientContext* const context_;
  Mutex read_mutex_, write_mutex_;
  ChunkWriter writer_ ABSL_GUARDED_BY(write_mutex_);
  v1::PushPullReply reply_;
  absl::Status broken_ ABSL_GUARDED_BY(read_mutex_);
};

void ExchangeCall::StartTry(grpc::ClientContext* context) {
  auto self = std::static_pointer_cast<ExchangeCall>(shared_from_this());
  v1::ParameterServer::Stub* const stub = shard_.stub.get();
  pull_started_ = false;
  received_ = 0;
  // Reactors delete themselves in OnDone().
  if (push_.has_value() && !push_answered_) {
    if (pull_.has_value()) {
      new PushPullTry(std::move(self), stub, context);
    } else {
      new PushTry(std::move(self), stub, context);
    }
  } else {
    v1::PullRequest request = pull_->request;
    *request.mutable_caller() = shard_.CallerNow();
    new PullTry(std::move(self), stub, context, std::move(request));
  }
}

int64_t ExchangeCall::FillChunk(int64_t first, v1::PushRequest* request) const {
  if (first == 0) {
    *request = push_->header;
    *request->mutable_caller() = shard_.CallerNow();
    request->set_elements(static_cast<uint64_t>(elements()));
  }
  const int64_t count = std::min(kChunkElements, elements() - first);
  request->set_first(static_cast<uint64_t>(first));
  std::string* const bytes = request->mutable_gradient();
  bytes->resize(static_cast<size_t>(count) * sizeof(float));
  shard_.tensors.Gather(shard_.index, first, count, push_->gradient, bytes->data());
  return first + count;
}

absl::Status ExchangeCall::TakePush(v1::PushReply* reply) {
  if (push_answered_) return Broken("answered the push twice");
  if (!IsKnown(reply->outcome())) {
    return Broken(absl::StrCat("sent the outcome ", static_cast<int>(reply->outcome()),
                               ", which this client does not know"));
  }
  answer_.push.Swap(reply);
  push_answered_ = true;
  return absl::OkStatus();
}

absl::Status ExchangeCall::TakePull(v1::PullReply* reply) {
  if (push_.has_value() && !push_answered_) return Broken("sent weights before it answered the push");
  const bool header = !pull_started_;
  if (header) {
    pull_started_ = true;
    if (!IsKnown(reply->outcome())) {
      return Broken(absl::StrCat("sent the outcome ", static_cast<int>(reply->outcome()),
                                 ", which this client does not know"));
    }
    if (reply->outcome() == v1::OK && static_cast<int64_t>(reply->elements()) != elements()) {
      return Broken(absl::StrCat("said that it has ", reply->elements(),
                                 " elements; by this client's model it has ", elements()));
    }
  }
  const std::string& bytes = reply->weights();
  if (!bytes.empty()) {
    const int64_t count = static_cast<int64_t>(bytes.size() / sizeof(float));
    if (bytes.size() % sizeof(float) != 0 || static_cast<int64_t>(reply->first()) != received_ ||
        count > elements() - received_ || pull_->request.header_only()) {
      return Broken(absl::StrCat("sent ", bytes.size(), " bytes of weights for position ", reply->first(),
                                 " after ", received_, " of its ", elements(), " elements"));
    }
    shard_.tensors.Scatter(shard_.index, received_, count, bytes.data(), pull_->tensors);
    received_ += count;
  }
  if (header) {
    reply->clear_weights();
    answer_.pull.Swap(reply);
  }
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
    impl_->stub = v1::ParameterServer::NewStub(impl_->channel);
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

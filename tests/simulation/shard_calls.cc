#include "tests/simulation/shard_calls.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/outcomes.h"
#include "common/wire_codec.h"

namespace weir {

std::optional<absl::Duration> SimRetry::Judge(const absl::Status& failure) {
  if (!absl::IsUnavailable(failure) && !absl::IsCancelled(failure)) return std::nullopt;
  const absl::Duration now = site_->world.elapsed();
  if (!unreachable_since_.has_value() || now - try_started_ > unreachable_) {
    unreachable_since_ = now;
    backoff_.Reset();
  }
  const absl::Duration left = *unreachable_since_ + unreachable_ - now;
  if (left <= absl::ZeroDuration() || now >= deadline_) return std::nullopt;
  return std::min(backoff_.Next(site_->world), left);
}

ChunkInPlace::ChunkInPlace(std::shared_ptr<Connection> connection, std::shared_ptr<SimStream> server_end,
                           SegmentsSocket segments, uint64_t number, uint64_t first,
                           absl::Span<const float> place)
    : connection_(std::move(connection)),
      server_end_(std::move(server_end)),
      segments_(std::move(segments)),
      number_(number),
      first_(first),
      place_(place),
      values_(place.begin(), place.end()) {}

ChunkInPlace::~ChunkInPlace() {
  v1::ExchangeRequest release;
  release.set_released(1);
  release.set_first(number_);
  connection_->Send(Connection::kOpener, [server_end = server_end_, bytes = release.SerializeAsString()] {
    server_end->Receive(bytes);
  });
}

void ShardCalls::Exchange(std::optional<v1::PushRequest> push, Weights gradient,
                          std::optional<v1::PullRequest> pull, bool in_place, Done done) {
  const auto& cluster = site_->plan.config.cluster();
  auto call = std::make_shared<Call>(SimRetry(site_, absl::Seconds(cluster.wait_seconds() + 2),
                                              absl::Seconds(cluster.server_wait_seconds())));
  call->push = std::move(push);
  call->gradient = std::move(gradient);
  call->pull = std::move(pull);
  call->in_place = in_place;
  call->done = std::move(done);
  calls_.push_back(call);
  Begin(call);
}

void ShardCalls::Tell() {
  if (answered_clock_ == 0) return;
  v1::PullRequest pull;
  pull.set_clock(answered_clock_);
  pull.set_header_only(true);
  Exchange(std::nullopt, nullptr, std::move(pull), /*in_place=*/false, [](const absl::StatusOr<Answer>&) {});
}

void ShardCalls::Hang() {
  hangs_ = true;
  if (stream_ != nullptr) stream_->connection->Stall(Connection::kOpener);
}

void ShardCalls::Close() {
  closed_ = true;
  for (const auto& call : calls_) call->over = true;
  calls_.clear();
  if (stream_ != nullptr) stream_->connection->Close(Connection::kOpener);
  stream_ = nullptr;
}

std::shared_ptr<ShardCalls::Stream> ShardCalls::NewStream(bool shares) {
  SimServer* const server = site_->servers[shard_].get();
  auto stream = std::make_shared<Stream>();
  stream->connection = site_->network.Connect(node_, server->node());
  if (stream->connection == nullptr) return nullptr;
  if (shares) stream->segments = std::make_shared<const char>();
  if (hangs_) stream->connection->Stall(Connection::kOpener);
  const std::weak_ptr<ShardCalls> weak = weak_from_this();
  const std::weak_ptr<Stream> weak_stream = stream;
  stream->server_end = server->Accept(stream->connection, [weak, weak_stream](const std::string& bytes) {
    const auto self = weak.lock();
    const auto stream = weak_stream.lock();
    if (self != nullptr && stream != nullptr && !self->closed_) self->Receive(stream, bytes);
  });
  if (shares) {
    v1::ExchangeRequest greeting;
    greeting.mutable_shared_memory()->set_token(absl::StrCat("segments ", site_->next_session++));
    server->shared_memory().Meet(greeting.shared_memory().token(), stream->segments);
    Send(*stream, greeting, nullptr);
  }
  stream->connection->OnEnd(Connection::kOpener, [weak, weak_stream](const absl::Status&) {
    const auto self = weak.lock();
    const auto stream = weak_stream.lock();
    if (self == nullptr || stream == nullptr || self->closed_) return;
    if (self->stream_ == stream) self->stream_ = nullptr;
    for (auto& [id, call] : std::exchange(stream->open, {})) {
      self->OnFailed(call, absl::UnavailableError("the stream broke"));
    }
  });
  return stream;
}

void ShardCalls::Send(const Stream& stream, const v1::ExchangeRequest& head, const Weights& gradient) {
  std::string bytes = head.SerializeAsString();
  if (gradient != nullptr) {
    const size_t size = gradient->size() * sizeof(float);
    bytes += PayloadPrefix(size);
    bytes.append(reinterpret_cast<const char*>(gradient->data()), size);
  }
  stream.connection->Send(Connection::kOpener, [server_end = stream.server_end, bytes = std::move(bytes)] {
    server_end->Receive(bytes);
  });
}

void ShardCalls::SendCopy(v1::ExchangeRequest head, const Weights& gradient) {
  ++site_->faults["push duplicated"];
  World& world = site_->world;
  head.set_id(1);
  world.After(node_, world.Between(absl::ZeroDuration(), absl::Milliseconds(400)),
              [self = shared_from_this(), head = std::move(head), gradient] {
                const std::shared_ptr<Stream> stream = self->NewStream(/*shares=*/false);
                if (stream == nullptr) return;
                Send(*stream, head, gradient);
                // Whoever made the copy goes away some time.
                self->site_->world.After(self->node_, absl::Seconds(1),
                                         [stream] { stream->connection->Close(Connection::kOpener); });
              });
}

void ShardCalls::Begin(const std::shared_ptr<Call>& call) {
  if (call->over || closed_) return;
  call->retry.TryStarts();
  if (stream_ == nullptr) stream_ = NewStream(site_->plan.shared_memory);
  if (stream_ == nullptr) {
    site_->world.After(node_, absl::Milliseconds(1), [self = shared_from_this(), call] {
      self->OnFailed(call, absl::UnavailableError("connection refused"));
    });
    return;
  }
  v1::ExchangeRequest head;
  head.set_id(++stream_->last_id);
  const bool pushes = call->push.has_value() && !call->push_answered;
  if (pushes) {
    v1::PushRequest& push = *head.mutable_push() = *call->push;
    *push.mutable_caller() = caller_();
    push.set_answered_clock(std::min(answered_clock_, push.clock()));
    if (site_->seams.push) site_->seams.push(&push);
  }
  call->pull_answered = false;
  call->answer.pull.Clear();
  call->answer.chunks.clear();
  if (call->pull.has_value()) {
    v1::PullRequest& pull = *head.mutable_pull() = *call->pull;
    *pull.mutable_caller() = caller_();
    pull.set_answered_clock(std::min(answered_clock_, pull.clock()));
  }
  call->missing =
      head.has_pull() && !head.pull().header_only() ? static_cast<uint64_t>(site_->ledger.elements()) : 0;
  call->weights.assign(call->missing, 0);
  stream_->open[head.id()] = call;
  site_->world.Trace(
      pushes ? "push" : "pull",
      {node_, shard_, pushes ? head.push().clock() : head.pull().clock(), pushes ? head.push().part() : 0});
  if (pushes && site_->network.faults_on() && site_->world.Chance(site_->plan.network.duplicate)) {
    SendCopy(head, call->gradient);
  }
  call->gradient_follows = pushes && site_->world.Chance(0.15);
  Send(*stream_, head, pushes && !call->gradient_follows ? call->gradient : nullptr);
}

void ShardCalls::Receive(const std::shared_ptr<Stream>& stream, const std::string& bytes) {
  const absl::string_view piece = bytes;
  const auto message = SplitPayload(absl::MakeConstSpan(&piece, 1));
  v1::ExchangeReply reply;
  if (!message.ok() || !reply.ParseFromString(message->head)) {
    site_->log.complaints.push_back("a shard sent what is no ExchangeReply");
    return;
  }
  if (reply.has_shared_memory()) return;
  std::vector<float> weights(message->payload_bytes / sizeof(float));
  if (!weights.empty()) std::memcpy(weights.data(), message->payload[0].data(), message->payload_bytes);
  std::shared_ptr<ChunkInPlace> chunk;
  if (reply.has_shared()) {
    const v1::SharedRange& range = reply.shared();
    const float* const place = site_->mapped.At(range.segment(), range.offset(), range.bytes());
    chunk = std::make_shared<ChunkInPlace>(stream->connection, stream->server_end, stream->segments,
                                           ++stream->chunks_received, reply.first(),
                                           absl::MakeConstSpan(place, range.bytes() / sizeof(float)));
  }
  const auto it = stream->open.find(reply.id());
  if (it == stream->open.end()) return;
  const std::shared_ptr<Call> call = it->second;
  if (call->over) return;
  const auto close = [&] { stream->open.erase(it); };
  if (reply.has_push()) {
    site_->world.Trace("push answered", {node_, shard_, static_cast<uint64_t>(reply.push().outcome()),
                                         reply.push().version().count()});
  }
  if (reply.has_pull()) {
    site_->world.Trace("pull answered", {node_, shard_, static_cast<uint64_t>(reply.pull().outcome()),
                                         reply.pull().version().count()});
  }
  if (reply.has_error()) {
    close();
    return OnFailed(
        call, absl::Status(static_cast<absl::StatusCode>(reply.error().code()), reply.error().message()));
  }
  if (reply.credit() > 0 && std::exchange(call->gradient_follows, false)) {
    v1::ExchangeRequest head;
    head.set_id(reply.id());
    site_->world.After(node_, site_->world.Between(absl::ZeroDuration(), absl::Milliseconds(30)),
                       [stream, head, gradient = call->gradient] { Send(*stream, head, gradient); });
  }
  if (reply.has_push()) {
    if (reply.push().outcome() == v1::SEND_AGAIN) {
      close();
      return Begin(call);
    }
    call->answer.push = reply.push();
    call->push_answered = true;
    const v1::Caller caller = caller_();
    site_->log.pushes.push_back({site_->world.elapsed(), caller.worker(), caller.incarnation(), shard_,
                                 call->push->clock(), call->push->batch_plus_one() - 1, call->push->base(),
                                 reply.push()});
    if (PullFollows(reply.push().outcome()))
      answered_clock_ = std::max(answered_clock_, call->push->clock() + 1);
  }
  if (reply.has_pull()) {
    call->answer.pull = reply.pull();
    call->pull_answered = true;
    // Weights that came before are of the version that the push made.
    const v1::Version &made = call->answer.push.version(), &read = reply.pull().version();
    if (call->answer.push.outcome() != v1::OK || made.count() != read.count() ||
        made.incarnation() != read.incarnation()) {
      call->missing = call->weights.size();
      call->answer.chunks.clear();
    }
  }
  if (const std::vector<float>& values = chunk != nullptr ? chunk->values() : weights; !values.empty()) {
    std::copy(values.begin(), values.end(), call->weights.begin() + static_cast<int64_t>(reply.first()));
    call->missing -= values.size();
    if (call->in_place && chunk != nullptr) call->answer.chunks.push_back(std::move(chunk));
  }
  const v1::Outcome pushed = call->answer.push.outcome();
  if (call->push.has_value() && !call->push_answered) return;
  if (call->pull.has_value() && call->pull_answered) {
    if (call->answer.pull.outcome() == v1::OK && call->missing > 0) return;
  } else if (call->pull.has_value()) {
    if (!call->push.has_value() || PullFollows(pushed)) return;
    if (pushed == v1::STEP_PAST) {
      // The exchange ends with such an answer, but the weights are wanted all the same.
      close();
      return Begin(call);
    }
  }
  close();
  if (call->answer.pull.outcome() == v1::OK && !call->weights.empty()) {
    call->answer.weights = std::make_shared<const std::vector<float>>(std::move(call->weights));
  }
  Finish(call, std::move(call->answer));
}

void ShardCalls::OnFailed(const std::shared_ptr<Call>& call, const absl::Status& status) {
  if (call->over || closed_) return;
  const std::optional<absl::Duration> wait = call->retry.Judge(status);
  if (!wait.has_value()) return Finish(call, status);
  site_->world.After(node_, *wait, [self = shared_from_this(), call] { self->Begin(call); });
}

void ShardCalls::Finish(const std::shared_ptr<Call>& call, absl::StatusOr<Answer> answer) {
  call->over = true;
  calls_.erase(std::find(calls_.begin(), calls_.end(), call));
  call->done(std::move(answer));
}

std::string ShardCalls::Open() const {
  std::string out;
  for (const auto& call : calls_) {
    absl::StrAppend(&out, out.empty() ? "" : ", ",
                    call->push.has_value()
                        ? absl::StrCat("push ", call->push->clock(), call->push_answered ? " answered" : "")
                        : "",
                    call->pull.has_value() ? absl::StrCat(" pull ", call->pull->clock()) : "",
                    " to ps:", shard_);
  }
  return out;
}

}  // namespace weir

#include "tests/simulation/shard_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

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

ChunkInPlace::ChunkInPlace(std::shared_ptr<Connection> connection, std::shared_ptr<SimSession> session,
                           SegmentsSocket segments, const ExchangeAnswer& answer)
    : connection_(std::move(connection)),
      session_(std::move(session)),
      segments_(std::move(segments)),
      number_(answer.chunk),
      first_(answer.first),
      place_(answer.place),
      values_(answer.place, answer.place + answer.count) {}

ChunkInPlace::~ChunkInPlace() {
  connection_->Send(Connection::kOpener,
                    [session = session_, number = number_] { session->Release(number); });
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
  stream->session = server->Accept(
      stream->connection,
      [weak, weak_stream](const ExchangeAnswer& answer) {
        const auto self = weak.lock();
        const auto stream = weak_stream.lock();
        if (self != nullptr && stream != nullptr && !self->closed_) self->Receive(stream, answer);
      },
      stream->segments);
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

void ShardCalls::Send(Site* site, World::Node node, const std::shared_ptr<Stream>& stream,
                      ExchangeBegin begin) {
  const auto session = stream->session;
  if (begin.push.has_value() && site->world.Chance(0.15)) {
    // Its header first.
    const Weights gradient = std::exchange(begin.gradient, nullptr);
    const uint64_t id = begin.id;
    stream->connection->Send(Connection::kOpener,
                             [session, begin = std::move(begin)] { session->Begin(begin); });
    site->world.After(node, site->world.Between(absl::ZeroDuration(), absl::Milliseconds(30)),
                      [stream, session, id, gradient] {
                        stream->connection->Send(Connection::kOpener, [session, id, gradient] {
                          session->Gradient(id, gradient);
                        });
                      });
    return;
  }
  stream->connection->Send(Connection::kOpener,
                           [session, begin = std::move(begin)] { session->Begin(begin); });
}

void ShardCalls::SendCopy(ExchangeBegin begin) {
  ++site_->faults["push duplicated"];
  World& world = site_->world;
  begin.id = 1;
  world.After(node_, world.Between(absl::ZeroDuration(), absl::Milliseconds(400)),
              [self = shared_from_this(), begin = std::move(begin)] {
                const std::shared_ptr<Stream> stream = self->NewStream(/*shares=*/false);
                if (stream == nullptr) return;
                const auto session = stream->session;
                stream->connection->Send(Connection::kOpener, [session, begin] { session->Begin(begin); });
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
  ExchangeBegin begin;
  begin.id = ++stream_->last_id;
  if (call->push.has_value() && !call->push_answered) {
    begin.push = call->push;
    *begin.push->mutable_caller() = caller_();
    begin.push->set_answered_clock(std::min(answered_clock_, begin.push->clock()));
    begin.gradient = call->gradient;
    if (site_->seams.push) site_->seams.push(&*begin.push);
  }
  call->pull_answered = false;
  call->answer.pull.Clear();
  call->answer.chunks.clear();
  if (call->pull.has_value()) {
    begin.pull = call->pull;
    *begin.pull->mutable_caller() = caller_();
    begin.pull->set_answered_clock(std::min(answered_clock_, begin.pull->clock()));
  }
  call->missing = begin.pull.has_value() && !begin.pull->header_only()
                      ? static_cast<uint64_t>(site_->ledger.elements())
                      : 0;
  call->weights.assign(call->missing, 0);
  stream_->open[begin.id] = call;
  site_->world.Trace(begin.push.has_value() ? "push" : "pull",
                     {node_, shard_, begin.push.has_value() ? begin.push->clock() : begin.pull->clock(),
                      begin.push.has_value() ? begin.push->part() : 0});
  if (begin.push.has_value() && site_->network.faults_on() &&
      site_->world.Chance(site_->plan.network.duplicate)) {
    SendCopy(begin);
  }
  Send(site_, node_, stream_, std::move(begin));
}

void ShardCalls::Receive(const std::shared_ptr<Stream>& stream, const ExchangeAnswer& reply) {
  std::shared_ptr<ChunkInPlace> chunk;
  if (reply.place != nullptr) {
    chunk = std::make_shared<ChunkInPlace>(stream->connection, stream->session, stream->segments, reply);
  }
  const auto it = stream->open.find(reply.id);
  if (it == stream->open.end()) return;
  const std::shared_ptr<Call> call = it->second;
  if (call->over) return;
  const auto close = [&] { stream->open.erase(reply.id); };
  if (reply.push.has_value()) {
    site_->world.Trace("push answered", {node_, shard_, static_cast<uint64_t>(reply.push->outcome()),
                                         reply.push->version().count()});
  }
  if (reply.pull.has_value()) {
    site_->world.Trace("pull answered", {node_, shard_, static_cast<uint64_t>(reply.pull->outcome()),
                                         reply.pull->version().count()});
  }
  if (!reply.error.ok()) {
    close();
    return OnFailed(call, reply.error);
  }
  if (reply.push.has_value()) {
    if (reply.push->outcome() == v1::SEND_AGAIN) {
      close();
      return Begin(call);
    }
    call->answer.push = *reply.push;
    call->push_answered = true;
    const v1::Caller caller = caller_();
    site_->log.pushes.push_back({site_->world.elapsed(), caller.worker(), caller.incarnation(), shard_,
                                 call->push->clock(), call->push->batch_plus_one() - 1, call->push->base(),
                                 *reply.push});
    if (PullFollows(reply.push->outcome()))
      answered_clock_ = std::max(answered_clock_, call->push->clock() + 1);
  }
  if (reply.pull.has_value()) {
    call->answer.pull = *reply.pull;
    call->pull_answered = true;
    // Weights that came before are of the version that the push made.
    const v1::Version &made = call->answer.push.version(), &read = reply.pull->version();
    if (call->answer.push.outcome() != v1::OK || made.count() != read.count() ||
        made.incarnation() != read.incarnation()) {
      call->missing = call->weights.size();
      call->answer.chunks.clear();
    }
  }
  if (const std::vector<float>& values = chunk != nullptr ? chunk->values() : reply.weights;
      !values.empty()) {
    std::copy(values.begin(), values.end(), call->weights.begin() + static_cast<int64_t>(reply.first));
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

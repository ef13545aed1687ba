// The data plane of SimServer.
#include <algorithm>
#include <utility>

#include "tests/simulation/sim_server.h"

namespace weir {
namespace {

// How often a stream that takes no more is looked at again.
constexpr absl::Duration kFull = absl::Milliseconds(20);

}  // namespace

bool PullFollows(v1::Outcome push) {
  return push == v1::OK || push == v1::REFUSED || push == v1::DUPLICATE_BATCH || push == v1::STALE_VERSION;
}

SimSession::SimSession(SimServer* server, std::shared_ptr<Connection> connection,
                       std::function<void(ExchangeAnswer)> receive, const SegmentsSocket& segments)
    : server_(server),
      connection_(std::move(connection)),
      receive_(std::move(receive)),
      segments_(segments),
      shares_(segments != nullptr),
      id_(server->site_->next_session++) {}

template <typename Handler>
void SimSession::Deliver(uint64_t id, Handler handle) {
  if (ended_) return;
  World& world = server_->site_->world;
  // std::function wants what can be copied.
  auto shared = std::make_shared<Handler>(std::move(handle));
  world.After(server_->node_, world.Between(absl::ZeroDuration(), absl::Microseconds(200)),
              [self = shared_from_this(), id, shared] {
                const auto it = self->exchanges_.find(id);
                if (it != self->exchanges_.end()) (*shared)(it->second);
              });
}

void SimSession::Begin(ExchangeBegin begin) {
  if (ended_) return;
  const uint64_t id = begin.id;
  caller_ = begin.push.has_value() ? begin.push->caller() : begin.pull->caller();
  Exchange& exchange = exchanges_[id];
  exchange.pull = std::move(begin.pull);
  exchange.gradient = std::move(begin.gradient);
  if (!begin.push.has_value()) return StartPull(id, exchange);
  const bool wants_weights = exchange.pull.has_value() && !exchange.pull->header_only();
  server_->shard_->Begin(
      id_, *std::move(begin.push),
      [self = shared_from_this(), id, wants_weights](absl::StatusOr<PushBegin> answer) {
        bool eager = false;
        if (answer.ok() && wants_weights) {
          if (const auto* arrival = absl::get_if<std::unique_ptr<PushArrival>>(&*answer)) {
            eager = (*arrival)->streamed() && self->server_->shard_->AnswersAfter((*arrival)->header());
          }
        }
        self->Deliver(id, [self, id, eager, answer = std::move(answer)](Exchange& exchange) mutable {
          if (!answer.ok()) return self->Fail(id, answer.status());
          if (auto* reply = absl::get_if<v1::PushReply>(&*answer)) {
            return self->OnPushed(id, exchange, PushAnswer{std::move(*reply), absl::nullopt});
          }
          exchange.arrival = absl::get<std::unique_ptr<PushArrival>>(*std::move(answer));
          exchange.eager = eager;
          if (exchange.gradient != nullptr) self->Take(id, exchange);
        });
      });
}

void SimSession::Gradient(uint64_t id, const Weights& gradient) {
  const auto it = exchanges_.find(id);
  if (ended_ || it == exchanges_.end()) return;
  it->second.gradient = gradient;
  if (it->second.arrival != nullptr) Take(id, it->second);
}

void SimSession::Take(uint64_t id, Exchange& exchange) {
  const std::vector<float>& gradient = *exchange.gradient;
  const absl::string_view bytes(reinterpret_cast<const char*>(gradient.data()),
                                gradient.size() * sizeof(float));
  const absl::Status status = exchange.arrival->Take(0, absl::MakeConstSpan(&bytes, 1), bytes.size());
  if (!status.ok()) return Fail(id, status);
  if (exchange.arrival->streamed()) {
    std::shared_ptr<const LentVersion> making = exchange.arrival->making();
    if (making == nullptr) {
      return AnswerPush(id, v1::SEND_AGAIN, "another push was applied while this one was arriving");
    }
    // Until the push is answered, also if it is in vain.
    if (exchange.eager) exchange.version = std::move(making);
  }
  server_->shard_->Push(id_, std::move(exchange.arrival),
                        [self = shared_from_this(), id](absl::StatusOr<PushAnswer> answer) {
                          self->Deliver(id, [self, id, answer = std::move(answer)](Exchange& e) mutable {
                            self->OnPushed(id, e, std::move(answer));
                          });
                        });
}

void SimSession::OnPushed(uint64_t id, Exchange& exchange, absl::StatusOr<PushAnswer> answer) {
  if (!answer.ok()) return Fail(id, answer.status());
  ExchangeAnswer out;
  out.id = id;
  const v1::Outcome outcome = answer->reply.outcome();
  out.push = std::move(answer->reply);
  if (!exchange.eager || outcome != v1::OK) Drop(exchange);
  if (!exchange.pull.has_value() || !PullFollows(outcome)) {
    exchanges_.erase(id);
    return Send(std::move(out));
  }
  if (!exchange.eager) {
    Send(std::move(out));
    return StartPull(id, exchange);
  }
  exchange.made = out.push->version();
  if (answer->made.has_value()) {
    exchange.closing = true;
    out.pull = *std::move(answer->made);
  }
  const bool pulls = !exchange.closing;
  Send(std::move(out));
  StartSending(id, exchange);
  // It may be over by now.
  const auto it = exchanges_.find(id);
  if (pulls && it != exchanges_.end()) StartPull(id, it->second);
}

void SimSession::StartPull(uint64_t id, Exchange& exchange) {
  server_->shard_->Pull(id_, *exchange.pull,
                        [self = shared_from_this(), id](absl::StatusOr<PullAnswer> answer) {
                          self->Deliver(id, [self, id, answer = std::move(answer)](Exchange& e) mutable {
                            self->OnPulled(id, e, std::move(answer));
                          });
                        });
}

void SimSession::OnPulled(uint64_t id, Exchange& exchange, absl::StatusOr<PullAnswer> answer) {
  if (!answer.ok()) return Fail(id, answer.status());
  ExchangeAnswer out;
  out.id = id;
  out.pull = std::move(answer->header);
  const v1::PullReply& header = *out.pull;
  const bool sent = exchange.made.has_value() && header.outcome() == v1::OK &&
                    header.version().count() == exchange.made->count() &&
                    header.version().incarnation() == exchange.made->incarnation();
  Send(std::move(out));
  exchange.closing = true;
  if (sent) {
    if (exchange.sending == 0) exchanges_.erase(id);
    return;
  }
  Drop(exchange);
  if (answer->version == nullptr) {
    exchanges_.erase(id);
    return;
  }
  exchange.version = std::move(answer->version);
  StartSending(id, exchange);
}

void SimSession::StartSending(uint64_t id, Exchange& exchange) {
  exchange.next = 0;
  exchange.sending = ++sendings_;
  SendWeights(id, exchange.sending);
}

void SimSession::SendWeights(uint64_t id, uint64_t sending) {
  const auto it = exchanges_.find(id);
  if (ended_ || it == exchanges_.end() || it->second.sending != sending) return;
  Exchange& exchange = it->second;
  World& world = server_->site_->world;
  const auto again = [&](absl::Duration wait) {
    world.After(server_->node_, wait,
                [self = shared_from_this(), id, sending] { self->SendWeights(id, sending); });
  };
  const bool refers = shares_ && exchange.version->may_refer;
  if (exchange.version->revoked) return CutOff(id);
  // A chunk in shared memory takes a few bytes of the stream, a chunk in a message fills it.
  if (!refers && connection_->full(Connection::kAcceptor)) {
    if (stuck_ == nullptr && exchange.version->may_refer) stuck_ = exchange.version;
    return again(kFull);
  }
  const auto elements = static_cast<uint64_t>(server_->site_->ledger.elements());
  ExchangeAnswer out;
  out.id = id;
  out.first = exchange.next;
  out.count = std::min(elements - exchange.next, std::max<uint64_t>(1, elements / (1 + world.Below(3))));
  const float* const values = exchange.version->weights.get() + exchange.next;
  if (refers) {
    out.place = values;
    out.chunk = ++chunks_shared_;
    shared_.emplace(out.chunk, exchange.version);
  } else {
    out.weights.assign(values, values + out.count);
  }
  exchange.next += out.count;
  const bool last = exchange.next == elements;
  Send(std::move(out));
  if (!last) {
    // A congested stream takes its time.
    return again(
        world.Between(absl::ZeroDuration(), world.Chance(0.02) ? absl::Seconds(2) : absl::Milliseconds(3)));
  }
  exchange.sending = 0;
  if (exchange.closing) exchanges_.erase(id);
}

void SimSession::Send(ExchangeAnswer answer) {
  connection_->Send(Connection::kAcceptor,
                    [receive = receive_, answer = std::move(answer)] { receive(answer); });
}

void SimSession::AnswerPush(uint64_t id, v1::Outcome outcome, const std::string& reason) {
  exchanges_.erase(id);
  ExchangeAnswer out;
  out.id = id;
  out.push.emplace().set_outcome(outcome);
  out.push->set_reason(reason);
  Send(std::move(out));
}

void SimSession::Fail(uint64_t id, const absl::Status& status) {
  exchanges_.erase(id);
  ExchangeAnswer out;
  out.id = id;
  out.error = status;
  Send(std::move(out));
}

void SimSession::CutOff(uint64_t id) {
  if (exchanges_.at(id).arrival != nullptr) {
    return AnswerPush(id, v1::SEND_AGAIN, "another push was applied while this one was arriving");
  }
  Fail(id, absl::UnavailableError("the weights were not taken for so long that others needed their memory"));
}

bool SimSession::DropRevoked() {
  std::vector<uint64_t> revoked;
  for (const auto& [id, exchange] : exchanges_) {
    if (exchange.version != nullptr && exchange.version->revoked) revoked.push_back(id);
  }
  for (const uint64_t id : revoked) CutOff(id);
  for (auto it = shared_.begin(); it != shared_.end() && server_->site_->seams.takes_views_back;) {
    it = it->second->revoked ? shared_.erase(it) : std::next(it);
  }
  return stuck_ != nullptr && stuck_->revoked;
}

void SimSession::Drop(Exchange& exchange) {
  exchange.arrival = nullptr;
  exchange.eager = false;
  exchange.made.reset();
  exchange.version = nullptr;
  exchange.sending = 0;
}

void SimSession::End() {
  if (std::exchange(ended_, true)) return;
  exchanges_.clear();
  stuck_ = nullptr;
  // The client may not know yet that the stream is over.
  if (!shared_.empty()) server_->kept_.push_back({segments_, std::exchange(shared_, {})});
  server_->shard_->End(id_);
  if (server_->coordinator() == nullptr || !caller_.has_value()) return;
  server_->coordinator()->OnDisconnect(*caller_);
}

void SimSession::Die() {
  ended_ = true;
  exchanges_.clear();
  shared_.clear();
  stuck_ = nullptr;
}

void SimSession::EndJob(const std::string& failure) {
  std::vector<uint64_t> arriving;
  for (const auto& [id, exchange] : exchanges_) {
    if (exchange.arrival != nullptr) arriving.push_back(id);
  }
  for (uint64_t id : arriving) AnswerPush(id, v1::JOB_OVER, failure);
}

}  // namespace weir

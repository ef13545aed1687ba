// The data plane of SimServer.
#include <algorithm>
#include <utility>

#include "tests/simulation/sim_server.h"

namespace weir {

bool PullFollows(v1::Outcome push) {
  return push == v1::OK || push == v1::REFUSED || push == v1::DUPLICATE_BATCH || push == v1::STALE_VERSION;
}

SimSession::SimSession(SimServer* server, std::shared_ptr<Connection> connection,
                       std::function<void(ExchangeAnswer)> receive)
    : server_(server),
      connection_(std::move(connection)),
      receive_(std::move(receive)),
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
    exchange.version = exchange.arrival->making();
    if (exchange.version == nullptr) {
      ExchangeAnswer answer;
      answer.id = id;
      answer.push.emplace().set_outcome(v1::SEND_AGAIN);
      exchanges_.erase(id);
      return Send(std::move(answer));
    }
    if (!exchange.eager) exchange.version = nullptr;
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
  if (!exchange.pull.has_value() || !PullFollows(outcome)) {
    exchanges_.erase(id);
    return Send(std::move(out));
  }
  if (outcome == v1::OK && exchange.eager && answer->made.has_value()) {
    out.pull = *std::move(answer->made);
    Send(std::move(out));
    return SendWeights(id, 0);
  }
  exchange.version = nullptr;
  Send(std::move(out));
  StartPull(id, exchange);
}

void SimSession::StartPull(uint64_t id, Exchange& exchange) {
  server_->shard_->Pull(id_, *exchange.pull,
                        [self = shared_from_this(), id](absl::StatusOr<PullAnswer> answer) {
                          self->Deliver(id, [self, id, answer = std::move(answer)](Exchange& e) mutable {
                            if (!answer.ok()) return self->Fail(id, answer.status());
                            e.version = std::move(answer->version);
                            ExchangeAnswer out;
                            out.id = id;
                            out.pull = std::move(answer->header);
                            self->Send(std::move(out));
                            if (e.version == nullptr) {
                              self->exchanges_.erase(id);
                            } else {
                              self->SendWeights(id, 0);
                            }
                          });
                        });
}

void SimSession::SendWeights(uint64_t id, uint64_t first) {
  const auto it = exchanges_.find(id);
  if (ended_ || it == exchanges_.end()) return;
  Exchange& exchange = it->second;
  if (exchange.version->revoked) {
    return Fail(
        id, absl::UnavailableError("the weights were not taken for so long that others needed their memory"));
  }
  World& world = server_->site_->world;
  const auto elements = static_cast<uint64_t>(server_->site_->ledger.elements());
  const uint64_t count = std::min(elements - first, std::max<uint64_t>(1, elements / (1 + world.Below(3))));
  ExchangeAnswer out;
  out.id = id;
  out.first = first;
  out.weights.assign(exchange.version->weights.get() + first,
                     exchange.version->weights.get() + first + count);
  Send(std::move(out));
  if (first + count == elements) {
    exchanges_.erase(id);
    return;
  }
  // A congested stream takes its time.
  const absl::Duration wait =
      world.Between(absl::ZeroDuration(), world.Chance(0.02) ? absl::Seconds(2) : absl::Milliseconds(3));
  world.After(server_->node_, wait,
              [self = shared_from_this(), id, next = first + count] { self->SendWeights(id, next); });
}

void SimSession::Send(ExchangeAnswer answer) {
  connection_->Send(Connection::kAcceptor,
                    [receive = receive_, answer = std::move(answer)] { receive(answer); });
}

void SimSession::Fail(uint64_t id, const absl::Status& status) {
  exchanges_.erase(id);
  ExchangeAnswer out;
  out.id = id;
  out.error = status;
  Send(std::move(out));
}

void SimSession::End() {
  if (std::exchange(ended_, true)) return;
  exchanges_.clear();
  server_->shard_->End(id_);
  if (server_->coordinator() == nullptr || !caller_.has_value()) return;
  server_->coordinator()->OnDisconnect(*caller_);
}

void SimSession::Die() {
  ended_ = true;
  exchanges_.clear();
}

void SimSession::EndJob(const std::string& failure) {
  std::vector<uint64_t> arriving;
  for (const auto& [id, exchange] : exchanges_) {
    if (exchange.arrival != nullptr) arriving.push_back(id);
  }
  for (uint64_t id : arriving) {
    exchanges_.erase(id);
    ExchangeAnswer out;
    out.id = id;
    out.push.emplace().set_outcome(v1::JOB_OVER);
    out.push->set_reason(failure);
    Send(std::move(out));
  }
}

}  // namespace weir

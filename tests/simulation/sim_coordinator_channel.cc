#include "tests/simulation/sim_coordinator_channel.h"

#include <optional>
#include <utility>

#include "ps_server/coordinator/coordinator.h"
#include "tests/simulation/sim_server.h"

namespace weir {
namespace {

// The end of a try, whichever side brings it about first.
template <typename Reply>
class SimTry final : public CoordinatorChannel::Try, public std::enable_shared_from_this<SimTry<Reply>> {
 public:
  SimTry(std::shared_ptr<SimEventLoop> loop, CoordinatorChannel::Done<Reply> done)
      : loop_(std::move(loop)), done_(std::move(done)) {}

  void Limit(std::chrono::nanoseconds limit) {
    if (limit == CoordinatorChannel::Limit::max()) return;
    timer_ = loop_->RunAfter(limit, [self = this->shared_from_this()] {
      self->timer_.reset();
      self->GiveUp(absl::DeadlineExceededError("the try took too long"));
    });
  }
  // `gone`: tells the server that no caller waits any more.
  void SetGone(std::function<void()> gone) { gone_ = std::move(gone); }
  void Cancel() override {
    loop_->Post([self = this->shared_from_this()] { self->GiveUp(absl::CancelledError("cancelled")); });
  }
  void End(absl::StatusOr<Reply> reply) {
    if (std::exchange(over_, true)) return;
    if (timer_.has_value()) loop_->Cancel(*timer_);
    gone_ = nullptr;
    std::exchange(done_, nullptr)(std::move(reply));
  }

 private:
  void GiveUp(const absl::Status& why) {
    if (over_) return;
    if (gone_ != nullptr) gone_();
    End(why);
  }

  const std::shared_ptr<SimEventLoop> loop_;
  CoordinatorChannel::Done<Reply> done_;
  std::function<void()> gone_;
  std::optional<EventLoop::Timer> timer_;
  bool over_ = false;
};

}  // namespace

bool SimCoordinatorChannel::connected() const {
  const World::Node server = site_->servers[0]->node();
  return !loop_->dead() && site_->world.running(server) && !site_->network.Blocked(node_, server) &&
         !site_->network.Blocked(server, node_);
}

template <typename Reply>
CoordinatorChannel::TryPtr SimCoordinatorChannel::Start(Limit limit,
                                                        std::function<void(Coordinator&, Done<Reply>)> serve,
                                                        std::function<void(Coordinator&)> gone,
                                                        Done<Reply> done) {
  const auto started = std::make_shared<SimTry<Reply>>(loop_, std::move(done));
  if (loop_->dead()) {
    loop_->Post([started] { started->End(absl::UnavailableError("the process has died")); });
    return started;
  }
  started->Limit(limit);
  struct AtServer {
    bool answered = false;
  };
  const auto state = std::make_shared<AtServer>();
  SimServer* const server = site_->servers[0].get();
  std::function<void()> tell_gone;
  if (gone != nullptr) {
    tell_gone = [server, gone, state] {
      if (!state->answered && server->coordinator() != nullptr) gone(*server->coordinator());
    };
    started->SetGone([site = site_, node = server->node(), tell_gone] {
      World& world = site->world;
      if (!world.running(node)) return;
      world.After(node, world.Between(absl::Milliseconds(1), absl::Milliseconds(20)), tell_gone);
    });
  }
  site_->network.Call<Reply>(
      node_, server->node(),
      [server, serve, state](std::function<void(absl::StatusOr<Reply>)> reply) {
        if (server->coordinator() == nullptr) return reply(absl::UnavailableError("there is no coordinator"));
        serve(*server->coordinator(), [state, reply = std::move(reply)](absl::StatusOr<Reply> answer) {
          state->answered = true;
          reply(std::move(answer));
        });
      },
      tell_gone, [started](absl::StatusOr<Reply> reply) { started->End(std::move(reply)); });
  return started;
}

CoordinatorChannel::TryPtr SimCoordinatorChannel::Join(const v1::JoinRequest& request, Limit limit,
                                                       Done<v1::JoinReply> done) {
  const uint64_t call = site_->next_session++;
  return Start<v1::JoinReply>(
      limit,
      [request, call](Coordinator& coordinator, Done<v1::JoinReply> reply) {
        coordinator.Join(request, std::move(reply), call);
      },
      [instance = request.instance(), call](Coordinator& coordinator) {
        coordinator.OnJoinCancelled(instance, call);
      },
      [site = site_, joined = joined_, done = std::move(done)](absl::StatusOr<v1::JoinReply> reply) {
        if (reply.ok() && site->seams.membership) site->seams.membership(reply->mutable_membership());
        if (reply.ok()) joined(*reply);
        done(std::move(reply));
      });
}

CoordinatorChannel::TryPtr SimCoordinatorChannel::Heartbeat(const v1::HeartbeatRequest& request, Limit limit,
                                                            Done<v1::HeartbeatReply> done) {
  return Start<v1::HeartbeatReply>(
      limit,
      [request](Coordinator& coordinator, Done<v1::HeartbeatReply> reply) {
        coordinator.Heartbeat(request, std::move(reply));
      },
      [caller = request.caller()](Coordinator& coordinator) { coordinator.OnDisconnect(caller); },
      [site = site_, node = node_, done = std::move(done)](absl::StatusOr<v1::HeartbeatReply> reply) {
        site->world.Trace("heartbeat", {node, reply.ok() ? reply->membership().epoch() : 0});
        if (reply.ok() && site->seams.membership) site->seams.membership(reply->mutable_membership());
        done(std::move(reply));
      });
}

CoordinatorChannel::TryPtr SimCoordinatorChannel::StartMethod(const std::string& method,
                                                              const Message& request,
                                                              std::shared_ptr<Message> reply, Limit limit,
                                                              std::function<void(const absl::Status&)> done) {
  const auto write = [&](auto of) {
    using R = decltype(of);
    return [reply, done](absl::StatusOr<R> answer) {
      if (answer.ok()) static_cast<R&>(*reply) = *std::move(answer);
      done(answer.status());
    };
  };
  if (const auto* join = dynamic_cast<const v1::JoinRequest*>(&request)) {
    return Join(*join, limit, write(v1::JoinReply()));
  }
  if (const auto* beat = dynamic_cast<const v1::HeartbeatRequest*>(&request)) {
    return Heartbeat(*beat, limit, write(v1::HeartbeatReply()));
  }
  if (method == "Status") {
    return Start<v1::ClusterStatus>(
        limit, [](Coordinator& coordinator, auto answer) { coordinator.Status(std::move(answer)); }, nullptr,
        write(v1::ClusterStatus()));
  }
  // Null: this is not the request of the method.
  const auto start = [&](auto type, auto serve) -> TryPtr {
    using Request = decltype(type);
    const auto* const typed = dynamic_cast<const Request*>(&request);
    if (typed == nullptr) return nullptr;
    return Start<ReplyOf<Request>>(
        limit,
        [request = *typed, serve](Coordinator& coordinator, auto answer) {
          (coordinator.*serve)(request, std::move(answer));
        },
        nullptr, write(ReplyOf<Request>()));
  };
  TryPtr started = start(v1::NextRangeRequest(), &Coordinator::NextRange);
  if (started == nullptr) started = start(v1::PinRequest(), &Coordinator::Pin);
  if (started == nullptr) started = start(v1::UnpinRequest(), &Coordinator::Unpin);
  if (started == nullptr) started = start(v1::ReportRequest(), &Coordinator::Report);
  if (started == nullptr) started = start(v1::StopRequest(), &Coordinator::Stop);
  if (started == nullptr) started = start(v1::LeaveRequest(), &Coordinator::Leave);
  return started;
}

}  // namespace weir

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/job/transport.h"
#include "tests/simulation/sim_event_loop.h"
#include "tests/simulation/site.h"

namespace weir {

class Coordinator;

// The channel to the coordinator over the simulated network.
class SimCoordinatorChannel final : public CoordinatorChannel {
 public:
  // joined: gets the answer to a Join. The loop belongs to `node`.
  SimCoordinatorChannel(Site* site, World::Node node, std::shared_ptr<SimEventLoop> loop,
                        std::function<void(const v1::JoinReply&)> joined)
      : site_(site), node_(node), loop_(std::move(loop)), joined_(std::move(joined)) {}

  std::string name() const override { return "ps:0 (coordinator)"; }
  bool connected() const override;

 private:
  TryPtr StartMethod(const std::string& method, const Message& request, std::shared_ptr<Message> reply,
                     Limit limit, std::function<void(const absl::Status&)> done) override;
  TryPtr Join(const v1::JoinRequest& request, Limit limit, Done<v1::JoinReply> done);
  TryPtr Heartbeat(const v1::HeartbeatRequest& request, Limit limit, Done<v1::HeartbeatReply> done);
  // `serve` runs at the server, and `gone` there when the caller has gone away without an answer.
  template <typename Reply>
  TryPtr Start(Limit limit, std::function<void(Coordinator&, Done<Reply>)> serve,
               std::function<void(Coordinator&)> gone, Done<Reply> done);

  Site* const site_;
  const World::Node node_;
  const std::shared_ptr<SimEventLoop> loop_;
  const std::function<void(const v1::JoinReply&)> joined_;
};

}  // namespace weir

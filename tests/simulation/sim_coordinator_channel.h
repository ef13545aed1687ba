#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/job/coordinator_channel.h"
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
  TryPtr Join(const v1::JoinRequest& request, Limit limit, Done<v1::JoinReply> done) override;
  TryPtr Status(const v1::StatusRequest& request, Limit limit, Done<v1::ClusterStatus> done) override;
  TryPtr Heartbeat(const v1::HeartbeatRequest& request, Limit limit, Done<v1::HeartbeatReply> done) override;
  TryPtr NextRange(const v1::NextRangeRequest& request, Limit limit, Done<v1::NextRangeReply> done) override;
  TryPtr Pin(const v1::PinRequest& request, Limit limit, Done<v1::PinReply> done) override;
  TryPtr Unpin(const v1::UnpinRequest& request, Limit limit, Done<v1::UnpinReply> done) override;
  TryPtr Report(const v1::ReportRequest& request, Limit limit, Done<v1::ReportReply> done) override;
  TryPtr Leave(const v1::LeaveRequest& request, Limit limit, Done<v1::LeaveReply> done) override;

 private:
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

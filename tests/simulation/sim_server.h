#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ps_server/coordinator/coordinator.h"
#include "ps_server/shard/shard.h"
#include "tests/simulation/hanging_work.h"
#include "tests/simulation/network.h"
#include "tests/simulation/site.h"

namespace weir {

// The first message of an exchange (proto/parameter_server.proto).
struct ExchangeBegin {
  uint64_t id = 0;
  std::optional<v1::PushRequest> push;
  std::optional<v1::PullRequest> pull;
  // nullptr: it follows (SimSession::Gradient).
  Weights gradient;
};

struct ExchangeAnswer {
  uint64_t id = 0;
  std::optional<v1::PushReply> push;
  std::optional<v1::PullReply> pull;
  // Not OK: the exchange has failed.
  absl::Status error;
  // A piece of the weights, from local position `first` on: its values, or in shared memory the place where
  // `count` of them lie. That stays mapped for good (Site::mapped), and unchanged until the chunk of this
  // number is released.
  uint64_t first = 0;
  std::vector<float> weights;
  const float* place = nullptr;
  uint64_t count = 0, chunk = 0;
};

// A client's end of the socket that its segments of shared memory came over: closed when nobody has it.
using SegmentsSocket = std::shared_ptr<const void>;

// Whether a pull that came with a push is answered after this.
bool PullFollows(v1::Outcome push);

class SimServer;

// The server's end of one client's data stream: GrpcExchangeSession without gRPC, with the same references to
// versions for the same time. Weights leave in pieces, each read when it leaves, or by the client where it
// lies, so that a version that is not immutable shows.
class SimSession : public std::enable_shared_from_this<SimSession> {
 public:
  // `segments`: the client's; null: chunks travel in messages.
  SimSession(SimServer* server, std::shared_ptr<Connection> connection,
             std::function<void(ExchangeAnswer)> receive, const SegmentsSocket& segments);

  void Begin(ExchangeBegin begin);
  void Gradient(uint64_t id, const Weights& gradient);
  // The client has read this chunk of weights.
  void Release(uint64_t chunk) { shared_.erase(chunk); }
  // Readers have been revoked: lets go what is not to be read any more. True: some of it is being sent and
  // does not leave, so the stream must end.
  bool DropRevoked();
  // Ends the connection.
  void Break() {
    connection_->Close(Connection::kAcceptor, absl::CancelledError("its client does not read"));
    End();
  }
  // The connection is over.
  void End();
  // The process is gone.
  void Die();
  void EndJob(const std::string& failure);

 private:
  struct Exchange {
    std::optional<v1::PullRequest> pull;
    Weights gradient;
    std::unique_ptr<PushArrival> arrival;
    // The push is answered with the weights of the version that it makes.
    bool eager = false;
    std::optional<v1::Version> made;
    // To be sent, from the position `next` on.
    std::shared_ptr<const LentVersion> version;
    uint64_t next = 0;
    // SendWeights() comes for this sending.
    uint64_t sending = 0;
    // Nothing comes after the weights.
    bool closing = false;
  };
  // Runs later, as work that is posted to the session's loop, if the exchange is still there.
  template <typename Handler>
  void Deliver(uint64_t id, Handler handle);
  void Take(uint64_t id, Exchange& exchange);
  void OnPushed(uint64_t id, Exchange& exchange, absl::StatusOr<PushAnswer> answer);
  void StartPull(uint64_t id, Exchange& exchange);
  void OnPulled(uint64_t id, Exchange& exchange, absl::StatusOr<PullAnswer> answer);
  void StartSending(uint64_t id, Exchange& exchange);
  void SendWeights(uint64_t id, uint64_t sending);
  void Send(ExchangeAnswer answer);
  void AnswerPush(uint64_t id, v1::Outcome outcome, const std::string& reason);
  void Fail(uint64_t id, const absl::Status& status);
  // Ends an exchange whose weights were revoked.
  void CutOff(uint64_t id);
  // Forgets what the exchange would have received, and its weights.
  void Drop(Exchange& exchange);

  SimServer* const server_;
  const std::shared_ptr<Connection> connection_;
  const std::function<void(ExchangeAnswer)> receive_;
  const std::weak_ptr<const void> segments_;
  const bool shares_;
  const uint64_t id_;
  bool ended_ = false;
  // Of the newest exchange.
  std::optional<v1::Caller> caller_;
  std::map<uint64_t, Exchange> exchanges_;
  // Versions that the client reads in shared memory, by the number of each chunk.
  std::map<uint64_t, std::shared_ptr<const LentVersion>> shared_;
  uint64_t chunks_shared_ = 0, sendings_ = 0;
  // What a message refers to that does not leave, since the client does not read.
  std::shared_ptr<const LentVersion> stuck_;
};

// A ps_server process: the shipped Shard, on ps:0 the shipped Coordinator, and what server.cc and the
// services do around them. Looks at the shard from above after every event, for the run's log.
class SimServer {
 public:
  SimServer(Site* site, uint32_t index);
  ~SimServer();

  World::Node node() const { return node_; }
  void Start();
  // SIGKILL; `orderly`: it exits by itself.
  void Kill(bool orderly = false);
  bool running() const { return site_->world.running(node_); }
  // Whoever started it starts it again.
  void StartAfter(absl::Duration away);
  bool coming() const { return coming_ > 0; }
  // A process that dies in the midst of its n-th operation on the disk from now on.
  void DieAtDisk(uint32_t operation) { disk_operations_left_ = operation; }
  // What it has to write or read from now on waits until then.
  void HangDisk(absl::Duration until) { disk_hangs_until_ = std::max(disk_hangs_until_, until); }
  // What it does in the background hangs in its n-th step on the disk from now on: before or after the effect
  // of an operation. Once it does, `begun` is called.
  struct DiskHang {
    uint32_t steps = 0;
    absl::Duration duration;
    // Only what its store does counts.
    bool of_store = false;
    std::function<void()> begun;
  };
  void HangWithinDisk(DiskHang hang) { disk_hang_ = std::move(hang); }
  // Is asked before each operation on the disk that this process makes.
  bool DiesHere();
  bool dying() const { return dying_; }
  bool replaced() const { return replaced_; }
  bool store_works() const { return store_works_; }
  // Is called before each such operation, and after.
  void OnDiskStep();

  // Another process is ps:0 from now on. This one has not been told: it goes on, with the links to other
  // servers that it has, but nobody calls it any more.
  void BeReplaced();

  // nullptr: it has none, or is over.
  Coordinator* coordinator() { return over_ ? nullptr : coordinator_.get(); }
  Shard* shard() { return shard_.get(); }
  Site* site() { return site_; }

  // Runs at this server: a client's stream is there. nullptr: it does not run.
  std::shared_ptr<SimSession> Accept(const std::shared_ptr<Connection>& connection,
                                     std::function<void(ExchangeAnswer)> receive,
                                     const SegmentsSocket& segments);
  // After every event: has the shard published?
  void Observe();

 private:
  friend class SimSession;
  class LocalLink;
  class RemoteLink;
  // The shard's end of a stream from a coordinator, as shard_control_service.cc has it.
  struct ControlStream {
    std::shared_ptr<Connection> connection;
    std::function<void(v1::ShardReport)> sink;
    bool adopted = false, ended = false;
  };

  // Does what blocks on the disk, and lets it hang if it is to; then calls `over`.
  void Work(bool of_store, std::function<void()> work, std::function<void()> over);
  void GoOn(const std::shared_ptr<HangingWork>& work, const std::function<void()>& over);
  // Of the store: one after another.
  void StoreWork(std::function<void()> work);
  // The process is dying: what hangs comes to nothing.
  void CutWorkShort();
  void ExitWhenIdle(const std::string& failure);
  void Tick();
  void DropRevoked();
  void TickControl();
  bool StartCoordinator();
  // nullptr: refused.
  std::shared_ptr<ControlStream> Attach(const std::shared_ptr<Connection>& connection,
                                        std::function<void(v1::ShardReport)> sink);
  void OnStreamMessage(const std::shared_ptr<ControlStream>& stream, const v1::ControlMessage& message);
  void OnStreamLost(const std::shared_ptr<ControlStream>& stream);
  void AwaitNext();
  void SetSink(std::function<void(v1::ShardReport)> sink);
  void OnControl(const v1::ControlMessage& message);
  void Control(const v1::ControlMessage& message);
  void OnReport(const v1::ShardReport& report);
  void OnMembershipInstalled(const v1::MembershipInstalled& report);
  void End(const std::string& failure);
  Weights Snapshot();
  // Of its part of the last checkpoint, if that is the end of the job.
  Weights SavedWeights() const;

  Site* const site_;
  const uint32_t index_;
  const World::Node node_;
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<Coordinator> coordinator_;
  std::map<uint64_t, std::shared_ptr<SimSession>> sessions_;
  // What clients whose streams have ended may still read in shared memory, until their sockets are closed.
  struct Kept {
    std::weak_ptr<const void> socket;
    std::map<uint64_t, std::shared_ptr<const LentVersion>> versions;
  };
  std::vector<Kept> kept_;
  // The coordinator's stream; on ps:0 and while it is away nullptr.
  std::shared_ptr<ControlStream> control_;
  bool attached_ = false;
  uint64_t coordinator_incarnation_ = 0;
  std::optional<absl::Time> last_heard_;
  absl::Time started_, next_look_;
  bool over_ = false, dying_ = false, replaced_ = false;
  int coming_ = 0;
  uint32_t disk_operations_left_ = 0;
  absl::Duration disk_hangs_until_;
  std::optional<DiskHang> disk_hang_;
  // For how long what hangs now does.
  absl::Duration hang_;
  // What runs now and may hang; what hangs.
  std::shared_ptr<HangingWork> at_work_;
  std::vector<std::shared_ptr<HangingWork>> hanging_;
  bool store_works_ = false;
  std::deque<std::function<void()>> store_work_;

  // Of the shard, as far as the log has it.
  uint64_t life_ = 0, version_ = 0, model_hash_ = 0;
  bool installed_ = false, just_installed_ = false;
  // As the coordinator has said it, and by the epoch under which the shard was told it.
  v1::Membership membership_;
  std::map<uint64_t, v1::Membership> memberships_;
};

}  // namespace weir

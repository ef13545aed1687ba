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
#include "tests/simulation/sim_stream.h"
#include "tests/simulation/site.h"

namespace weir {

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
  // Is called before each such operation, and after.
  void OnDiskStep();

  // Another process is ps:0 from now on. This one has not been told: it goes on, with the links to other
  // servers that it has, but nobody calls it any more.
  void BeReplaced();

  // nullptr: it has none, or is over.
  Coordinator* coordinator() { return over_ ? nullptr : coordinator_.get(); }
  Shard* shard() { return shard_.get(); }
  Site* site() { return site_; }

  // Runs at this server: a client's stream is there, and takes what is sent to the client.
  std::shared_ptr<SimStream> Accept(const std::shared_ptr<Connection>& connection,
                                    std::function<void(std::string)> receive);
  SimSharedMemory& shared_memory() { return *shared_memory_; }
  // After every event: has the shard published?
  void Observe();

 private:
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
  void ExitWhenIdle(const absl::Status& failure);
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
  void End(const absl::Status& failure);
  Weights Snapshot();
  // Of its part of the last checkpoint, if that is the end of the job.
  Weights SavedWeights() const;

  Site* const site_;
  const uint32_t index_;
  const World::Node node_;
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<Coordinator> coordinator_;
  // Of the data plane.
  std::deque<SimLoop> loops_;
  std::unique_ptr<SimSharedMemory> shared_memory_;
  std::map<uint64_t, std::shared_ptr<SimStream>> streams_;
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

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
#include "ps_server/process/coordinator_watch.h"
#include "ps_server/shard/shard.h"
#include "tests/simulation/hanging_work.h"
#include "tests/simulation/network.h"
#include "tests/simulation/sim_stream.h"
#include "tests/simulation/site.h"

namespace weir {

// A ps_server process: the shipped Shard, on ps:0 the shipped Coordinator, and what server.cc and the
// services do around them. Inspects the shard after every event, for the run's log.
class SimServer {
 public:
  SimServer(Site* site, uint32_t index);
  ~SimServer();

  World::Node node() const { return node_; }
  void Start();
  // SIGKILL; `orderly`: the process exits by itself.
  void Kill(bool orderly = false);
  bool running() const { return site_->world.running(node_); }
  // Starts the process again, as a supervisor does.
  void StartAfter(absl::Duration away);
  bool coming() const { return coming_ > 0; }
  // The process dies in the midst of its n-th disk operation from now on.
  void DieAtDisk(uint32_t operation) { disk_operations_left_ = operation; }
  // Reads and writes of the process from now on wait until then.
  void HangDisk(absl::Duration until) { disk_hangs_until_ = std::max(disk_hangs_until_, until); }
  // Background work of the process hangs in its n-th step on the disk from now on: before or after the effect
  // of an operation. `begun` is called when it hangs.
  struct DiskHang {
    uint32_t steps = 0;
    absl::Duration duration;
    // Only steps of the store count.
    bool of_store = false;
    std::function<void()> begun;
  };
  void HangWithinDisk(DiskHang hang) { disk_hang_ = std::move(hang); }
  // Called before each disk operation of this process.
  bool DiesHere();
  bool dying() const { return dying_; }
  bool replaced() const { return replaced_; }
  // Called before each disk operation, and after.
  void OnDiskStep();

  // Another process is ps:0 from now on. This one does not know: it continues, with the links to other
  // servers that it has, but receives no more calls.
  void BeReplaced();

  // nullptr: this server has none, or its coordinator is over.
  Coordinator* coordinator() { return over_ ? nullptr : coordinator_.get(); }
  Shard* shard() { return shard_.get(); }
  // Where the process listens, or listened last.
  const std::string& address() const { return address_; }
  Site* site() { return site_; }

  // Runs at this server when a client opens a stream. `receive` takes what is sent to the client.
  std::shared_ptr<SimStream> Accept(const std::shared_ptr<Connection>& connection,
                                    std::function<void(std::string)> receive);
  SimSharedMemory& shared_memory() { return *shared_memory_; }
  // Runs after every event: has the shard published?
  void Observe();

 private:
  class LocalLink;
  class RemoteLink;
  // The shard's end of a stream from a coordinator, as in shard_control_service.cc.
  struct ControlStream {
    std::shared_ptr<Connection> connection;
    std::function<void(v1::ShardReport)> sink;
    bool adopted = false, ended = false;
  };

  // Does `work`, which blocks on the disk and may have to hang; then calls `over`.
  void Work(bool of_store, std::function<void()> work, std::function<void()> over);
  void GoOn(const std::shared_ptr<HangingWork>& work, const std::function<void()>& over);
  // Runs the store's work, one piece after another.
  void StoreWork(std::function<void()> work);
  // The process is dying: work that hangs has no effect.
  void CutWorkShort();
  void ExitWhenIdle(const absl::Status& failure);
  void Tick();
  void DropRevoked();
  void TickControl();
  CoordinatorWatch::Options Watch();
  // Tells ps:0 the address if that is due, as GrpcAnnouncer does: call at each tick.
  void Announce(absl::Time now);
  bool StartCoordinator();
  // The job, if one begins in this process.
  v1::JobIdentity NewJob() const;
  // As ShardControlService has it.
  bool CoordinatorMayReturn() const;
  bool RefuseAnother(Connection& connection) const;
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
  // The shard has disposed of a push.
  void Completed(const PushKey& push);
  EarlyRowsEvent& NewEarlyRowsEvent(EarlyRowsEvent::Kind kind);
  void SawEarlyRows(const Weights& weights);
  Weights Snapshot();
  // From its part of the last checkpoint, if that is the end of the job.
  Weights SavedWeights() const;

  Site* const site_;
  const uint32_t index_;
  const World::Node node_;
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<Coordinator> coordinator_;
  // The data plane's.
  std::deque<SimLoop> loops_;
  std::unique_ptr<SimSharedMemory> shared_memory_;
  std::map<uint64_t, std::shared_ptr<SimStream>> streams_;
  // The coordinator's stream; nullptr on ps:0 and while the coordinator is away.
  std::shared_ptr<ControlStream> control_;
  uint64_t coordinator_incarnation_ = 0;
  std::optional<absl::Time> last_heard_;
  bool last_ping_ = false;                 // whether the newest ping was the last one
  std::optional<CoordinatorWatch> watch_;  // of a process that runs
  // The process (Attached.instance), where it listens, and its announcements: the number of the call that is
  // under way, or 0; and when the next ones are due.
  uint64_t instance_ = 0;
  std::string address_;
  uint64_t announce_ = 0;
  std::optional<AnnounceSchedule> announcements_;
  bool over_ = false, dying_ = false, replaced_ = false;
  int coming_ = 0;
  uint32_t disk_operations_left_ = 0;
  absl::Duration disk_hangs_until_;
  std::optional<DiskHang> disk_hang_;
  // How long the work that hangs now will hang.
  absl::Duration hang_;
  // The work that runs now and may hang; the work that hangs.
  std::shared_ptr<HangingWork> at_work_;
  std::vector<std::shared_ptr<HangingWork>> hanging_;
  bool store_works_ = false;
  std::deque<std::function<void()>> store_work_;

  // The shard's, as far as the log has them.
  uint64_t incarnation_ = 0, version_ = 0, model_hash_ = 0;
  bool installed_ = false, just_installed_ = false;
  // As the coordinator sent it, and by the epoch under which the shard received it.
  v1::Membership membership_;
  std::map<uint64_t, v1::Membership> memberships_;
};

}  // namespace weir

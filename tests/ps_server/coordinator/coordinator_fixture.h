#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "common/system/clock.h"
#include "ps_server/coordinator/coordinator.h"
#include "tests/ps_server/answer.h"
#include "tests/ps_server/coordinator/fake_job_store.h"

namespace weir {

// A shard as its coordinator sees it. It keeps the messages that it gets, and answers as its flags say.
struct FakeShard {
  std::string address;
  std::vector<v1::ControlMessage> sent;
  ShardLinkEvents events;
  bool open = false;
  // The actions that the shard takes by itself.
  bool connects = true, attaches = true, installs = true, acknowledges = true, answers_pings = true,
       answers_pins = true, writes = true, confirms_end = true;
  // As Attached says; it measures nothing by itself.
  bool measures_steps = true;
  std::string install_error, write_error;
  // The number of shards in its parts of checkpoints.
  uint32_t num_shards = 0;
  bool install_error_permanent = false;
  // The step of the checkpoint that the shard calls damaged.
  std::optional<uint64_t> finds_damaged;
  // The instance with which its process attaches and announces itself.
  uint64_t instance = 0;
  // The incarnation of its first Install. Each later Install has a higher one.
  uint64_t incarnation = 0;
  // The number of parts that Staged() reports.
  uint32_t parts = 1;
  // Messages to the shard are lost: the coordinator has been killed.
  bool dead_link = false;
  uint64_t model_hash = 0;
  // The state that the shard holds. Incarnation 0: none.
  v1::Attached holds;
  // The batches that an Install restores.
  Intervals restored_batches;
  // Reported with every acknowledgement.
  uint64_t floor = 0;
  v1::ShardStats stats;
  // A committed step is published at once.
  bool publishes = true;

  // The shard has a table and, if it may, writes only the changes of it.
  bool writes_deltas = false;

  void Handle(const v1::ControlMessage& message);
  void Installed();
  // Reports its part as written: in the last attempt that the shard was asked for, or in this one.
  void Written(uint64_t step);
  void Written(uint64_t step, uint64_t attempt);
  // Kills the shard's process; it starts again if `connects`.
  void Kill(const std::string& why = "its stream ended");
  // The stream breaks; the process keeps all that it had.
  void Break(const std::string& why = "its stream ended");
  void Acknowledge(uint64_t epoch);
  // Staged() reports all parts as staged, StagedParts() only these.
  void Staged(uint64_t step, const std::vector<uint32_t>& refused = {}, const std::string& reason = "");
  void StagedParts(uint64_t step, const std::vector<uint32_t>& parts,
                   const std::vector<uint32_t>& refused = {});
  void Pinned(uint64_t pin, uint64_t count);
  void AnswerPing(uint64_t sequence);
  std::vector<v1::ControlMessage> Sent(v1::ControlMessage::MessageCase kind) const;
  v1::Install LastInstall() const { return Sent(v1::ControlMessage::kInstall).back().install(); }
  // The newest membership that the shard got.
  v1::Membership Membership() const;
};

// A coordinator with fake shards and a manual clock. Everything runs on the test's thread.
class CoordinatorFixture {
 public:
  explicit CoordinatorFixture(v1::ConsistencyConfig::Mode mode, uint32_t workers = 2, uint32_t shards = 2);

  // Set these before Start().
  v1::JobConfig config;  // lease 10 s, grace 1 s, batch 8, one epoch
  uint32_t workers;
  ModelSpec model;
  uint64_t train_examples = 64;
  uint64_t memory_bytes = 0;
  // The identity of a job without a disk.
  v1::JobIdentity job;
  std::vector<std::unique_ptr<FakeShard>> shards;
  std::vector<std::string> addresses;
  // Shards that were started at an address that differs from the one in `addresses`.
  std::map<std::string, std::unique_ptr<FakeShard>> elsewhere;
  // The addresses in the cluster spec of ps:0; default: all.
  std::optional<std::vector<std::string>> known_addresses;

  // If set, the job has this store. It outlives the coordinator.
  std::shared_ptr<FakeDisk> disk;
  // `init_from_before`: the newest whole checkpoint before `init_from` in its folder.
  std::optional<uint64_t> init_from, init_from_before;
  // If set, workers speak the current version of the protocol, and each call carries their instance, which is
  // this + their rank.
  std::optional<uint64_t> own_protocol_from;

  void Start();
  // Kills the coordinator, and starts it again. The first shard dies with it; the others keep what they held.
  void Restart();
  // Start(); then all workers join and send a heartbeat.
  void StartJob();

  v1::JoinRequest JoinRequest(uint32_t rank, uint64_t instance = 0) const;  // 0: 1000 + rank
  AnswerPtr<v1::JoinReply> Join(uint32_t rank, uint64_t instance = 0) {
    return Join(JoinRequest(rank, instance));
  }
  AnswerPtr<v1::JoinReply> Join(const v1::JoinRequest& request, uint64_t call = 0);
  AnswerPtr<v1::JoinReply> JoinReader(uint64_t instance = 9000);
  v1::Caller CallerOf(const v1::JoinReply& reply) const;
  AnswerPtr<v1::HeartbeatReply> Heartbeat(const v1::JoinReply& member, uint64_t known_revision = 0,
                                          bool only_news = false);
  // Sends a heartbeat of the member. If the member hears that the job has failed, it leaves.
  void Beat(const v1::JoinReply& member);
  // Beat() of each member of StartJob().
  void HeartbeatAll();
  AnswerPtr<v1::LeaveReply> StartLeave(const v1::JoinReply& member, bool done = true,
                                       const std::string& reason = "",
                                       v1::FailureKind kind = v1::FAILURE_UNSPECIFIED);
  // Starts a process that accepts connections at this address and announces itself as that shard.
  FakeShard& StartElsewhere(uint32_t index, const std::string& address, uint64_t instance);
  AnswerPtr<v1::AnnounceReply> Announce(uint32_t shard, const std::string& address, uint64_t instance);
  AnswerPtr<v1::CheckpointReply> Checkpoint();
  // Commits this many steps.
  void Steps(int count);
  void Leave(const v1::JoinReply& member, bool done = true, const std::string& reason = "",
             v1::FailureKind kind = v1::FAILURE_UNSPECIFIED);
  AnswerPtr<v1::NextRangeReply> NextRange(const v1::JoinReply& member,
                                          const std::vector<uint64_t>& completed = {});
  // Pin() calls as the first worker of StartJob(), PinOf() as this member or reader.
  AnswerPtr<v1::PinReply> Pin(double lease_seconds = 30);
  AnswerPtr<v1::PinReply> PinOf(const v1::JoinReply& caller, double lease_seconds = 30);
  void Unpin(const v1::JoinReply& caller, uint64_t pin);
  v1::ClusterStatus Status();
  v1::TaskStatus Task(const std::string& task);
  // Advances the clock in small steps, while the members in `alive` send heartbeats.
  void Run(absl::Duration time, const std::vector<v1::JoinReply>& alive = {});

  ManualClock clock;
  // The open step.
  uint64_t open_step = 0;
  // The members of StartJob(), by rank.
  std::vector<v1::JoinReply> members;
  // How often on_end was called, and its arguments.
  int ends = 0;
  std::string failure;
  v1::FailureKind failure_kind = v1::FAILURE_UNSPECIFIED;
  v1::ClusterStatus final_status;

  // The last member, because its destructor calls on_end.
  std::unique_ptr<Coordinator> coordinator;
};

}  // namespace weir

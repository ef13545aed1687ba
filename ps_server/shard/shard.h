#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/protocol/mode_traits.h"
#include "common/sync/serial_queue.h"
#include "common/sync/thread_pool.h"
#include "common/system/clock.h"
#include "common/system/file_system.h"
#include "proto/checkpoint.pb.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/consistency/policy.h"
#include "ps_server/push_log/push_log.h"
#include "ps_server/shard/block_store.h"
#include "ps_server/shard/calls.h"
#include "ps_server/shard/decision_log.h"
#include "ps_server/shard/progress_watch.h"
#include "ps_server/shard/push_arrival.h"
#include "ps_server/shard/push_arrivals.h"
#include "ps_server/shard/push_tally.h"
#include "ps_server/shard/restore.h"
#include "ps_server/shard/shard_members.h"
#include "ps_server/shard/staged_parts.h"
#include "ps_server/shard/waiting_calls.h"

namespace weir {

struct CheckpointWork;

// One shard of the model: takes pushes and pulls, keeps each push exactly once, asks the mode
// (ConsistencyPolicy) when what may happen, and updates the blocks. Knows nothing of gRPC.
//
// Everything happens in one order, that of a SerialQueue: pushes, pulls, commits, membership. A call that has
// to wait is parked with a deadline, without a thread. Nothing in the queue blocks. A whole update takes as
// long as the shard is large, so a shard above kMaxElementsOfCallers runs its queue on a thread of its own; a
// smaller one runs it on the threads of its callers, which saves each call a change of threads. Thread-safe.
//
// With server.durability "log" a push that is decided on is first appended to the shard's log (PushLog), and
// takes effect, in the order of these decisions, once its record is durable: nobody ever sees a version, a
// clock or an answer that the log does not hold. What changes the state otherwise (ControlMessage) waits
// until none is on its way to the disk, so a decision holds when it takes effect. A log that cannot be
// written ends the job.
//
// Invariants: a version is published with the clocks that belong to it, in one turn of the queue. A caller
// whose incarnation is not in the membership changes nothing. A refused push leaves no trace but its
// completed clock. Each Install begins a new incarnation; of the one before nothing is left, and what is
// still on its way from it has no effect.
class Shard {
 public:
  using PolicyFactory =
      std::function<std::unique_ptr<ConsistencyPolicy>(const v1::JobConfig&, const v1::Install&)>;
  static std::unique_ptr<ConsistencyPolicy> PolicyFromConfig(const v1::JobConfig& config,
                                                             const v1::Install& install);

  struct Options {
    v1::JobConfig config;
    // What an Install makes is another incarnation of the shard: not 0, never used before or again.
    std::function<uint64_t()> new_incarnation;
    // Runs what takes long and blocks, a checkpoint's file (one at a time), an Install and the log (one at a
    // time), on a thread where it may; none waits for another. All of it is over before the shard goes.
    std::function<void(std::function<void()>)> background = [](const std::function<void()>& work) { work(); };
    // These outlive the shard.
    FileSystem* files = &FileSystem::Posix();
    const Clock* clock = &Clock::Real();
    ThreadPool* threads = nullptr;
    const Kernels* kernels = nullptr;
    // What a server on this machine may take; 0: no limit is known. A model that cannot fit is refused.
    uint64_t memory_bytes = 0;
    // Of the memory that weights lie in.
    SlabSource weights_source = AllocateSlab;
    ReaderLimits reader_limits;
    // Is called, on any thread, when Tick() should come after so long; zero: memory has come free that calls
    // wait for. May be null.
    std::function<void(absl::Duration)> nudge;
    // Is called in the shard's order when readers have been revoked (LentVersion::revoked): whoever holds
    // what was lent looks whether it is theirs. Must not block. May be null.
    std::function<void()> on_revoke;
    // Tests put a broken policy here.
    PolicyFactory make_policy = PolicyFromConfig;
  };

  explicit Shard(Options options);
  // Answers what is parked with an error.
  ~Shard();

  // Where reports to the coordinator go: called in the shard's order, must not block. It gets those that come
  // of what is asked after this call, and of no Install or checkpoint from before the next Hello.
  void SetReporter(std::function<void(v1::ShardReport)> reporter);
  void Control(v1::ControlMessage message);

  using Session = SessionId;

  // A push in two acts. Begin: its header has come; `done` gets what takes its gradient, at once or when the
  // push's turn comes: pushes of the same worker before it are missing, it is arriving twice already, or
  // another one is streaming in at speed.
  // Errors: InvalidArgument, wrong length, model or clock; Unavailable, not installed yet.
  void Begin(Session session, v1::PushRequest header, BeginDone done);
  // Push: the gradient is there (arrival->whole()).
  void Push(Session session, std::unique_ptr<PushArrival> arrival, PushDone done);
  void Pull(Session session, v1::PullRequest request, PullDone done);
  // The connection has ended: what waits for it is answered with Cancelled. Staged parts stay.
  void End(Session session);

  // Whether it is likely that the pull of this worker at the next clock can be answered once the push is
  // applied (PushAnswer::made), so that weights may be sent while they are made. Only within BeginDone.
  bool AnswersAfter(const v1::PushRequest& push) const;

  // Ends waits whose deadline has passed. To be called every so often.
  void Tick();

  // Returns when all that was asked before has been done. Not from a callback.
  void Quiesce();

  // 0: nothing is installed.
  int64_t elements() const { return elements_.load(); }
  const Kernels& kernels() const { return *options_.kernels; }

  // For metrics; thread-safe.
  struct Counters {
    // These four come back with a checkpoint.
    std::atomic<uint64_t> pushes_applied{0}, pushes_refused{0}, pushes_lost{0};
    std::atomic<uint64_t> version{0};
    std::atomic<uint64_t> pushes_repeated{0};
    std::atomic<uint64_t> bytes_pushed{0}, bytes_pulled{0};
    std::atomic<uint64_t> parked_pulls{0};
    // Versions that were written off because readers held them for too long (VersionReaders).
    std::atomic<uint64_t> versions_written_off{0};
    // The longest wait of a call, in milliseconds, when Tick() looked last.
    std::atomic<uint64_t> longest_wait_ms{0};
    std::atomic<uint64_t> checkpoints_written{0};
  };
  const Counters& counters() const { return counters_; }

 private:
  // Updating so many elements takes one core a millisecond or two.
  static constexpr int64_t kMaxElementsOfCallers = 1 << 20;

  // All below run in the queue.
  void Handle(const v1::ControlMessage& message);
  void HandleHello();
  void HandleInstall(const v1::Install& install);
  absl::StatusOr<BlockStore::Options> CheckInstall(const v1::Install& install) const;
  void Drop(const std::string& reason);
  // What an Install has made in the background.
  struct Loaded {
    std::shared_ptr<BlockStore> store;
    v1::ShardState state;
    std::vector<v1::LoggedPush> records;
    std::shared_ptr<PushLog> log;
  };
  // ResourceExhausted: there is not enough memory.
  absl::StatusOr<Loaded> Load(const v1::Install& install, const BlockStore::Options& options,
                              uint64_t era) const;
  absl::StatusOr<Loaded> LoadParts(const v1::Install& install, const BlockStore::Options& options,
                                   uint64_t era) const;
  absl::Status LoadLog(const v1::Install& install, const LogPosition& position, uint64_t era,
                       Loaded* loaded) const;
  void FinishInstall(const v1::Install& install, Loaded loaded);
  void RestoreState(const v1::ShardState& state);
  void ReportInstalled(const absl::Status& status);
  void HandleMembership(const v1::Membership& membership);
  void HandleCommit(const v1::CommitStep& commit);
  void HandlePin(const v1::PinVersion& pin);
  void HandlePing(const v1::Ping& ping);
  void HandleCheckpoint(const v1::TakeCheckpoint& take);
  void WriteCheckpoint(const v1::TakeCheckpoint& take, const std::shared_ptr<CheckpointWork>& work);
  void ReportCheckpoint(uint64_t step, const absl::StatusOr<v1::CheckpointFile>& file);
  v1::ShardState StateNow() const;
  void HandleShutdown(const v1::Shutdown& shutdown);
  void HandleBegin(HeldPush push);
  // `waited`: it has waited in calls_.ready, and its turn has come.
  void HandlePush(Session session, std::unique_ptr<PushArrival> arrival, PushDone done, bool waited);
  void HandlePull(ParkedPull pull);
  void HandleEnd(Session session);
  void HandleTick();

  // As ShardMembers::DeclareLost. True if any are lost.
  bool DeclareLost(uint32_t worker, uint64_t answered_clock);
  static PushKey KeyOf(const v1::PushRequest& header);
  // Does the header fit this shard, whoever sends it?
  absl::Status CheckHeader(const v1::PushRequest& header) const;
  // Before a gradient is taken, and again before it is used. InvalidArgument: no such push can be.
  absl::StatusOr<Verdict> VerdictOn(const v1::PushRequest& header) const;
  // The verdict on a push that the shard would take: OK, unless the push says itself that it is to be
  // refused.
  static Verdict AsClaimed(const v1::PushRequest& header);
  // As PushArrivals::WaitForStream.
  bool WaitsForStream();
  // nullptr: it is arriving twice already.
  std::unique_ptr<PushArrival> Arrive(Session session, v1::PushRequest header);
  // False: the next version has to wait for readers, whose time is not over yet.
  bool MakeRoom();
  void RevokeLate();
  // Nothing stands between the push and a decision that takes effect.
  bool CanDecide(const v1::PushRequest& header);
  void Decide(Decision decision);
  void TakeEffect(const Decision& decision);
  // The books of a push with its outcome, but for the weights.
  void Account(const v1::PushRequest& header, v1::PushReply* reply);
  // sync. refusal: empty, or why the part is to be in no step; then it needs no gradient.
  void StagePush(const v1::PushRequest& header, Slab gradient, std::string refusal, Session session,
                 PushDone done);
  void RepeatPush(Session session, const v1::PushRequest& header, PushDone done);
  void FailLog(const absl::Status& status);
  void ReportFailed();
  // Lets take effect what is durable, then handles what waited for that.
  void ApplyDurable();
  void Replay(const v1::LoggedPush& record);
  // Something waits for memory that readers hold.
  bool ShortOfMemory() const;
  // Does what the last change made possible: held and ready pushes, parked pulls. What that makes possible in
  // its turn comes after it, not within: the stack stays as deep however many calls wait.
  void Wake();
  void LetGoOn();
  bool TryAnswerPull(const ParkedPull& pull);
  // The tasks of the workers whose pushes such a pull lacks, and the same in words.
  std::vector<std::string> TasksAwaited(uint32_t worker, uint64_t clock) const;
  std::string WhoIsAwaited(uint32_t worker, uint64_t clock) const;
  // sync: those of the open step.
  std::string MissingParts() const;
  // What a push that is ready waits for, and one that is decided on.
  std::string ReasonOfReady() const;
  std::string ReasonOfLogged(const Decision& decision) const;
  // Who holds the memory that the next version waits for, in words and as tasks.
  std::string MemoryHolders() const;
  std::vector<std::string> TasksHoldingMemory() const;
  std::string Describe(const VersionReaders::Held& held) const;
  // All that waits, the longest wait first.
  std::vector<v1::Wait> Waits() const;
  // Says once, when nothing has taken effect for a while, what waits for what.
  void WatchProgress(absl::Time now);
  // As WaitingCalls::CheckRoom.
  absl::Status CheckRoomToWait(uint32_t worker) const;
  void Hold(HeldPush push);
  std::string Fenced(const v1::Caller& caller) const;
  std::string NonFinite(const PushArrival& arrival) const;
  v1::PushReply NewReply(v1::Outcome outcome, std::string reason = "") const;
  v1::PullReply NewPullReply(v1::Outcome outcome, std::string reason = "", bool with_clocks = false) const;
  void FailWaiting(const std::function<bool(uint32_t worker)>& which, v1::Outcome outcome,
                   const std::string& reason);
  // The same for all, and for those who wait for the open step's commit.
  void FailAll(v1::Outcome outcome, const std::string& reason);
  void Report(v1::ShardReport report) { reporter_(std::move(report)); }
  bool logs() const { return options_.config.server().durability() == v1::ServerConfig::DURABILITY_LOG; }
  absl::Duration wait_limit() const { return absl::Seconds(options_.config.cluster().wait_seconds()); }

  const Options options_;
  const ModeTraits& mode_;
  Counters counters_;
  std::function<void(v1::ShardReport)> reporter_;
  // Set by Install, for readers on any thread.
  std::atomic<int64_t> elements_{0};

  // Touched in the queue only.
  // What Hello, Install and the end of the job end: work in the background that began in an earlier one comes
  // to nothing. Work may look at it on its thread.
  std::atomic<uint64_t> era_{0};
  // A checkpoint's file.
  bool writing_ = false;
  // With the log: an Install is under way, and the one to come after it. Two would begin the same segment.
  bool loading_ = false;
  absl::optional<v1::Install> next_install_;

  // All from here on goes with Drop(), but the end of the job. Null: nothing is installed.
  v1::Install install_;
  uint64_t incarnation_ = 0;
  std::shared_ptr<BlockStore> store_;
  std::unique_ptr<ConsistencyPolicy> policy_;
  uint64_t model_hash_ = 0;
  ShardMembers members_;
  PushArrivals arrivals_;
  WaitingCalls calls_;
  DecisionLog log_;
  StagedParts staged_;
  PushTally tally_;
  struct Pin {
    std::shared_ptr<const LentVersion> version;
    absl::Time deadline;
  };
  std::map<uint64_t, Pin> pins_;
  // sync: the commit of the open step, which waits for memory; and the pins and the checkpoint of the version
  // that it makes.
  struct LateCommit {
    v1::CommitStep commit;
    absl::Time since;
    std::vector<v1::PinVersion> pins;
    absl::optional<v1::TakeCheckpoint> checkpoint;
  };
  absl::optional<LateCommit> late_commit_;
  // Something waits for memory.
  std::atomic<bool> short_of_memory_{false};
  ProgressWatch progress_;
  bool over_ = false;
  absl::Status failure_;
  // Wake() is at work; and goes round once more.
  bool waking_ = false, wake_again_ = false;

  // Last, so that its destructor runs first: nothing is in a turn when the state goes.
  SerialQueue queue_;
};

}  // namespace weir

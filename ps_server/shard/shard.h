#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "common/codec/wire_codec.h"
#include "common/system/clock.h"
#include "common/system/file_system.h"
#include "common/threads/serial_queue.h"
#include "common/threads/thread.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/consistency/policy.h"
#include "ps_server/shard/calls/calls.h"
#include "ps_server/shard/calls/push_arrival.h"
#include "ps_server/shard/decision_log.h"
#include "ps_server/shard/incarnation.h"
#include "ps_server/shard/initial_values.h"
#include "ps_server/shard/restore/shard_loader.h"
#include "ps_server/shard/rows/table_report.h"
#include "ps_server/shard/shard_answers.h"
#include "ps_server/shard/shard_calls.h"
#include "ps_server/shard/shard_checkpoint.h"
#include "ps_server/shard/update_room.h"

namespace weir {

// One shard of the model. Takes pushes and pulls, applies each push exactly once, asks the mode
// (ConsistencyPolicy) when a call may proceed, and updates the blocks. Knows nothing of gRPC.
//
// A SerialQueue puts all state changes in one order: pushes, pulls, commits, memberships. A call that has to
// wait is parked with a deadline and uses no thread. Nothing in the queue blocks. Thread-safe.
//
// An update's time grows with the shard. So a shard above kMaxElementsOfCallers, or with embedding tables,
// runs its queue on a thread of its own. A smaller shard runs the queue on its callers' threads, which saves
// each call a switch of threads.
//
// With server.durability "log", the shard appends each push that it has decided on to its log (PushLog). The
// push takes effect, in the order of the decisions, once its record is durable. So no client ever sees a
// version, a clock or an answer that the log does not hold. Other changes of the state (ControlMessage) wait
// until no decision is pending, so each decision still holds when it takes effect. If the log cannot be
// written, the job fails.
//
// Invariants: a version is published together with its clocks, in one turn of the queue. If a caller's
// incarnation is not in the membership, its calls change nothing. A refused push leaves no trace but its
// completed clock. Each Install begins a new incarnation. Nothing of the previous incarnation is left, and
// its unfinished work has no effect.
class Shard {
 public:
  using PolicyFactory =
      std::function<std::unique_ptr<ConsistencyPolicy>(const v1::JobConfig&, const v1::Install&)>;
  static std::unique_ptr<ConsistencyPolicy> PolicyFromConfig(const v1::JobConfig& config,
                                                             const v1::Install& install);

  struct Options {
    v1::JobConfig config;
    // The index of the shard's server: ps:`index` has shard `index`. Absent: Install may name any shard.
    absl::optional<uint32_t> index;
    // Returns the number of a new incarnation for each Install: not 0, and never returned before.
    std::function<uint64_t()> new_incarnation;
    // Runs slow, blocking work on threads that may block: the files of checkpoints, one checkpoint at a time,
    // and Installs and the log, one piece of work at a time. The two kinds do not wait for each other. All of
    // this work ends before the shard is destroyed. Writing embedding tables waits for turns of the queue, so
    // a job with tables needs a thread for this work.
    std::function<void(std::function<void()>)> background = [](const std::function<void()>& work) { work(); };
    // These outlive the shard.
    FileSystem* files = &FileSystem::Posix();
    const Clock* clock = &Clock::Real();
    ThreadPool* threads = nullptr;
    const Kernels* kernels = nullptr;
    // The memory that a server on this machine may use; 0: no limit is known. The shard refuses a model that
    // cannot fit.
    uint64_t memory_bytes = 0;
    // Chunks of gradients start and end at multiples of this. The protocol sets the value; a simulation may
    // use a smaller one, as its clients do.
    uint64_t chunk_unit = kChunkUnit;
    // Whether long work runs on a thread of the shard. False, for simulations: on its callers' threads.
    bool own_thread = true;
    SlabSource weights_source = AllocateSlab;
    ReaderLimits reader_limits;
    // Called on any thread: asks for a Tick() after this time. Zero: awaited memory has become free. May be
    // null.
    std::function<void(absl::Duration)> nudge;
    // Called in the shard's order when readers have been revoked. Each owner of a lent version then checks
    // LentVersion::revoked. Must not block. May be null.
    std::function<void()> on_revoke;
    // Called in the shard's order when a push has to wait, or cannot be applied while it arrives, because of
    // lent versions. Each owner then releases its version as soon as it can. Must not block. May be null.
    std::function<void()> on_short;
    // Makes the mode's policy. Tests put a broken policy here.
    PolicyFactory make_policy = PolicyFromConfig;
  };

  explicit Shard(Options options);
  // Answers parked calls with an error.
  ~Shard();

  // Sets the callback for reports to the coordinator, which runs in the shard's order and must not block. The
  // callback receives the reports that result from later calls. After the next Hello it receives none about
  // an Install or a checkpoint from before that Hello.
  void SetReporter(std::function<void(v1::ShardReport)> reporter);
  void Control(v1::ControlMessage message);

  using Session = SessionId;

  // A push takes two calls, Begin() and Push(). Begin: the push's header has come. `done` receives the object
  // that takes the gradient, at once or when the push's turn comes. The push waits while earlier pushes of
  // its worker are missing, while two copies of it are arriving, or while a different push is streaming in at
  // speed.
  // Errors: InvalidArgument: the length, model or clock is wrong. Unavailable: nothing is installed yet.
  //
  // `fill` saves a turn if the whole gradient of a push without rows has come with the header. When the
  // push's turn comes, `fill` gives the gradient to the push, and `done` gets the answer of Push(). `fill`
  // must be as quick as a turn. Must be null for an upload of initial values.
  void Begin(Session session, v1::PushRequest header, BeginDone done, PushFill fill = nullptr);
  // Push: the gradient has arrived whole (arrival->whole(), and SetRows() was called if the push has rows).
  void Push(Session session, std::unique_ptr<PushArrival> arrival, PushDone done);
  // `rows`: the keys of request.rows.
  void Pull(Session session, v1::PullRequest request, PullDone done, RowKeys rows = {});
  // Reads rows of the newest version, for people. Waits for nothing.
  void ShowRows(v1::ReadRowsRequest request, ReadRowsDone done);
  // The connection has ended: answers its waiting calls with Cancelled. Staged parts stay.
  void End(Session session);

  // Whether this worker's pull at the next clock can probably be answered as soon as the push is applied
  // (PushAnswer::made), so that weights may be sent while they are computed. Only within BeginDone.
  bool AnswersAfter(const v1::PushRequest& push) const { return calls_.AnswersAfter(push); }

  // Counts the weights of a PushAnswer::made: this many elements of this type. Thread-safe.
  void CountPulled(uint64_t elements, v1::Dtype dtype) { answers_.CountPulled(elements, dtype); }

  // Ends waits whose deadlines have passed. Must be called regularly.
  void Tick();

  // Returns when all earlier calls have been handled. Must not be called from a callback.
  void Quiesce();

  // The job's embedding tables. Thread-safe.
  const RowArrival::Tables& tables() const { return options_.config.tables(); }

  // The shard's elements; 0: nothing is installed. Thread-safe.
  int64_t elements() const { return elements_.load(); }

  // Whether the shard's part of the model is being made or restored. Thread-safe.
  bool loading() const { return loader_.under_way(); }

  using Counters = ShardCounters;
  const Counters& counters() const { return counters_; }
  // Statistics of the job's tables, as of the last Tick(). Empty: nothing is installed. Thread-safe.
  std::vector<Table::Stats> table_stats() const { return table_report_.stats(); }

 private:
  // One core takes a millisecond or two to update this many elements.
  static constexpr int64_t kMaxElementsOfCallers = 1 << 20;

  ShardLoader::Options LoaderOptions();

  // All methods below run in the queue.
  //
  // NotFound: the call is for a different job or shard. This check comes first, since the caller's job may
  // have the same ranks, incarnations and clocks, and may continue when this job is over.
  absl::Status CheckAddressee(uint64_t job, uint32_t shard_plus_one) const;
  void Handle(const v1::ControlMessage& message);
  void HandleHello(const v1::Hello& hello);
  void HandleInstall(const v1::Install& install);
  void Drop(const std::string& reason);
  void FinishInstall(const v1::Install& install, ShardLoader::Loaded loaded);
  void ReportInstalled(const absl::Status& status);
  void HandleMembership(const v1::SetMembership& message);
  void HandleMeasure(const v1::MeasureStep& measure);
  void HandleCommit(const v1::CommitStep& commit);
  // The open step cannot be what ps:0 decided, so that this shard cannot continue. `task`: "commit".
  void FailStep(const char* task, uint64_t step, const absl::Status& why);
  // Handles a commit that waited for memory, and the messages that came after it.
  void ContinueCommit();
  void HandlePin(const v1::PinVersion& pin);
  void HandleUnpin(const v1::UnpinVersion& unpin);
  void HandlePing(const v1::Ping& ping);
  // Answers the last ping with the shard's stats.
  void ReportStats();
  // Computes some of the tables' digests in this turn. After the last turn the stats are sent again.
  void GoOnWithDigests(uint64_t incarnation);
  void HandleFreeze(const v1::FreezeCheckpoint& freeze);
  void HandleCheckpoint(const v1::TakeCheckpoint& take);
  // As ShardCheckpoint::Keep().
  absl::Status KeepForCheckpoint(uint64_t step, std::optional<uint64_t> follows);
  // Drops the version that is kept, or is to be kept, for a checkpoint whose writing has not begun.
  void ForgetCheckpoint();
  void HandleShutdown(const v1::Shutdown& shutdown);
  // The shard cannot continue: answers all calls with this failure, and the coordinator ends the job.
  void Fail(const absl::Status& failure);
  void FailLog(const absl::Status& status);
  void ReportFailed();
  void Report(v1::ShardReport report) { reporter_(std::move(report)); }

  const Options options_;
  Counters counters_;
  std::function<void(v1::ShardReport)> reporter_;
  // Set by Install. Any thread may read it.
  std::atomic<int64_t> elements_{0};

  // Only the queue changes the members below.
  //
  // The job that the first coordinator named; it never changes. Not set: no coordinator has named a job.
  v1::JobIdentity job_;

  // Each Hello, each Install and the end of the job abandon background work that was begun before.
  ShardLoader loader_;
  // The Install of now_, or of the incarnation that could not begin.
  v1::Install install_;
  // Declared before now_, because readers that release versions of now_ call it.
  UpdateRoom room_;
  Incarnation now_;
  TableReport table_report_;
  uint64_t last_ping_ = 0;
  DecisionLog log_;
  ShardCheckpoint checkpoint_;
  InitialValues initial_;
  // Set: the job is over. OK: it is done.
  std::optional<absl::Status> over_;
  // The job is over because this shard failed.
  bool failed_ = false;
  ShardAnswers answers_;
  ShardCalls calls_;

  // The last member, so that its destructor runs first: no turn is running when the state is destroyed.
  SerialQueue queue_;
};

}  // namespace weir

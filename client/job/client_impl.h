#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/call/call_group.h"
#include "client/client.h"
#include "client/exchange/event_loop.h"
#include "client/exchange/shard_channel.h"
#include "client/exchange/shard_set.h"
#include "client/job/coordinator_calls.h"
#include "client/job/coordinator_channel.h"
#include "client/job/heartbeat.h"
#include "client/job/history.h"
#include "client/job/loss_windows.h"
#include "client/job/transport.h"
#include "client/job/work_source.h"
#include "client/tables/key_cuts.h"
#include "client/tables/row_routes.h"
#include "client/tensors/gradient_memory.h"
#include "client/tensors/outgoing_gradient.h"
#include "client/tensors/tensor_map.h"
#include "client/tensors/wire_options.h"
#include "common/codec/wire_codec.h"
#include "common/protocol/mode_traits.h"
#include "common/system/float_pool.h"
#include "common/threads/mutex.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"

namespace weir {

// How a client reaches the job.
struct JobChannels {
  std::shared_ptr<EventLoop> loop;
  std::unique_ptr<CoordinatorChannel> coordinator;
  // By shard.
  std::vector<std::unique_ptr<ShardChannel>> shards;
  // Where the coordinator reaches the shards. May be empty.
  std::vector<std::string> otherwise;
  // WireOptions::chunk_unit.
  int64_t chunk_unit = kChunkUnit;
  // Gets what shards answer; outlives the client. nullptr: none. Not used if the client keeps a history.
  ShardSet::Observer* observer = nullptr;
};

// Calls end on the event loop. One mutex guards what calls and the heartbeat report, and threads that wait
// for news wait on one condition variable. The mutex is never held while a call starts, ends or is cancelled.
class ClientImpl final : public Client {
 public:
  // Client::Join() over this transport. `config`: options.job_config, parsed.
  static absl::StatusOr<std::unique_ptr<Client>> Join(const ClientOptions& options, const ModelSpec& model,
                                                      const v1::JobConfig& config, Transport& transport);

  // `instance`: the one in the JoinRequest that `reply` answers.
  ClientImpl(const ClientOptions& options, const ModelSpec& model, const v1::JobConfig& config,
             uint64_t instance, const v1::JoinReply& reply, JobChannels channels,
             std::unique_ptr<History> history);
  ~ClientImpl() override;

  absl::StatusOr<std::optional<Work>> NextWork() override;
  std::optional<absl::StatusOr<std::optional<Work>>> NextWorkBy(
      std::chrono::steady_clock::time_point deadline) override;
  Future<ExchangeResult> Exchange(ExchangeOrder order) override;
  bool gradient_has_chunks() const override {
    // Shard 0 has the most elements.
    return tensors_.partition().shard_elements(0) > wire_.chunk_elements;
  }
  std::shared_ptr<float> NewGradient() override { return gradients_.Take(); }
  Future<PullResult> PullSnapshot(std::vector<MutableTensor> tensors, std::vector<RowsToRead> rows) override;
  bool draining() const override;
  absl::StatusOr<bool> WaitDraining(std::chrono::steady_clock::time_point deadline) override;
  bool leading() const override;
  absl::StatusOr<bool> AwaitsEvaluation() override;
  absl::StatusOr<std::optional<EvaluationOrder>> WaitEvaluation(
      std::chrono::steady_clock::time_point deadline) override;
  void SetProgress(const Progress& progress) override;
  absl::Status Report(const PullResult& of, const EvaluationResult& result) override;
  absl::Status Leave(const absl::Status& failure) override;
  uint32_t worker() const override { return caller_.worker(); }
  uint64_t start_clock() const override { return start_clock_; }
  uint64_t job() const override { return caller_.job(); }
  const ModelSpec& model() const override { return tensors_.model(); }
  const std::vector<TableSpec>& tables() const override { return tables_; }

 private:
  using Steady = std::chrono::steady_clock;
  using Answers = ShardSet::Answers;
  using WorkResult = absl::StatusOr<std::optional<Work>>;
  // Clock and part.
  using PushKey = std::pair<uint64_t, uint32_t>;
  // One call to the shards, as far as it concerns NextWork().
  struct InFlight {
    std::optional<PushKey> push;
    std::optional<uint64_t> pull;
    bool probe = false;
  };

  // Becomes a member of the job, without connections to its shards. `again`, `job`: as in ClientOptions.
  static absl::StatusOr<std::unique_ptr<ClientImpl>> Enter(const ClientOptions& options, bool again,
                                                           uint64_t job, const ModelSpec& model,
                                                           const v1::JobConfig& config, Transport& transport);
  // Waits until every shard can be reached, at its address or at JobChannels::otherwise. Called once, before
  // any other call. Unavailable: a shard could not be reached before `deadline`; names it. An event that ends
  // this client, such as a failure of the job, ends the wait. Aborted: it was fenced meanwhile.
  absl::Status Connect(Steady::time_point deadline);
  // Waits until the job has initial values, and uploads this member's if it is named for that. Called once,
  // after Connect(). DeadlineExceeded: at this time of the loop's awake clock there were none. An event that
  // ends this client ends the wait. Afterwards nothing reads ClientOptions::initial_values.
  absl::Status AwaitInitialValues(absl::Time deadline);
  void Upload();

  // A server applies cluster.wait_seconds, too, and its error says more than ours would.
  CallLimits limits() const { return {wait_ + std::chrono::seconds(2), server_wait_}; }
  std::vector<std::unique_ptr<ShardChannel>> NoteShards(std::vector<std::unique_ptr<ShardChannel>> shards);
  // With the current epoch, for the coordinator.
  v1::Caller CallerNow() const {
    v1::Caller caller = caller_;
    caller.set_epoch(epoch_.load());
    return caller;
  }

  v1::WorkerReport ReportNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The error that every call gets from now on; OK: none.
  absl::Status Alive() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ExamplesDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Leads() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes the threads that wait, because a member that they may wait for has changed.
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for Changed(), or until the deadline. Releases the mutex meanwhile, and works on the calls that may
  // bring the change.
  void AwaitChange(Steady::time_point deadline = Steady::time_point::max())
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends all calls with `why`, now and later.
  void Fail(const absl::Status& why);
  bool OnHeartbeat(const v1::HeartbeatReply& reply);
  // Returns the shards whose incarnation has changed.
  std::vector<uint32_t> SetMembership(const v1::Membership& membership) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The rows of both; null: they have none.
  absl::StatusOr<std::shared_ptr<const RowRoutes>> MakeRows(absl::Span<const RowGradients> push,
                                                            absl::Span<const RowsToRead> pull);
  // rows_finite: RowRoutes::finite().
  absl::StatusOr<ShardSet::Push> MakePush(ExchangeOrder::Push order, const absl::Status& rows_finite);
  absl::StatusOr<ShardSet::Pull> MakePull(ExchangeOrder::Pull order);
  // The views that a pull in place fills, by shard.
  std::shared_ptr<std::vector<ShardView>> MakeViews() const;
  // The result of such a pull.
  WeightsView ViewOf(PullResult pull, std::vector<ShardView> views) const;
  // Returns whether this worker may make servers keep what it reads (WeightsView).
  bool MayHoldWeights() const;
  // Handles a push whose values are not finite, as the gradient or a shard has found: returns its answers,
  // with a warning, or ends this client.
  absl::StatusOr<Answers> JudgeFinite(const OutgoingGradient& gradient, absl::StatusOr<Answers> answers);
  // Makes NextWork() report a push that was not begun. Returns `why`.
  absl::Status FailPush(const Work& work, const absl::Status& why);
  // Starts push and pull on the first `shards` shards.
  void Start(uint32_t shards, std::optional<ShardSet::Push> push, std::optional<ShardSet::Pull> pull,
             const std::shared_ptr<const RowRoutes>& rows, ShardSet::Done done);
  // Takes from a call's answers what NextWork() waits for.
  void Learn(const InFlight& call, const absl::StatusOr<Answers>& answers);

  // As NextWorkBy().
  std::optional<WorkResult> NextPart(Steady::time_point deadline);
  // Asks shard 0 to answer when `step`, the one after the open step, opens. NextPart() waits meanwhile.
  void Probe(uint64_t step);
  absl::StatusOr<std::optional<Work>> NextOfRanges();
  // The result of NextOfRanges(), if it is known without waiting.
  std::optional<WorkResult> RangeWorkAtHand() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Asks for a range and enters it; false: there is none yet.
  absl::StatusOr<bool> TakeRange(const std::vector<uint64_t>& completed);
  // ClientOptions::hashes_weights.
  void ReportWeights();
  // Whether the leading worker still has to tell the hash of the final weights, and this is that worker.
  // Waits until it hears that the job's examples are done, at most cluster.wait_seconds.
  bool OwesWeights();
  CallLimits LastWords() const;
  absl::Status LeaveFor(const absl::Status& failure, CallLimits limits);

  const ClientOptions options_;
  const ModeTraits& mode_;
  const std::chrono::nanoseconds wait_, server_wait_, save_wait_, lease_;
  const v1::Caller caller_;
  const uint64_t start_clock_;
  const WireOptions wire_;
  const bool backup_workers_;
  // Pulls of rows alone wait for nobody, at whatever version the weights are.
  const bool rows_on_arrival_;
  // consistency.on_nonfinite is "reject".
  const bool rejects_;
  // OutgoingGradient::Options::shard_checks. False if the answer may be that of a part that came late, or if
  // other workers must do a refused push again, because the shard counts the push as done.
  const bool shard_checks_;
  const TensorMap tensors_;
  const std::vector<TableSpec> tables_;
  KeyCuts key_cuts_;
  // The buffers of views, by shard.
  std::vector<std::shared_ptr<FloatPool<>>> buffers_;
  GradientMemory gradients_;
  std::atomic<uint64_t> epoch_;

  mutable Mutex mutex_;
  // Signals that a member below has changed.
  CondVar news_;
  // The number of such changes; written under the mutex.
  std::atomic<uint64_t> changes_ = 0;
  // Threads in AwaitChange() that serve the loop.
  int serving_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool coordinator_lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  v1::JobState state_ ABSL_GUARDED_BY(mutex_) = v1::RUNNING;
  // HeartbeatReply.work_end, awaits_evaluation.
  std::optional<uint64_t> work_end_ ABSL_GUARDED_BY(mutex_);
  bool work_waits_ ABSL_GUARDED_BY(mutex_) = false;
  // A final evaluation was reported, or this client is about to.
  bool evaluated_ ABSL_GUARDED_BY(mutex_) = false;
  bool reports_final_ ABSL_GUARDED_BY(mutex_) = false;
  // The newest order, and the newest that WaitEvaluation() returned.
  EvaluationOrder order_ ABSL_GUARDED_BY(mutex_);
  uint64_t given_order_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::Membership membership_ ABSL_GUARDED_BY(mutex_);
  uint64_t revision_ ABSL_GUARDED_BY(mutex_) = 0;
  Progress progress_ ABSL_GUARDED_BY(mutex_);
  // The clock of the newest work that NextWork() gave out.
  uint64_t work_clock_ ABSL_GUARDED_BY(mutex_) = 0;
  LossWindows losses_ ABSL_GUARDED_BY(mutex_);
  // LossWindows::newest() when the heartbeat in flight was made.
  uint64_t losses_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  // The upload of the initial values is under way; why it failed.
  bool uploading_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status upload_error_ ABSL_GUARDED_BY(mutex_);

  // Exactly one of the two is used.
  SyncWorkSource parts_ ABSL_GUARDED_BY(mutex_);
  RangeWorkSource ranges_ ABSL_GUARDED_BY(mutex_);
  size_t pushes_out_ ABSL_GUARDED_BY(mutex_) = 0;
  // sync: the clocks of the pulls in flight, probes included.
  std::multiset<uint64_t> pulls_out_ ABSL_GUARDED_BY(mutex_);
  // sync: the error of the last probe.
  absl::Status probe_error_ ABSL_GUARDED_BY(mutex_);
  // Pushes that failed and were not made again: no range and no step can be completed without them.
  std::map<PushKey, absl::Status> failed_pushes_ ABSL_GUARDED_BY(mutex_);
  bool taking_range_ ABSL_GUARDED_BY(mutex_) = false;
  bool ranges_done_ ABSL_GUARDED_BY(mutex_) = false;

  // The calls below use everything above.
  // JobChannels::otherwise.
  const std::vector<std::string> otherwise_;
  const std::shared_ptr<EventLoop> loop_;
  CallGroup calls_;
  const std::unique_ptr<CoordinatorChannel> coordinator_channel_;
  CoordinatorCalls coordinator_;
  // Null: no history is kept.
  const std::unique_ptr<HistoryObserver> history_;
  // By shard; shards_ owns them.
  std::vector<ShardChannel*> channels_;
  ShardSet shards_;
  std::unique_ptr<Heartbeat> heartbeat_;
};

}  // namespace weir

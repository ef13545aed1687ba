#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/call.h"
#include "client/client.h"
#include "client/job/coordinator_calls.h"
#include "client/job/exchange_builder.h"
#include "client/job/exchanges.h"
#include "client/job/heartbeat.h"
#include "client/job/history.h"
#include "client/job/job_news.h"
#include "client/job/join_job.h"
#include "client/job/member_report.h"
#include "client/job/pending_work.h"
#include "client/job/transport.h"
#include "common/protocol/mode_traits.h"
#include "common/threads/mutex.h"
#include "proto/coordinator.pb.h"
#include "proto/job_config.pb.h"

namespace weir {

// Calls end on the event loop. One mutex guards what calls and the heartbeat report, and threads that wait
// for news wait on one condition variable. The mutex is never held while a call starts, ends or is cancelled.
class ClientImpl final : public Client, private Exchanges::Member {
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
    return builder_.tensors().partition().shard_elements(0) > builder_.wire().chunk_elements;
  }
  std::shared_ptr<float> NewGradient() override { return builder_.NewGradient(); }
  Future<PullResult> PullSnapshot(std::vector<MutableTensor> tensors, std::vector<RowsToRead> rows) override {
    return exchanges_.PullSnapshot(std::move(tensors), std::move(rows));
  }
  bool draining() const override;
  absl::StatusOr<bool> WaitDraining(std::chrono::steady_clock::time_point deadline) override;
  bool leading() const override;
  absl::StatusOr<bool> AwaitsEvaluation() override;
  absl::StatusOr<std::optional<EvaluationOrder>> WaitEvaluation(
      std::chrono::steady_clock::time_point deadline) override;
  void SetProgress(const Progress& progress) override;
  absl::Status Report(const PullResult& of, const EvaluationResult& result) override;
  absl::Status Log(absl::Span<const LoggedValue> values, bool last, double weight) override;
  absl::Status LogScores(absl::string_view name, absl::Span<const float> scores,
                         absl::Span<const float> labels) override;
  absl::Status Stop(const std::string& reason) override;
  absl::Status Leave(const absl::Status& failure) override;
  uint32_t worker() const override { return caller_.worker(); }
  JobSteps steps() const override { return steps_; }
  uint64_t start_clock() const override { return start_clock_; }
  bool progressed() const override { return progressed_; }
  uint64_t job() const override { return caller_.job(); }
  const ModelSpec& model() const override { return builder_.tensors().model(); }
  const std::vector<TableSpec>& tables() const override { return builder_.tables(); }

 private:
  using Steady = std::chrono::steady_clock;
  using WorkResult = PendingWork::Result;
  // Becomes a member of the job, without connections to its shards. `again`, `job`: as in ClientOptions.
  static absl::StatusOr<std::unique_ptr<ClientImpl>> Enter(const ClientOptions& options, bool again,
                                                           uint64_t job, const ModelSpec& model,
                                                           const v1::JobConfig& config, Transport& transport);
  // Waits until the job has initial values, and uploads this member's if it is named for that. Called once,
  // once all shards can be reached. DeadlineExceeded: at this time of the loop's awake clock there were none.
  // An event that ends this client ends the wait. Afterwards nothing reads ClientOptions::initial_values.
  absl::Status AwaitInitialValues(absl::Time deadline);

  // A server applies cluster.wait_seconds, too, and its error says more than ours would.
  CallLimits limits() const { return {wait_ + std::chrono::seconds(2), server_wait_}; }

  // Exchanges::Member.
  bool Alone() const override;
  void OnStepOpen(uint64_t step) override;
  void OnBegin(const PendingWork::Call& call) override;
  void OnEnd(const PendingWork::Call& call, const absl::StatusOr<Exchanges::Answers>& answers) override;
  void OnNotBegun(const Work& work, const absl::Status& why) override;
  // Ends all calls with `why`, now and later.
  void Fail(const absl::Status& why) override;
  v1::Caller CallerNow() const override {
    v1::Caller caller = caller_;
    caller.set_epoch(epoch_.load());
    return caller;
  }

  // The error that every call gets from now on; OK: none.
  absl::Status Alive() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Wakes the threads that wait, because a member that they may wait for has changed.
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Waits for Changed(), or until the deadline. Releases the mutex meanwhile, and works on the calls that may
  // bring the change.
  void AwaitChange(Steady::time_point deadline = Steady::time_point::max())
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool OnHeartbeat(const v1::HeartbeatReply& reply);
  // As NextWorkBy().
  std::optional<WorkResult> NextPart(Steady::time_point deadline);
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
  const JobSteps steps_;
  const uint64_t start_clock_;
  ExchangeBuilder builder_;
  std::atomic<uint64_t> epoch_;
  std::atomic<bool> progressed_ = false;
  MemberReport report_;

  mutable Mutex mutex_;
  // Signals that a member below has changed.
  CondVar changed_;
  // The number of such changes; written under the mutex.
  std::atomic<uint64_t> changes_ = 0;
  // Threads in AwaitChange() that serve the loop.
  int serving_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  bool coordinator_lost_ ABSL_GUARDED_BY(mutex_) = false;
  bool left_ ABSL_GUARDED_BY(mutex_) = false;
  JobNews news_ ABSL_GUARDED_BY(mutex_);
  PendingWork work_ ABSL_GUARDED_BY(mutex_);
  // A final evaluation is, or was, reported by this client.
  bool reports_final_ ABSL_GUARDED_BY(mutex_) = false;
  // The upload of the initial values is under way; why it failed.
  bool uploading_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status upload_error_ ABSL_GUARDED_BY(mutex_);

  // The calls below use everything above.
  // JobChannels::otherwise.
  const std::vector<std::string> otherwise_;
  const std::shared_ptr<EventLoop> loop_;
  CallGroup calls_;
  const std::unique_ptr<CoordinatorChannel> coordinator_channel_;
  CoordinatorCalls coordinator_;
  // Null: no history is kept.
  const std::unique_ptr<HistoryObserver> history_;
  Exchanges exchanges_;
  std::unique_ptr<Heartbeat> heartbeat_;
};

}  // namespace weir

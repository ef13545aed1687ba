#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/serial_queue.h"
#include "common/telemetry/int_histogram.h"
#include "common/thread_pool.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/consistency/policy.h"
#include "ps_server/shard/batch_set.h"
#include "ps_server/shard/block_store.h"

namespace weir {

// A push whose every byte has arrived.
struct ArrivedPush {
  v1::PushRequest header;  // without the bytes
  Slab gradient;
  // The local position of the first NaN or Inf; -1: all are finite.
  int64_t non_finite = -1;
};

struct PullAnswer {
  v1::PullReply header;  // without the bytes
  // What is to be sent; null if no weights follow.
  std::shared_ptr<const ShardVersion> version;
};

// The answer to a call, given once; on the thread of whoever made it possible, which it must not block.
using PushDone = std::function<void(absl::StatusOr<v1::PushReply>)>;
using PullDone = std::function<void(absl::StatusOr<PullAnswer>)>;

// One shard of the model: takes pushes and pulls, keeps each push exactly once, asks the mode
// (ConsistencyPolicy) when what may happen, and updates the blocks. Knows nothing of gRPC.
//
// Everything happens in one order, that of a SerialQueue: pushes, pulls, commits, membership. A call that has
// to wait is parked with a deadline, without a thread. Thread-safe.
//
// Invariants: a version is published with the clocks that belong to it, in one turn of the queue. A caller
// whose incarnation is not in the membership changes nothing. A refused push leaves no trace but its
// completed clock.
class Shard {
 public:
  using PolicyFactory =
      std::function<std::unique_ptr<ConsistencyPolicy>(const v1::JobConfig&, const v1::Install&)>;
  static std::unique_ptr<ConsistencyPolicy> PolicyFromConfig(const v1::JobConfig& config,
                                                             const v1::Install& install);

  struct Options {
    v1::JobConfig config;
    // Of this life of the shard; not 0, never used again.
    uint64_t incarnation = 1;
    // These outlive the shard.
    const Clock* clock = &Clock::Real();
    ThreadPool* threads = nullptr;
    const Kernels* kernels = nullptr;
    // Tests put a broken policy here.
    PolicyFactory make_policy = PolicyFromConfig;
  };

  explicit Shard(Options options);
  // Answers what is parked with an error.
  ~Shard();

  // Where reports to the coordinator go: called in the shard's order, must not block. Before the first
  // Control().
  void SetReporter(std::function<void(v1::ShardReport)> reporter);
  void Control(v1::ControlMessage message);

  // Before any memory is taken for a push: does the header fit this shard? Gives the buffer for the gradient.
  // InvalidArgument: wrong length, position or model. Unavailable: not installed yet.
  absl::StatusOr<Slab> Admit(const v1::PushRequest& header);
  void Push(ArrivedPush push, PushDone done);
  void Pull(v1::PullRequest request, PullDone done);

  // Ends waits whose deadline has passed. To be called every so often.
  void Tick();

  // Returns when all that was asked before has been done. Not from a callback.
  void Quiesce();

  // 0 before Install.
  int64_t elements() const { return elements_.load(); }
  const Kernels& kernels() const { return *options_.kernels; }

  // For metrics; thread-safe.
  struct Counters {
    std::atomic<uint64_t> pushes_applied{0}, pushes_refused{0}, pushes_repeated{0};
    std::atomic<uint64_t> bytes_pushed{0}, bytes_pulled{0};
    std::atomic<uint64_t> version{0};
    std::atomic<uint64_t> parked_pulls{0};
  };
  const Counters& counters() const { return counters_; }

 private:
  struct MemberState {
    std::string task;
    uint64_t incarnation = 0;
    // Answers to its last pushes, by clock (apply on arrival).
    std::map<uint64_t, v1::PushReply> answers;
  };
  struct HeldPush {
    ArrivedPush push;
    PushDone done;
    absl::Time deadline;
  };
  struct ParkedPull {
    v1::PullRequest request;
    PullDone done;
    absl::Time since;
  };
  // sync: a part of the open step.
  struct StagedPart {
    Slab gradient;
    uint64_t examples = 0;
    std::string refusal;  // empty: not refused
    // The push, and its repeats.
    struct Waiter {
      PushDone done;
      absl::Time since;
    };
    std::vector<Waiter> waiters;
  };

  // Steps and clocks whose answers are kept for repeats. A client has at most kHoldWindow pushes in the air.
  static constexpr size_t kRecorded = 2 * kHoldWindow;

  // All below run in the queue.
  void HandleInstall(const v1::Install& install);
  std::string TryInstall(const v1::Install& install);
  void HandleMembership(const v1::Membership& membership);
  void HandleCommit(const v1::CommitStep& commit);
  void HandlePin(const v1::PinVersion& pin);
  void HandlePing(const v1::Ping& ping);
  void HandleShutdown(const v1::Shutdown& shutdown);
  void HandlePush(ArrivedPush push, PushDone done);
  void HandlePull(v1::PullRequest request, PullDone done);
  void HandleTick();

  void ApplyPush(ArrivedPush push, const PushDone& done);
  void StagePush(ArrivedPush push, PushDone done);
  void RepeatPush(const v1::PushRequest& header, PushDone done);
  void Complete(const v1::PushRequest& header, v1::PushReply reply, const PushDone& done);
  // Held pushes and parked pulls that the last change made possible.
  void Wake();
  bool TryAnswerPull(const ParkedPull& pull);
  // OK: the caller is live. Else what to answer.
  enum class CallerCheck { kLive, kFenced, kUnknownYet };
  CallerCheck Check(const v1::Caller& caller) const;
  std::string WhoIsAwaited(const v1::PullRequest& request) const;
  std::string MissingParts() const;
  std::string Fenced(const v1::Caller& caller) const;
  std::string NonFinite(const ArrivedPush& push) const;
  v1::PushReply NewReply(v1::Outcome outcome, std::string reason = "") const;
  v1::PullReply NewPullReply(v1::Outcome outcome, std::string reason = "") const;
  void FailWaiting(const std::function<bool(uint32_t worker)>& which, v1::Outcome outcome,
                   const std::string& reason);
  void Report(v1::ShardReport report) { reporter_(std::move(report)); }
  bool sync() const { return options_.config.consistency().mode() == v1::ConsistencyConfig::MODE_SYNC; }
  absl::Duration wait_limit() const { return absl::Seconds(options_.config.cluster().wait_seconds()); }

  const Options options_;
  Counters counters_;
  std::function<void(v1::ShardReport)> reporter_;
  // Set once by Install, for readers on any thread.
  std::atomic<int64_t> elements_{0};
  std::atomic<uint64_t> model_hash_{0};
  std::atomic<BlockStore*> installed_{nullptr};

  // Touched in the queue only.
  v1::Install install_;
  std::unique_ptr<BlockStore> store_;
  std::unique_ptr<ConsistencyPolicy> policy_;
  uint64_t epoch_ = 0;
  std::map<uint32_t, MemberState> members_;
  bool over_ = false;
  std::string failure_;
  std::list<HeldPush> held_;
  std::list<ParkedPull> parked_;
  std::map<uint32_t, StagedPart> staged_;
  bool reported_staged_ = false;
  // sync: the parts of the last committed steps, for repeated answers.
  std::map<uint64_t, std::vector<uint32_t>> commits_;
  BatchSet batches_;
  struct Pin {
    std::shared_ptr<const ShardVersion> version;
    absl::Time deadline;
  };
  std::map<uint64_t, Pin> pins_;
  IntHistogram staleness_, lead_;

  // Last, so that its destructor runs first: nothing is in a turn when the state goes.
  SerialQueue queue_;
};

}  // namespace weir

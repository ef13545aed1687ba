#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/call.h"
#include "client/client.h"
#include "client/exchange/shard_channel.h"
#include "client/exchange/shard_set.h"
#include "client/job/coordinator_calls.h"
#include "client/job/exchange_builder.h"
#include "client/job/pending_work.h"
#include "client/tensors/outgoing_gradient.h"
#include "proto/coordinator.pb.h"

namespace weir {

// A member's exchanges with all shards: makes requests of a program's orders, sends them, and makes results
// of the answers. Thread-safe. Outlives its calls, as do the objects that it is made with.
class Exchanges {
 public:
  using Answers = ShardSet::Answers;

  // The member of whose work the exchanges are a part. All methods are thread-safe and do not block.
  class Member {
   public:
    virtual ~Member() = default;
    // The job has no other member.
    virtual bool Alone() const = 0;
    // All shards have published this step. On the event loop.
    virtual void OnStepOpen(uint64_t step) = 0;
    virtual void OnBegin(const PendingWork::Call& call) = 0;
    virtual void OnEnd(const PendingWork::Call& call, const absl::StatusOr<Answers>& answers) = 0;
    // The push of this work was not begun.
    virtual void OnNotBegun(const Work& work, const absl::Status& why) = 0;
    // An error that ends the membership. May be called several times.
    virtual void Fail(const absl::Status& why) = 0;
    // For calls to the coordinator, with the current epoch.
    virtual v1::Caller CallerNow() const = 0;
  };

  // `pin_lease`: how long the pin of a snapshot lasts.
  Exchanges(ExchangeBuilder& builder, std::vector<std::unique_ptr<ShardChannel>> shards,
            const ShardClient::Shared& shared, ShardSet::Observer* observer, CoordinatorCalls& coordinator,
            const CallLimits& limits, std::chrono::nanoseconds pin_lease, Member& member);

  // Waits until every shard can be reached, at its address or at that of `otherwise`, by shard, which may be
  // empty. Called once, before any other call. Unavailable: a shard could not be reached before `deadline`;
  // names it. `alive`: asked meanwhile; its error ends the wait.
  absl::Status Connect(std::chrono::steady_clock::time_point deadline,
                       const std::vector<std::string>& otherwise, const std::function<absl::Status()>& alive);

  // Client::Exchange(), and Client::PullSnapshot().
  Future<ExchangeResult> Run(ExchangeOrder order);
  Future<PullResult> PullSnapshot(std::vector<MutableTensor> tensors, std::vector<RowsToRead> rows);
  // Pushes ClientOptions::initial_values.
  void Upload(std::function<void(const absl::Status&)> done);
  // Asks shard 0 to answer when `step`, the one after the open step, opens: then OnEnd() runs.
  void Probe(uint64_t step);

  // As ShardSet's.
  void Move(const google::protobuf::Map<uint32_t, std::string>& moved) { shards_.Move(moved); }
  void Tell(uint32_t shard) { shards_.Tell(shard); }
  void Close() { shards_.Close(); }

 private:
  std::vector<std::unique_ptr<ShardChannel>> NoteShards(std::vector<std::unique_ptr<ShardChannel>> shards);
  absl::StatusOr<ShardSet::Pull> MakePull(ExchangeOrder::Pull order);
  // Starts push and pull on the first `shards` shards.
  void Start(uint32_t shards, std::optional<ShardSet::Push> push, std::optional<ShardSet::Pull> pull,
             const std::shared_ptr<const RowRoutes>& rows, ShardSet::Done done);
  // Handles a push whose values are not finite, as the gradient or a shard has found: returns its answers,
  // with a warning, or ends the membership.
  absl::StatusOr<Answers> JudgeFinite(const OutgoingGradient& gradient, absl::StatusOr<Answers> answers);

  ExchangeBuilder& builder_;
  const std::shared_ptr<ResultDriver> driver_;
  CoordinatorCalls& coordinator_;
  const CallLimits limits_;
  const std::chrono::nanoseconds pin_lease_;
  Member& member_;
  // By shard; shards_ owns them.
  std::vector<ShardChannel*> channels_;
  ShardSet shards_;
};

}  // namespace weir

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/work_source.h"
#include "tests/simulation/shard_calls.h"
#include "tests/simulation/site.h"

namespace weir {

// What workers and readers share: joining the job, the heartbeat, unary calls to the coordinator with the
// client's retries. One membership, one object; all runs as events of `node`.
class SimMember : public std::enable_shared_from_this<SimMember> {
 public:
  enum class End {
    kDone,     // nothing is left to do
    kFenced,   // join again
    kLost,     // a server cannot be reached, or the job has failed
    kRefused,  // it is in error
  };
  SimMember(Site* site, World::Node node, std::string task, v1::Role role, uint32_t rank,
            std::function<void(End)> on_end);
  virtual ~SimMember() = default;

  void Start();
  // The process is gone.
  void Abandon();
  bool live() const { return live_; }
  virtual std::string Waiting() const;

 protected:
  virtual void OnJoined() = 0;
  // The membership or the job's state has changed.
  virtual void OnNews() {}

  // A unary call to the coordinator, until it is answered or given up. `gone`: what the service does when the
  // caller goes away.
  template <typename Request, typename Reply>
  void Call(void (Coordinator::*method)(Request, Coordinator::Done<Reply>), Request request,
            std::function<void(absl::StatusOr<Reply>)> done);
  v1::Caller CallerNow() const;
  void Fail(End how);
  void Leave(bool done);
  void Complain(const std::string& what);
  bool draining() const { return state_ == v1::DRAINING || state_ == v1::DONE; }
  bool sync() const { return site_->plan.sync(); }
  // Wraps a callback: it runs only while this is there and not over.
  template <typename Function>
  auto Bound(Function function) {
    return [weak = weak_from_this(), function = std::move(function)](auto&&... args) mutable {
      const auto self = weak.lock();
      if (self != nullptr && !self->over_) function(std::forward<decltype(args)>(args)...);
    };
  }

  Site* const site_;
  const World::Node node_;
  const std::string task_;
  const v1::Role role_;
  const uint32_t rank_;
  const std::function<void(End)> on_end_;
  const uint64_t instance_;

  bool live_ = false, over_ = false, leaving_ = false;
  v1::JoinReply joined_;
  v1::JobState state_ = v1::RUNNING;
  v1::Membership members_;
  std::vector<std::shared_ptr<ShardCalls>> shards_;

 private:
  void Join();
  void Beat();
  // ClientImpl::SetMembership.
  void SetMembers(const v1::Membership& members);

  SimRetry join_retry_;
  uint64_t revision_ = 0;
  std::optional<absl::Duration> unreachable_since_;
  SimBackoff beat_backoff_{absl::Milliseconds(50), absl::Milliseconds(500)};
};

template <typename Request, typename Reply>
void SimMember::Call(void (Coordinator::*method)(Request, Coordinator::Done<Reply>), Request request,
                     std::function<void(absl::StatusOr<Reply>)> done) {
  const auto& cluster = site_->plan.config.cluster();
  struct Try {
    SimRetry retry;
    std::function<void()> start;
  };
  auto attempt = std::make_shared<Try>(Try{SimRetry(site_, absl::Seconds(cluster.wait_seconds() + 2),
                                                    absl::Seconds(cluster.server_wait_seconds())),
                                           nullptr});
  // Weak: the function is a part of what it would hold.
  attempt->start = [this, method, request, done = Bound(std::move(done)),
                    weak = std::weak_ptr<Try>(attempt)]() {
    const auto attempt = weak.lock();
    if (attempt == nullptr) return;
    attempt->retry.TryStarts();
    SimServer* const server = site_->servers[0].get();
    site_->network.Call<Reply>(
        node_, server->node(),
        [server, method, request](std::function<void(absl::StatusOr<Reply>)> reply) {
          if (server->coordinator() == nullptr)
            return reply(absl::UnavailableError("there is no coordinator"));
          (server->coordinator()->*method)(request, std::move(reply));
        },
        nullptr, Bound([this, attempt, done](absl::StatusOr<Reply> reply) mutable {
          if (!reply.ok()) {
            if (const auto wait = attempt->retry.Judge(reply.status()); wait.has_value()) {
              return site_->world.After(node_, *wait, Bound([attempt] { attempt->start(); }));
            }
          }
          done(std::move(reply));
        }));
  };
  attempt->start();
}

// A worker: takes the work that the shipped SyncWorkSource or RangeWorkSource gives, pulls, computes, pushes,
// as worker/trainer.cc does with client/client_impl.cc.
class SimWorkerClient final : public SimMember {
 public:
  SimWorkerClient(Site* site, World::Node node, uint32_t rank, std::function<void(End)> on_end);
  std::string Waiting() const override;

 private:
  // What was read in place, by shard.
  using View = std::vector<ShardCalls::Answer>;
  enum class Doing { kNothing, kPulling, kComputing };
  struct Operation {
    std::optional<Work> work;  // a push
    std::optional<uint64_t> pull;
    bool probe = false;
    std::vector<ShardCalls::Answer> answers;
    size_t missing = 0;
    bool failed = false;
    absl::Duration began;
  };

  void OnJoined() override;
  void OnNews() override;
  // Is there work? The loop of Trainer::Run.
  void Advance();
  void StartWork(const Work& work);
  void Compute(const Work& work);
  void Push(const Work& work);
  void TakeRange();
  void Pull(uint64_t clock, bool probe);
  void Start(std::shared_ptr<Operation> operation, uint32_t shards);
  void OnAnswer(const std::shared_ptr<Operation>& operation, uint32_t shard,
                absl::StatusOr<ShardCalls::Answer> answer);
  void OnComplete(const Operation& operation);
  void Land(const Operation& operation);
  // Weights are read where the shards have them, where that holds nobody up (client/client.h, WeightsView).
  bool InPlace() const { return sync() || site_->plan.workers.size() == 1; }
  void LetGo(std::shared_ptr<const View> view);

  std::optional<SyncWorkSource> parts_;
  std::optional<RangeWorkSource> ranges_;
  Doing doing_ = Doing::kNothing;
  size_t pushes_out_ = 0;
  std::multiset<uint64_t> pulls_out_;
  bool taking_range_ = false, ranges_done_ = false;
  SimBackoff range_backoff_{absl::Milliseconds(20), absl::Milliseconds(500)};
  // The weights that it has, and of which clock.
  std::optional<uint64_t> have_;
  std::vector<Weights> weights_;
  std::shared_ptr<const View> view_;
  // Of those before.
  uint32_t views_kept_ = 0;
  std::vector<v1::Version> base_;
  // The exchange whose pull brings the next clock's.
  std::optional<uint64_t> coming_;
  std::optional<Work> waiting_work_;
};

// An evaluator: reads pinned versions now and then, and once more at the end; or has another habit.
class SimReader final : public SimMember {
 public:
  SimReader(Site* site, World::Node node, uint32_t index, std::function<void(End)> on_end);

 private:
  void OnJoined() override { Read(); }
  void OnNews() override;
  void Read();
  void Pull(const v1::PinReply& pin, const std::function<void()>& done);
  // Its habit has set in.
  bool misbehaves() const;

  const ReaderPlan& plan_;
  bool reading_ = false;
  // Reads or pins that it holds.
  uint32_t held_ = 0;
};

}  // namespace weir

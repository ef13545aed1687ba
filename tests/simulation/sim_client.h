#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/call/call_group.h"
#include "client/call/call_retry.h"
#include "client/exchange/shard_set.h"
#include "client/job/work_source.h"
#include "client/tensors/gradient_gate.h"
#include "client/tensors/tensor_map.h"
#include "tests/simulation/sim_channel.h"
#include "tests/simulation/site.h"

namespace weir {

// What workers and readers share: joining the job, the heartbeat, unary calls to the coordinator with the
// client's retries; and the shards, by the shipped ShardSet. One membership, one object; all runs as events
// of `node`.
class SimMember : public std::enable_shared_from_this<SimMember>, public ShardSet::Observer {
 public:
  enum class End {
    kDone,     // nothing is left to do
    kFenced,   // join again
    kLost,     // a server cannot be reached, or the job has failed
    kRefused,  // it is in error
  };
  SimMember(Site* site, World::Node node, std::string task, v1::Role role, uint32_t rank,
            std::function<void(End)> on_end);
  ~SimMember() override;

  void Start();
  // The process is gone, or the membership has ended. The object stays until the run ends, since it may be in
  // the midst of an event.
  void Abandon();
  bool live() const { return live_; }
  virtual std::string Waiting() const;

 protected:
  virtual void OnJoined() = 0;
  // The membership or the job's state has changed.
  virtual void OnNews() {}
  // A shard has answered a pull of weights.
  void OnPull(const ShardSet::Pull& pull, uint32_t shard, const v1::PullReply& reply) override;
  void OnPush(const ShardSet::Push&, uint32_t, const v1::PushReply&) override {}

  // A pull, which goes to the log.
  struct Pulling {
    ShardSet::Pull pull;
    // Of the whole model, for a pull that is not into a view.
    std::vector<float> weights;
    absl::Duration began;
    // A reader's: PullAnswered::pin.
    uint64_t read = 0;
    // Tensors as they were when they were told, by their position.
    std::map<size_t, std::vector<float>> told;
  };
  // in_place: of a view.
  std::shared_ptr<Pulling> NewPull(uint64_t clock, bool view, bool in_place);
  // Where the model's tensors begin that lie there one after another.
  std::vector<float*> TensorsIn(std::vector<float>* all) const;
  // What a shard has answered to a pull.
  Weights WeightsOf(const ShardSet::Pull& pull, uint32_t shard) const;
  // The process, or the client in it, is gone.
  virtual void LetViewsGo() {}
  // ShardSet's on_fatal.
  virtual void OnFatal(const absl::Status& why);

  // A unary call to the coordinator, until it is answered or given up. `gone`: what the service does when the
  // caller goes away.
  template <typename Request, typename Reply>
  void Call(void (Coordinator::*method)(Request, Coordinator::Done<Reply>), Request request,
            std::function<void(absl::StatusOr<Reply>)> done);
  // ClientImpl::limits.
  CallLimits limits() const;
  CallRetry NewRetry(std::string what, const CallLimits& limits);
  Backoff::Random Jitter() {
    return [this] { return loop_.Random(); };
  }
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
  SimEventLoop loop_;
  std::atomic<uint64_t> epoch_{0};
  CallGroup calls_;
  const TensorMap tensors_;
  WireOptions wire_;
  // By shard; they belong to shards_.
  std::vector<SimShardChannel*> channels_;
  std::unique_ptr<ShardSet> shards_;

 private:
  void Join();
  void Beat();
  // ClientImpl::SetMembership.
  void SetMembers(const v1::Membership& members);
  void Connect();
  // Ends what is under way without a word; soon: once nothing of it is in the midst of an event.
  void CleanUp();
  void CleanUpSoon();
  static const void* KeyOf(const ShardSet::Pull& pull);

  // By where their weights go.
  std::map<const void*, std::weak_ptr<const Pulling>> pulling_;
  // Of views, by shard.
  std::vector<std::shared_ptr<FloatBuffers>> buffers_;

  CallRetry join_retry_;
  uint64_t revision_ = 0;
  std::optional<absl::Time> unreachable_since_;
  Backoff beat_backoff_;
};

template <typename Request, typename Reply>
void SimMember::Call(void (Coordinator::*method)(Request, Coordinator::Done<Reply>), Request request,
                     std::function<void(absl::StatusOr<Reply>)> done) {
  struct Try {
    explicit Try(CallRetry r) : retry(std::move(r)) {}
    CallRetry retry;
    std::function<void()> start;
  };
  auto attempt = std::make_shared<Try>(NewRetry("a call", limits()));
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
            const CallRetry::Verdict verdict = attempt->retry.Judge(reply.status());
            if (verdict.error.ok()) {
              return site_->world.After(node_, absl::FromChrono(verdict.wait),
                                        Bound([attempt] { attempt->start(); }));
            }
          }
          done(std::move(reply));
        }));
  };
  attempt->start();
}

// A worker: takes the work that the shipped SyncWorkSource or RangeWorkSource gives, pulls, computes, pushes,
// as worker/trainer.cc does with client/job/client_impl.cc.
class SimWorkerClient final : public SimMember {
 public:
  SimWorkerClient(Site* site, World::Node node, uint32_t rank, std::function<void(End)> on_end);
  std::string Waiting() const override;

 private:
  // What was read in place, and what it was then, by shard.
  struct View {
    std::shared_ptr<std::vector<ShardView>> shards;
    std::vector<Weights> weights;
    std::vector<v1::Version> versions;
  };
  enum class Doing { kNothing, kPulling, kComputing };

  void OnJoined() override;
  void OnNews() override;
  // Is there work? The loop of Trainer::Run.
  void Advance();
  void StartWork(const Work& work);
  void Compute(const Work& work);
  void Push(const Work& work);
  void TakeRange();
  void Pull(uint64_t clock, bool probe);
  // One call to the shards, as ClientImpl makes it: the push of this work, the pull of this clock, or both.
  void Begin(const std::optional<Work>& work, std::optional<uint64_t> clock, bool probe);
  // Of a gradient that it writes there.
  ShardSet::Push MakePush(const Work& work, std::vector<float>* gradient);
  void Hear(const std::shared_ptr<Pulling>& pulling);
  void OnFailed(const std::optional<Work>& work, const std::shared_ptr<Pulling>& pulling,
                const absl::Status& why);
  void OnComplete(const std::optional<Work>& work, const std::shared_ptr<Pulling>& pulling, bool probe,
                  const ShardSet::Answers& answers);
  void Land(const Pulling& pulling, const ShardSet::Answers& answers);
  void OnPush(const ShardSet::Push& push, uint32_t shard, const v1::PushReply& reply) override;
  // Weights are read where the shards have them, where that holds nobody up (client/client.h, WeightsView).
  bool InPlace() const { return sync() || site_->plan.workers.size() == 1; }
  void LetGo(std::shared_ptr<const View> view);
  void LetViewsGo() override { view_ = nullptr; }

  std::optional<SyncWorkSource> parts_;
  std::optional<RangeWorkSource> ranges_;
  Doing doing_ = Doing::kNothing;
  size_t pushes_out_ = 0;
  std::multiset<uint64_t> pulls_out_;
  bool taking_range_ = false, ranges_done_ = false;
  Backoff range_backoff_{std::chrono::milliseconds(20), std::chrono::milliseconds(500), Jitter()};
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
  // It tries again, or is told so by its heartbeat.
  void OnFatal(const absl::Status&) override {}
  // Its habit has set in.
  bool misbehaves() const;

  const ReaderPlan& plan_;
  bool reading_ = false;
  // Reads or pins that it holds.
  uint32_t held_ = 0;
};

}  // namespace weir

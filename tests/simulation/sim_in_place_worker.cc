// A simulated worker that reads weights where the shards have them. It has a training program of its own,
// because `worker` copies the weights.
#include <algorithm>
#include <utility>

#include "tests/simulation/sim_program.h"

namespace weir {
namespace {

class SimInPlaceWorker final : public SimProgram {
 public:
  SimInPlaceWorker(Site* site, World::Node node, uint32_t rank,
                   std::function<void(const absl::Status&)> on_end)
      : SimProgram(site, node, v1::WORKER, rank, std::move(on_end)), plan_(site->plan.workers[rank]) {}
  // Here and not in the base class, because a program that dies calls LetGo().
  ~SimInPlaceWorker() override { Die(); }

 private:
  // Weights in place, and the values that they had when they came, by shard.
  struct Held {
    WeightsView view;
    std::vector<Weights> then;
  };
  // A pull in flight, alone or with a push. One of the two Futures is set.
  struct Coming {
    uint64_t clock = 0;
    std::optional<Future<WeightsView>> pull;
    std::optional<Future<PushPullView>> exchange;

    absl::StatusOr<WeightsView> Take() {
      if (pull.has_value()) return pull->Take();
      absl::StatusOr<PushPullView> both = exchange->Take();
      if (!both.ok()) return both.status();
      return std::move(both->weights);
    }
  };

  absl::Status Work(Client* client) override { return Train(client); }

  absl::Status Train(Client* client) {
    coming_.reset();
    have_.reset();
    while (true) {
      doing_ = "waits for work";
      const absl::StatusOr<std::optional<weir::Work>> work = client->NextWork();
      if (!work.ok()) return work.status();
      if (!work->has_value()) return absl::OkStatus();
      doing_ = "pulls";
      const absl::Status found = FindWeights(client, (*work)->clock);
      if (!found.ok()) return found;
      if (have_ != (*work)->clock) continue;  // the step is past
      doing_ = "computes";
      SleepComputing(site_->world.Between(plan_.compute_least, plan_.compute_most));
      Push(client, **work);
      if (!plan_.holds_view) LetGoOf(std::move(held_));
    }
  }

  absl::Status FindWeights(Client* client, uint64_t clock) {
    while (have_ != clock) {
      if (!coming_.has_value()) BeginPull(client, clock);
      Coming coming = *std::exchange(coming_, std::nullopt);
      absl::StatusOr<WeightsView> view = coming.Take();
      if (!view.ok()) return view.status();
      // The pull is of another clock: the other workers were faster.
      if (coming.clock != clock) continue;
      if (view->pull().past) return absl::OkStatus();
      TakeUp(clock, *std::move(view));
    }
    return absl::OkStatus();
  }

  // Otherwise shards would keep versions for this worker while others push.
  bool HoldsViews() const { return sync() || site_->plan.workers.size() == 1; }

  void BeginPull(Client* client, uint64_t clock) {
    Ask(clock);
    coming_ = Coming{clock, client->PullInPlace(clock), std::nullopt};
  }

  // Makes these the weights to compute with.
  void TakeUp(uint64_t clock, WeightsView view) {
    have_ = clock;
    base_ = view.pull();
    weights_ = PartsOf(Values(view).data());
    auto held = std::make_shared<Held>(Held{std::move(view), weights_});
    LetGoOf(std::exchange(held_, HoldsViews() ? std::move(held) : nullptr));
  }

  static std::vector<float> Values(const WeightsView& view) {
    std::vector<float> flat;
    for (size_t tensor = 0; tensor < view.tensors(); ++tensor) {
      for (const auto& piece : view.pieces(tensor)) flat.insert(flat.end(), piece.begin(), piece.end());
    }
    return flat;
  }

  void Push(Client* client, const weir::Work& work) {
    LogPush(work, base_, weights_);
    const auto gradient = std::make_shared<std::vector<float>>(GradientOf(work.batch, weights_));
    const auto tensors = TensorsIn<ConstTensor>(static_cast<const float*>(gradient->data()));
    // Now and then the tensors become ready one after another, after the push has begun.
    std::shared_ptr<GradientGate> gate;
    if (site_->world.Chance(0.15)) {
      gate = std::make_shared<GradientGate>();
      for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
        loop_->After(site_->world.Between(absl::ZeroDuration(), absl::Milliseconds(30)),
                     [gate, tensor] { gate->Ready(tensor); });
      }
    }
    const auto keep = [gradient](const auto&) {};
    const bool joins = work.last_of_clock && !coming_.has_value();
    if (!joins || plan_.pulls_apart) {
      client->Push(work, base_, tensors, std::move(gate), RowsToPush(work.batch)).OnReady(keep);
      if (joins) BeginPull(client, work.clock + 1);
      return;
    }
    Ask(work.clock + 1);
    coming_ = Coming{work.clock + 1, std::nullopt,
                     client->PushPullInPlace(work, base_, tensors, std::move(gate), RowsToPush(work.batch))};
    coming_->exchange->OnReady(keep);
  }

  void LetGoOf(std::shared_ptr<Held> held) {
    if (held == nullptr || dead()) return;
    const bool keeps = site_->world.elapsed() >= plan_.keeps_from && kept_ < plan_.keeps;
    if (keeps) ++kept_;
    keeping_.push_back(held);
    loop_->After(keeps ? plan_.keeps_for : absl::ZeroDuration(), [this, weak = std::weak_ptr<Held>(held)] {
      const std::shared_ptr<Held> held = weak.lock();
      if (held == nullptr || dead()) return;
      keeping_.erase(std::find(keeping_.begin(), keeping_.end(), held));
      CheckHeld(*held);
    });
  }

  // Checks that no value has changed since the view came.
  void CheckHeld(const Held& held) {
    const std::vector<Weights> parts = PartsOf(Values(held.view).data());
    for (uint32_t shard = 0; shard < parts.size(); ++shard) {
      if (*parts[shard] == *held.then[shard]) continue;
      v1::Version version;
      version.set_count(held.view.pull().versions[shard]);
      version.set_incarnation(held.view.pull().incarnations[shard]);
      site_->log.changed_views.push_back({site_->world.elapsed(), joined_.worker(), shard, version});
    }
  }

  void LetGo() override {
    if (held_ != nullptr) keeping_.push_back(std::move(held_));
    for (const auto& held : std::exchange(keeping_, {})) {
      if (!dead()) CheckHeld(*held);
    }
    coming_.reset();
  }

  const WorkerPlan& plan_;
  // The current weights: their clock, the pull that brought them, their values by shard, and the view if it
  // is held.
  std::optional<uint64_t> have_;
  PullResult base_;
  std::vector<Weights> weights_;
  std::shared_ptr<Held> held_;
  // The views that this worker has yet to release, and how many it has kept for long.
  std::vector<std::shared_ptr<Held>> keeping_;
  uint32_t kept_ = 0;
  std::optional<Coming> coming_;
};

}  // namespace

std::unique_ptr<SimProgram> MakeSimInPlaceWorker(Site* site, World::Node node, uint32_t rank,
                                                 std::function<void(const absl::Status&)> on_end) {
  return std::make_unique<SimInPlaceWorker>(site, node, rank, std::move(on_end));
}

}  // namespace weir

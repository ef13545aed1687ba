// A worker of the simulation: a training program that the public interface allows. Some read weights where
// the shards have them, some into tensors of their own, of which they hear one by one.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/simulation/sim_program.h"

namespace weir {
namespace {

class SimWorker final : public SimProgram {
 public:
  SimWorker(Site* site, World::Node node, uint32_t rank, std::function<void(const absl::Status&)> on_end)
      : SimProgram(site, node, v1::WORKER, rank, std::move(on_end)), plan_(site->plan.workers[rank]) {}
  // Not that of the base: a program that dies calls LetGo().
  ~SimWorker() override { Die(); }

 private:
  // Weights in place, and what they were when they came, by shard.
  struct Held {
    WeightsView view;
    std::vector<Weights> then;
  };
  // A pull in the air, alone or with a push. One of the four.
  struct Coming {
    uint64_t clock = 0;
    // Into tensors: where, and as each was when it was told of, by its position.
    std::shared_ptr<std::vector<float>> weights;
    std::shared_ptr<std::map<size_t, std::vector<float>>> told;
    std::optional<Future<PullResult>> pull;
    std::optional<Future<PushPullResult>> exchange;
    std::optional<Future<WeightsView>> view;
    std::optional<Future<PushPullView>> view_exchange;
  };

  absl::Status Work(Client* client) override {
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
      Sleep(site_->world.Between(plan_.compute_least, plan_.compute_most));
      Push(client, **work);
      if (!plan_.holds_view) LetGoOf(std::move(held_));
    }
  }

  absl::Status FindWeights(Client* client, uint64_t clock) {
    while (have_ != clock) {
      const bool wanted = coming_.has_value() && coming_->clock == clock;
      if (!coming_.has_value()) BeginPull(client, clock);
      const Coming coming = *std::exchange(coming_, std::nullopt);
      bool past = false;
      const absl::Status landed = Land(coming, coming.clock == clock, &past);
      if (absl::IsDataLoss(landed)) {
        // Cut short after its first tensors: pulled again, as the trainer does.
        if (!dead()) ++site_->faults["pull again"];
        continue;
      }
      if (!landed.ok()) return landed;
      // Another clock's: the others were faster.
      if (past && (wanted || coming.clock == clock)) return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  bool InPlace() const { return sync() || site_->plan.workers.size() == 1; }
  bool Whole() const { return !InPlace() && index_ % 2 == 1; }

  Coming NewComing(uint64_t clock) {
    Ask(clock);
    Coming coming;
    coming.clock = clock;
    if (Whole()) {
      coming.weights = std::make_shared<std::vector<float>>(static_cast<size_t>(tensors_.model().elements()));
      coming.told = std::make_shared<std::map<size_t, std::vector<float>>>();
    }
    return coming;
  }

  // Tensors are told of as they come, and are to stay as they are then.
  OnWeights Hear(const Coming& coming) {
    return [this, weights = coming.weights, told = coming.told](size_t tensor) {
      const float* from = weights->data();
      for (size_t i = 0; i < tensor; ++i) from += tensors_.model().tensors[i].elements();
      (*told)[tensor].assign(from, from + tensors_.model().tensors[tensor].elements());
    };
  }

  void BeginPull(Client* client, uint64_t clock) {
    coming_ = NewComing(clock);
    if (Whole()) {
      coming_->pull = client->Pull(clock, TensorsIn<MutableTensor>(coming_->weights->data()), Hear(*coming_));
      coming_->pull->OnReady([kept = coming_->weights](const auto&) {});
    } else {
      coming_->view = client->PullInPlace(clock);
    }
  }

  // Waits for it. `wanted`: its weights are those to compute with.
  absl::Status Land(const Coming& coming, bool wanted, bool* past) {
    absl::StatusOr<PullResult> pull = absl::InternalError("none");
    std::shared_ptr<Held> held;
    const auto take = [&](WeightsView view) {
      pull = view.pull();
      held = std::make_shared<Held>(Held{std::move(view), {}});
    };
    if (coming.pull.has_value()) {
      pull = coming.pull->Get();
    } else if (coming.exchange.has_value()) {
      const auto& both = coming.exchange->Get();
      pull = both.ok() ? absl::StatusOr<PullResult>(both->pull) : both.status();
    } else if (coming.view.has_value()) {
      auto view = Future<WeightsView>(*coming.view).Take();
      if (view.ok()) take(*std::move(view));
      if (!view.ok()) pull = view.status();
    } else {
      auto both = Future<PushPullView>(*coming.view_exchange).Take();
      if (both.ok()) take(std::move(both->weights));
      if (!both.ok()) pull = both.status();
    }
    if (!pull.ok()) return pull.status();
    *past = pull->past;
    CheckTold(coming);
    if (pull->past || !wanted) return absl::OkStatus();
    have_ = coming.clock;
    base_ = *pull;
    std::vector<float> flat;
    if (held == nullptr) {
      flat = *coming.weights;
    } else {
      for (size_t tensor = 0; tensor < held->view.tensors(); ++tensor) {
        for (const auto& piece : held->view.pieces(tensor))
          flat.insert(flat.end(), piece.begin(), piece.end());
      }
    }
    weights_ = Parts(flat);
    if (held != nullptr) held->then = weights_;
    LetGoOf(std::exchange(held_, InPlace() ? std::move(held) : nullptr));
    return absl::OkStatus();
  }

  std::vector<Weights> Parts(const std::vector<float>& flat) const {
    std::vector<Weights> parts;
    for (uint32_t shard = 0; shard < site_->plan.shards(); ++shard) {
      parts.push_back(std::make_shared<const std::vector<float>>(PartOf(shard, flat.data())));
    }
    return parts;
  }

  void CheckTold(const Coming& coming) {
    if (coming.told == nullptr) return;
    const std::vector<MutableTensor> tensors = TensorsIn<MutableTensor>(coming.weights->data());
    for (const auto& [tensor, values] : *coming.told) {
      if (std::equal(values.begin(), values.end(), tensors[tensor].values.begin())) continue;
      Complain(absl::StrCat("tensor ", tensor, " of clock ", coming.clock, " has changed after it was told"));
    }
  }

  void Push(Client* client, const weir::Work& work) {
    std::vector<v1::Version> base(base_.versions.size());
    for (size_t shard = 0; shard < base.size(); ++shard) {
      base[shard].set_count(base_.versions[shard]);
      base[shard].set_incarnation(base_.incarnations[shard]);
    }
    if (!dead()) {
      site_->log.sent.push_back(
          {site_->world.elapsed(), joined_.incarnation(), work.clock, work.batch, std::move(base)});
    }
    const auto gradient =
        std::make_shared<std::vector<float>>(static_cast<size_t>(tensors_.model().elements()));
    const std::vector<ConstTensor> tensors = MakeGradient(work, gradient.get());
    // Now and then tensors are ready one after the other, and the push has begun before.
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
      client->Push(work, base_, tensors, std::move(gate)).OnReady(keep);
      if (joins) BeginPull(client, work.clock + 1);
      return;
    }
    coming_ = NewComing(work.clock + 1);
    if (Whole()) {
      coming_->exchange =
          client->PushPull(work, base_, tensors, TensorsIn<MutableTensor>(coming_->weights->data()),
                           std::move(gate), Hear(*coming_));
      coming_->exchange->OnReady([gradient, kept = coming_->weights](const auto&) {});
    } else {
      coming_->view_exchange = client->PushPullInPlace(work, base_, tensors, std::move(gate));
      coming_->view_exchange->OnReady(keep);
    }
  }

  std::vector<ConstTensor> MakeGradient(const weir::Work& work, std::vector<float>* all) const {
    const std::vector<MutableTensor> tensors = TensorsIn<MutableTensor>(all->data());
    for (uint32_t shard = 0; shard < site_->plan.shards(); ++shard) {
      const std::vector<float> part =
          site_->ledger.Gradient(work.batch, shard, joined_.incarnation(), *weights_[shard]);
      auto from = part.begin();
      tensors_.Walk(shard, 0, site_->ledger.elements(), [&](size_t tensor, int64_t at, int64_t n) {
        std::copy(from, from + n, tensors[tensor].values.begin() + at);
        from += n;
      });
    }
    return TensorsIn<ConstTensor>(static_cast<const float*>(all->data()));
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

  // No value has changed since it came.
  void CheckHeld(const Held& held) {
    std::vector<float> now;
    for (size_t tensor = 0; tensor < held.view.tensors(); ++tensor) {
      for (const auto& piece : held.view.pieces(tensor)) now.insert(now.end(), piece.begin(), piece.end());
    }
    const std::vector<Weights> parts = Parts(now);
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
  // The weights at hand, their clock and by shard.
  std::optional<uint64_t> have_;
  PullResult base_;
  std::vector<Weights> weights_;
  std::shared_ptr<Held> held_;
  // Views that it has yet to let go, and how many it has kept for long.
  std::vector<std::shared_ptr<Held>> keeping_;
  uint32_t kept_ = 0;
  std::optional<Coming> coming_;
};

}  // namespace

std::unique_ptr<SimProgram> MakeSimWorker(Site* site, World::Node node, uint32_t rank,
                                          std::function<void(const absl::Status&)> on_end) {
  return std::make_unique<SimWorker>(site, node, rank, std::move(on_end));
}

}  // namespace weir

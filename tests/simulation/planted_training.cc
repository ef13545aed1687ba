// Bugs of the training loop, planted as a client that tells the loop what is not so, or is told so by it.
#include <algorithm>
#include <memory>
#include <utility>

#include "tests/common/forwarding_client.h"
#include "tests/simulation/planted_bugs.h"

namespace weir {
namespace {

// The loop's client is one of these.
template <typename Wrong>
std::function<void(Site*)> Instead() {
  return
      [](Site* site) { site->seams.client = [](Client* client) { return std::make_unique<Wrong>(client); }; };
}

// Changes what comes of pulls into tensors.
class ChangedPulls : public ForwardingClient {
 public:
  using Change = std::function<void(absl::StatusOr<PullResult>*)>;
  ChangedPulls(Client* to, Change change) : ForwardingClient(to), change_(std::move(change)) {}

  Future<PullResult> Pull(uint64_t clock, std::vector<MutableTensor> tensors, OnWeights on_weights) override {
    Promise<PullResult> promise;
    ForwardingClient::Pull(clock, std::move(tensors), std::move(on_weights))
        .OnReady([promise, change = change_](absl::StatusOr<PullResult> result) mutable {
          change(&result);
          promise.Set(std::move(result));
        });
    return promise.future();
  }
  Future<PushPullResult> PushPull(const Work& work, const PullResult& base, std::vector<ConstTensor> gradient,
                                  std::vector<MutableTensor> weights, std::shared_ptr<GradientGate> gate,
                                  OnWeights on_weights) override {
    Promise<PushPullResult> promise;
    ForwardingClient::PushPull(work, base, std::move(gradient), std::move(weights), std::move(gate),
                               std::move(on_weights))
        .OnReady([promise, change = change_](const absl::StatusOr<PushPullResult>& both) mutable {
          absl::StatusOr<PullResult> pull = PullResult();
          if (both.ok()) {
            pull = both->pull;
          } else {
            pull = both.status();
          }
          change(&pull);
          if (!pull.ok()) return promise.Set(pull.status());
          promise.Set(PushPullResult{both.ok() ? both->push : PushResult(), *std::move(pull)});
        });
    return promise.future();
  }

 private:
  const Change change_;
};

class PastIsFresh final : public ChangedPulls {
 public:
  explicit PastIsFresh(Client* to)
      : ChangedPulls(to, [](absl::StatusOr<PullResult>* pull) {
          if (pull->ok()) (*pull)->past = false;
        }) {}
};

class CutShortIsWhole final : public ChangedPulls {
 public:
  explicit CutShortIsWhole(Client* to)
      : ChangedPulls(to, [last = std::make_shared<PullResult>()](absl::StatusOr<PullResult>* pull) {
          if (pull->ok()) *last = **pull;
          if (absl::IsDataLoss(pull->status()) && !last->versions.empty()) *pull = *last;
        }) {}
};

// The loop hears of all tensors with the first that comes.
class ToldOfAllAtOnce final : public ForwardingClient {
 public:
  using ForwardingClient::ForwardingClient;

  Future<PullResult> Pull(uint64_t clock, std::vector<MutableTensor> tensors, OnWeights on_weights) override {
    return ForwardingClient::Pull(clock, std::move(tensors), OfAll(std::move(on_weights)));
  }
  Future<PushPullResult> PushPull(const Work& work, const PullResult& base, std::vector<ConstTensor> gradient,
                                  std::vector<MutableTensor> weights, std::shared_ptr<GradientGate> gate,
                                  OnWeights on_weights) override {
    return ForwardingClient::PushPull(work, base, std::move(gradient), std::move(weights), std::move(gate),
                                      OfAll(std::move(on_weights)));
  }

 private:
  OnWeights OfAll(OnWeights on_weights) const {
    if (on_weights == nullptr) return nullptr;
    return [on_weights = std::move(on_weights), tensors = model().tensors.size()](size_t) {
      for (size_t tensor = 0; tensor < tensors; ++tensor) on_weights(tensor);
    };
  }
};

// What is handed over before it is computed leaves as it is then.
class SentAtOnce final : public ForwardingClient {
 public:
  using ForwardingClient::ForwardingClient;

  Future<PushResult> Push(const Work& work, const PullResult& base, std::vector<ConstTensor> gradient,
                          std::shared_ptr<GradientGate>) override {
    return ForwardingClient::Push(work, base, std::move(gradient), nullptr);
  }
  Future<PushPullResult> PushPull(const Work& work, const PullResult& base, std::vector<ConstTensor> gradient,
                                  std::vector<MutableTensor> weights, std::shared_ptr<GradientGate>,
                                  OnWeights on_weights) override {
    return ForwardingClient::PushPull(work, base, std::move(gradient), std::move(weights), nullptr,
                                      std::move(on_weights));
  }
};

}  // namespace

std::vector<PlantedBug> PlantedInTraining() {
  return {
      {"past taken for fresh",
       "a training loop goes on from the pull of a step that is past",
       {Invariant::kBase},
       Instead<PastIsFresh>()},
      {"cut short taken for whole",
       "a training loop goes on from a pull that was interrupted after its first tensors",
       {Invariant::kBase},
       Instead<CutShortIsWhole>()},
      {"told of all at once",
       "a training loop computes from tensors that have not come yet",
       {Invariant::kBase},
       Instead<ToldOfAllAtOnce>()},
      {"sent before computed",
       "a gradient leaves before it is there",
       {Invariant::kComplete},
       Instead<SentAtOnce>()},
  };
}

}  // namespace weir

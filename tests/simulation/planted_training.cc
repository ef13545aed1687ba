// Bugs of the training loop, planted as a client that misleads the loop, or that the loop misleads.
#include <memory>
#include <utility>

#include "tests/common/forwarding_client.h"
#include "tests/simulation/planted_bugs.h"

namespace weir {
namespace {

// Makes a client of this class the loop's.
template <typename Wrong>
std::function<void(Site*)> Instead() {
  return
      [](Site* site) { site->seams.client = [](Client* client) { return std::make_unique<Wrong>(client); }; };
}

// Changes the results of pulls into tensors.
class ChangedPulls : public ForwardingClient {
 public:
  using Change = std::function<void(absl::StatusOr<PullResult>*)>;
  ChangedPulls(Client* to, Change change) : ForwardingClient(to), change_(std::move(change)) {}

  Future<ExchangeResult> Exchange(ExchangeOrder order) override {
    if (!order.pull.has_value()) return ForwardingClient::Exchange(std::move(order));
    Promise<ExchangeResult> promise;
    ForwardingClient::Exchange(std::move(order))
        .OnReady([promise, change = change_](const absl::StatusOr<ExchangeResult>& result) mutable {
          absl::StatusOr<PullResult> pull = PullResult();
          if (result.ok()) {
            pull = result->pull;
          } else {
            pull = result.status();
          }
          change(&pull);
          if (!pull.ok()) return promise.Set(pull.status());
          ExchangeResult changed;
          if (result.ok()) changed.push = result->push;
          changed.pull = *std::move(pull);
          promise.Set(std::move(changed));
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

// Reports all tensors with the first one that comes.
class ToldOfAllAtOnce final : public ForwardingClient {
 public:
  using ForwardingClient::ForwardingClient;

  Future<ExchangeResult> Exchange(ExchangeOrder order) override {
    if (order.pull.has_value() && order.pull->on_weights != nullptr) {
      order.pull->on_weights = [on_weights = std::move(order.pull->on_weights),
                                tensors = model().tensors.size()](size_t) {
        for (size_t tensor = 0; tensor < tensors; ++tensor) on_weights(tensor);
      };
    }
    return ForwardingClient::Exchange(std::move(order));
  }
};

// Sends a gradient as it is when it is handed over, before it is computed.
class SentAtOnce final : public ForwardingClient {
 public:
  using ForwardingClient::ForwardingClient;

  Future<ExchangeResult> Exchange(ExchangeOrder order) override {
    if (order.push.has_value()) order.push->gate = nullptr;
    return ForwardingClient::Exchange(std::move(order));
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

// Bugs of pushes that travel in several chunks, whose weights come back while they are on their way.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "tests/common/forwarding_client.h"
#include "tests/simulation/planted_bugs.h"

namespace weir {
namespace {

void CreditTimes(Site* site, uint32_t factor) {
  site->seams.reply = [factor](uint64_t, uint32_t, v1::ExchangeReply* reply) {
    reply->set_credit(reply->credit() * factor);
  };
}

// Weights that came with a push that was then to be sent again count, and are not replaced by those that come
// with its repetition. In messages only: what lies in shared memory is not changed on its way.
void OvertakenWeightsKept(Site* site) {
  using Push = std::tuple<uint64_t, uint32_t, uint64_t, uint32_t>;  // incarnation, shard, clock, part
  struct State {
    // The pushes that are not answered, by stream and exchange.
    std::map<std::pair<uint64_t, uint64_t>, Push> open;
    // What came before the answer, by position.
    std::map<Push, std::map<uint64_t, float>> early;
  };
  const auto state = std::make_shared<State>();
  site->seams.request = [state](uint64_t stream, uint32_t shard, v1::ExchangeRequest* request) {
    if (!request->has_push()) return;
    const v1::PushRequest& push = request->push();
    state->open[{stream, request->id()}] = {push.caller().incarnation(), shard, push.clock(), push.part()};
  };
  site->seams.weights = [state](uint64_t stream, uint32_t, const v1::ExchangeReply& reply,
                                std::string* weights) {
    const auto open = state->open.find({stream, reply.id()});
    if (open == state->open.end()) return;
    std::map<uint64_t, float>& early = state->early[open->second];
    for (size_t i = 0; i * sizeof(float) < weights->size(); ++i) {
      char* const at = weights->data() + i * sizeof(float);
      float value;
      std::memcpy(&value, at, sizeof(value));
      const uint64_t position = reply.first() + i;
      // Weights that come with the answer, or after it, are those of a published version.
      const auto kept = reply.has_push() ? early.find(position) : early.emplace(position, value).first;
      if (kept != early.end()) std::memcpy(at, &kept->second, sizeof(float));
    }
  };
}

// Reports each tensor as soon as all of its values have come, whether or not the shards have said that these
// are the weights of a version.
class ToldUnconfirmed final : public ForwardingClient {
 public:
  // A pull that is under way.
  class Pull {
   public:
    Pull(const std::vector<MutableTensor>& tensors, OnWeights on_weights)
        : tensors_(tensors), on_weights_(std::move(on_weights)), told_(tensors.size()) {
      for (const MutableTensor& tensor : tensors_) {
        std::fill(tensor.values.begin(), tensor.values.end(), std::numeric_limits<float>::quiet_NaN());
      }
    }
    void Tell(size_t tensor) {
      if (told_[tensor]) return;
      told_[tensor] = true;
      on_weights_(tensor);
    }
    void TellAllThere() {
      for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
        const auto& values = tensors_[tensor].values;
        if (std::none_of(values.begin(), values.end(), [](float value) { return std::isnan(value); })) {
          Tell(tensor);
        }
      }
    }

   private:
    const std::vector<MutableTensor> tensors_;
    const OnWeights on_weights_;
    std::vector<bool> told_;
  };
  using Pulls = std::vector<std::weak_ptr<Pull>>;

  ToldUnconfirmed(Client* to, std::shared_ptr<Pulls> pulls)
      : ForwardingClient(to), pulls_(std::move(pulls)) {}

  Future<ExchangeResult> Exchange(ExchangeOrder order) override {
    if (order.pull.has_value() && order.pull->on_weights != nullptr) {
      const auto pull = std::make_shared<Pull>(order.pull->tensors, std::move(order.pull->on_weights));
      order.pull->on_weights = [pull](size_t tensor) { pull->Tell(tensor); };
      pulls_->push_back(pull);
    }
    return ForwardingClient::Exchange(std::move(order));
  }

 private:
  const std::shared_ptr<Pulls> pulls_;
};

void TellUnconfirmed(Site* site) {
  const auto pulls = std::make_shared<ToldUnconfirmed::Pulls>();
  site->seams.client = [pulls](Client* client) { return std::make_unique<ToldUnconfirmed>(client, pulls); };
  // What came before has been put where it belongs.
  site->seams.reply = [pulls](uint64_t, uint32_t, v1::ExchangeReply*) {
    for (const auto& weak : *pulls) {
      if (const auto pull = weak.lock()) pull->TellAllThere();
    }
  };
}

}  // namespace

std::vector<PlantedBug> PlantedInChunks() {
  return {
      {"credit returned twice",
       "a client sends more of a gradient than the shard has said that it takes",
       {Invariant::kProtocol},
       [](Site* site) { CreditTimes(site, 2); }},
      {"credit not returned",
       "a client never sends the rest of a gradient",
       {Invariant::kProgress},
       [](Site* site) { CreditTimes(site, 0); }},
      {"overtaken weights kept",
       "weights that came with a push that was overtaken count as those of the version read",
       {Invariant::kTorn},
       OvertakenWeightsKept},
      {"told before confirmed",
       "a training loop computes from weights before the shards have published them",
       {Invariant::kBase},
       TellUnconfirmed},
  };
}

}  // namespace weir

// Bugs of quantised pushes and of what they round away.
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "tests/simulation/planted_bugs.h"
#include "tests/simulation/push_model.h"

namespace weir {
namespace {

// Gives each gradient what it would have if its worker kept residuals in a wrong way. The worker adds the
// right ones itself.
class WrongResiduals {
 public:
  enum class Wrong { kKeptAfterRollback, kKeptOfAnothersPart, kForgottenWhenRefused };
  WrongResiduals(Site* site, Wrong wrong) : site_(*site), wrong_(wrong) {}

  void OnSent(const PushSent& push) {
    for (uint32_t shard = 0; shard < site_.plan.shards(); ++shard) {
      PushModel& model = models_.try_emplace({push.incarnation, shard}, &site_.ledger).first->second;
      const PushModel::Key key = {push.clock, PartOf(push.batch), push.base[shard].incarnation()};
      keys_[{push.incarnation, push.batch, shard}] = key;
      PushModel::Found found = model.Begin(key);
      std::vector<float>& wrong = wrong_values_[{push.incarnation, push.batch, shard}];
      switch (wrong_) {
        case Wrong::kKeptAfterRollback:
          wrong = std::move(found.rolled_back);
          break;
        case Wrong::kKeptOfAnothersPart:
          wrong = std::move(found.anothers);
          break;
        case Wrong::kForgottenWhenRefused:
          wrong.clear();
          if (forgotten_.erase({push.incarnation, shard, key.part}) == 0) break;
          for (const float value : found.carried) wrong.push_back(-value);
      }
    }
  }
  void OnGradient(uint64_t incarnation, uint64_t batch, uint32_t shard, std::vector<float>* gradient) {
    const auto key = keys_.find({incarnation, batch, shard});
    if (key == keys_.end()) return;  // the process has died
    const std::vector<float>& wrong = wrong_values_[key->first];
    for (size_t i = 0; i < wrong.size(); ++i) (*gradient)[i] += wrong[i];
    models_.at({incarnation, shard}).Send(key->second, *gradient);
  }
  void OnHeard(const PushHeard& heard) {
    const auto model = models_.find({heard.incarnation, heard.shard});
    if (model == models_.end()) return;
    const uint32_t part = PartOf(heard.batch);
    if (!model->second.OnAnswer(heard.clock, part, heard.took_effect, heard.whole).empty()) {
      forgotten_.insert({heard.incarnation, heard.shard, part});
    }
  }

 private:
  uint32_t PartOf(uint64_t batch) const {
    return site_.plan.sync() ? static_cast<uint32_t>(batch % site_.plan.ledger.parts) : 0;
  }

  const Site& site_;
  const Wrong wrong_;
  std::map<std::pair<uint64_t, uint32_t>, PushModel> models_;  // by the worker's incarnation, and shard
  using Push = std::tuple<uint64_t, uint64_t, uint32_t>;       // incarnation, batch, shard
  std::map<Push, PushModel::Key> keys_;
  std::map<Push, std::vector<float>> wrong_values_;
  std::set<std::tuple<uint64_t, uint32_t, uint32_t>> forgotten_;  // incarnation, shard, part
};

std::function<void(Site*)> Residuals(WrongResiduals::Wrong wrong) {
  return [wrong](Site* site) {
    const auto residuals = std::make_shared<WrongResiduals>(site, wrong);
    site->seams.sent = [residuals](const PushSent& push) { residuals->OnSent(push); };
    site->seams.gradient = [residuals](uint64_t incarnation, uint64_t batch, uint32_t shard,
                                       std::vector<float>* gradient) {
      residuals->OnGradient(incarnation, batch, shard, gradient);
    };
    site->seams.heard = [residuals](const PushHeard& heard) { residuals->OnHeard(heard); };
  };
}

// Whatever is sent again is encoded again, with what has been rounded away since.
void EncodedAnew(Site* site) {
  using Chunk = std::tuple<uint64_t, uint32_t, uint64_t, uint32_t, uint64_t>;  // of a push: its first element
  const auto sent = std::make_shared<std::set<Chunk>>();
  site->seams.chunk = [site, sent](uint32_t shard, const v1::PushRequest& push, uint64_t first, char* data,
                                   size_t bytes) {
    const Chunk chunk{push.caller().incarnation(), shard, push.clock(), push.part(), first};
    if (sent->insert(chunk).second) return;
    const BlockCode code = CodeOf(push.dtype());
    std::vector<float> values(MostValues(push.dtype(), bytes));
    DecodeBlocks(code, data, values.data(), values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      // Counts are as they were.
      if (!site->ledger.IsMark(first + i)) values[i] *= i % 2 == 0 ? 1.5f : 0.75f;
    }
    EncodeBlocks(code, values.data(), data, values.size());
  };
}

bool Quantised(const Plan& plan) { return plan.ledger.push_dtype != v1::F32; }
bool Feedback(const Plan& plan) { return plan.ledger.feedback; }
bool SyncFeedback(const Plan& plan) { return plan.ledger.feedback && plan.sync(); }

}  // namespace

std::vector<PlantedBug> PlantedInCodec() {
  using Wrong = WrongResiduals::Wrong;
  return {
      {"encoded anew",
       "a quantised push that is sent again is encoded again, with another residual",
       {Invariant::kCoded, Invariant::kComplete},
       EncodedAnew,
       Quantised},
      {"residual of a lost version",
       "a residual outlives the shard's way back to a checkpoint",
       {Invariant::kCoded},
       Residuals(Wrong::kKeptAfterRollback),
       Feedback},
      {"residual of another's part",
       "a residual is used although the part was another worker's meanwhile",
       {Invariant::kCoded},
       Residuals(Wrong::kKeptOfAnothersPart),
       SyncFeedback},
      {"residual of a refused push",
       "a push without effect takes its residual with it",
       {Invariant::kCoded},
       Residuals(Wrong::kForgottenWhenRefused),
       Feedback},
  };
}

}  // namespace weir

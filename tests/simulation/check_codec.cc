// Checks that quantised pushes take effect with the bits that follow from what their workers computed and
// heard.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/simulation/checker.h"

namespace weir {
namespace {

// A step of which workers have computed more combinations of parts is not checked.
constexpr size_t kMostCombinations = 16;

}  // namespace

void Checker::FollowPushes() {
  if (!ledger_.quantised()) return;
  std::map<std::pair<uint64_t, uint32_t>, PushModel> models;  // by the worker's incarnation, and shard
  std::map<std::tuple<uint64_t, uint32_t, uint64_t, uint64_t>, size_t>
      unheard;  // as `heard` below, and batch
  for (const PushSent& push : log_.sent) {
    for (uint32_t shard = 0; shard < plan_.shards(); ++shard) {
      ++unheard[{push.incarnation, shard, push.clock, push.batch}];
    }
  }
  for (const PushHeard& heard : log_.heard)
    unheard.erase({heard.incarnation, heard.shard, heard.clock, heard.batch});
  const auto part_of = [&](uint64_t batch) {
    return sync() ? static_cast<uint32_t>(batch % ledger_.options().parts) : 0;
  };
  auto heard = log_.heard.begin();
  for (size_t i = 0; i < log_.sent.size(); ++i) {
    for (; heard != log_.heard.end() && heard->sent <= i; ++heard) {
      const auto model = models.find({heard->incarnation, heard->shard});
      if (model == models.end()) continue;
      model->second.OnAnswer(heard->clock, part_of(heard->batch), heard->took_effect, heard->whole);
    }
    const PushSent& push = log_.sent[i];
    const uint64_t who = NumberOf(push.incarnation);
    for (uint32_t shard = 0; shard < plan_.shards(); ++shard) {
      PushModel& model = models.try_emplace({push.incarnation, shard}, &ledger_).first->second;
      const PushModel::Key key{push.clock, part_of(push.batch), push.base[shard].incarnation()};
      const bool known = model.Begin(key).known;
      // Whether a call that fails puts its residual back in time cannot be told.
      const bool open =
          ledger_.options().feedback && std::any_of(unheard.begin(), unheard.end(), [&](const auto& one) {
            const auto& [incarnation, of, clock, batch] = one.first;
            return incarnation == push.incarnation && of == shard && part_of(batch) == key.part &&
                   clock < push.clock;
          });
      std::vector<float> gets =
          model.Send(key, ledger_.Gradient(push.batch, shard, who, *push.weights[shard]));
      if (open || !known) gets.clear();
      gets_[{shard, key.incarnation, push.batch}].push_back({&push, std::move(gets)});
    }
  }
}

void Checker::CheckCoded(const Published& line, const std::vector<float>& before) {
  if (!ledger_.quantised() || line.to != line.from + 1) return;
  std::vector<uint64_t> batches;
  for (uint64_t batch = 0; batch < ledger_.batches(); ++batch) {
    if (!Same(ledger_.CountOf(*line.weights, batch), ledger_.CountOf(before, batch)))
      batches.push_back(batch);
  }
  if (batches.empty() || (!sync() && batches.size() > 1)) return;
  // Of each batch the pushes that may have made it.
  std::vector<std::vector<const Got*>> may;
  size_t combinations = 1;
  for (const uint64_t batch : batches) {
    const auto found = gets_.find({line.shard, line.incarnation, batch});
    if (found == gets_.end()) return;
    std::vector<const Got*>& of = may.emplace_back();
    for (const Got& got : found->second) {
      if (sync() ? got.push->clock != line.from : got.push->incarnation != Who(*line.weights, batch))
        continue;
      if (got.values.empty()) return;
      of.push_back(&got);
    }
    combinations *= of.size();
  }
  if (combinations == 0 || combinations > kMostCombinations) return;
  for (size_t number = 0; number < combinations; ++number) {
    size_t rest = number;
    std::vector<std::vector<float>> scaled;
    std::vector<Ledger::Part> parts;
    for (size_t i = 0; i < batches.size(); ++i) {
      const Got& got = *may[i][rest % may[i].size()];
      rest /= may[i].size();
      parts.push_back({ledger_.examples(batches[i]), &got.values});
      if (!scales()) continue;
      // One push alone.
      scaled.push_back(got.values);
      const float factor = FactorOf(line.from - got.push->base[line.shard].count());
      for (float& value : scaled[0]) value *= factor;
      parts[0].gradient = &scaled[0];
    }
    const std::vector<float> after = Ledger::Step(before, parts);
    if (std::memcmp(after.data(), line.weights->data(), after.size() * sizeof(float)) == 0) return;
  }
  Violate(Invariant::kCoded, "ps:", line.shard, " made version ", line.to, " of batch ", batches[0],
          batches.size() > 1 ? " and others" : "", " in bits that no worker's pushes have");
}

}  // namespace weir

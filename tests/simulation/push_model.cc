#include "tests/simulation/push_model.h"

#include <algorithm>

namespace weir {

PushModel::Found PushModel::Begin(const Key& key) {
  Found found;
  Open& open = open_[{key.clock, key.part}];
  open = {key.incarnation, {}, {}, true};
  if (!ledger_->options().feedback) return {};
  const auto residual = residuals_.find(key.part);
  if (residual == residuals_.end()) return found;
  std::vector<float> values = std::move(residual->second.values);
  const bool known = residual->second.known;
  const bool rolled_back = residual->second.incarnation != key.incarnation;
  const bool anothers = ledger_->options().sync && residual->second.clock + 1 < key.clock;
  residuals_.erase(residual);
  if (rolled_back) {
    found.rolled_back = std::move(values);
  } else if (anothers) {
    found.anothers = std::move(values);
  } else {
    open.carried = found.carried = std::move(values);
    open.known = found.known = known;
  }
  return found;
}

std::vector<float> PushModel::Send(const Key& key, std::vector<float> gradient) {
  Open& open = open_[{key.clock, key.part}];
  for (size_t i = 0; i < open.carried.size(); ++i) gradient[i] += open.carried[i];
  std::vector<float> sent = ledger_->Coded(gradient);
  if (!ledger_->options().feedback) return sent;
  open.left.resize(sent.size());
  for (size_t i = 0; i < sent.size(); ++i) open.left[i] = gradient[i] - sent[i];
  return sent;
}

std::vector<float> PushModel::OnAnswer(uint64_t clock, uint32_t part, bool took_effect, bool whole) {
  const auto found = open_.find({clock, part});
  if (found == open_.end()) return {};
  const Open open = std::move(found->second);
  open_.erase(found);
  const std::vector<float>& values = took_effect ? open.left : open.carried;
  if (!values.empty()) {
    Put(part, {clock, open.incarnation, values, open.known && (whole || !took_effect)});
  }
  return took_effect ? std::vector<float>() : open.carried;
}

void PushModel::Put(uint32_t part, const Residual& residual) {
  const auto [there, added] = residuals_.try_emplace(part, residual);
  Residual& sum = there->second;
  if (added || sum.incarnation > residual.incarnation) return;
  if (sum.incarnation < residual.incarnation) {
    sum = residual;
    return;
  }
  for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += residual.values[i];
  sum.clock = std::max(sum.clock, residual.clock);
  sum.known = sum.known && residual.known;
}

}  // namespace weir

#include "ps_server/coordinator/farewell.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weir {
namespace {

constexpr absl::Duration kTellFailure = absl::Seconds(2);

}  // namespace

void Farewell::OnMember(uint32_t rank) {
  gave_up_.erase(rank);
  lost_.erase(rank);
}

void Farewell::OnLost(uint32_t rank, std::string task, absl::Time now, bool disconnected) {
  lost_[rank] = {std::move(task), now, disconnected};
}

void Farewell::OnTold(uint32_t rank) {
  told_.insert(rank);
  lost_.erase(rank);
}

std::vector<std::string> Farewell::MayCome(absl::Time now, absl::Time saved_at,
                                           const std::function<std::string(uint32_t)>& name) const {
  std::vector<std::string> names;
  for (const auto& [rank, lost] : lost_) {
    const absl::Time until =
        lost.disconnected ? lost.since + kComesBack : std::max(lost.since, saved_at) + lease_;
    if (now < until) names.push_back(absl::StrCat(lost.task, " (lost before)"));
  }
  if (now >= expected_until_) return names;
  for (uint32_t rank = 0; rank < workers_; ++rank) {
    if (told_.count(rank) + gave_up_.count(rank) + lost_.count(rank) > 0) continue;
    names.push_back(absl::StrCat(name(rank), " (not there yet)"));
  }
  return names;
}

void Farewell::OnFailure(std::set<uint64_t> incarnations, absl::Time now) {
  untold_ = std::move(incarnations);
  tell_until_ = now + kTellFailure;
}

}  // namespace weir

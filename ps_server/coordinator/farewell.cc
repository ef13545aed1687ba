#include "ps_server/coordinator/farewell.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weir {

void Farewell::OnMember(uint32_t rank) {
  gave_up_.erase(rank);
  lost_.erase(rank);
}

void Farewell::OnLost(uint32_t rank, std::string task, absl::Time now, bool disconnected,
                      std::set<uint64_t> others) {
  lost_[rank] = {std::move(task), now, disconnected, /*member=*/true, std::move(others)};
}

void Farewell::OnJoinBroken(uint32_t rank, std::string task, absl::Time now) {
  const auto [lost, first] =
      lost_.try_emplace(rank, Lost{std::move(task), now, /*disconnected=*/true, false, {}});
  // A silent process of this rank is waited for anyway, and for longer.
  if (!first && lost->second.disconnected) lost->second.since = now;
}

void Farewell::OnTold(uint32_t rank, uint64_t instance) {
  told_.insert(rank);
  const auto lost = lost_.find(rank);
  if (lost != lost_.end() && lost->second.others.count(instance) == 0) lost_.erase(lost);
}

std::vector<std::string> Farewell::MayCome(absl::Time now, absl::Time saved_at,
                                           const std::function<std::string(uint32_t)>& name) const {
  std::vector<std::string> names;
  for (uint32_t rank = 0; rank < workers_; ++rank) {
    const auto lost = lost_.find(rank);
    if (lost != lost_.end() && now < ComesUntil(lost->second, saved_at)) {
      names.push_back(absl::StrCat(lost->second.task, " (lost before)"));
      continue;
    }
    const bool was_there =
        told_.count(rank) + gave_up_.count(rank) > 0 || (lost != lost_.end() && lost->second.member);
    if (now < expected_until_ && !was_there) names.push_back(absl::StrCat(name(rank), " (not there yet)"));
  }
  return names;
}

absl::Time Farewell::ComesUntil(const Lost& lost, absl::Time saved_at) const {
  return lost.disconnected ? lost.since + kComesBack : std::max(lost.since, saved_at) + lease_;
}

void Farewell::OnFailure(std::set<uint64_t> incarnations, absl::Time now) {
  untold_ = std::move(incarnations);
  tell_until_ = now + kTellFailure;
}

void Farewell::OnServersTold(std::set<uint32_t> servers, absl::Time until) {
  untold_servers_ = std::move(servers);
  servers_until_ = until;
}

void Farewell::OnServerBroke(absl::Time now) {
  servers_until_ = std::min(servers_until_, now + kTellFailure);
}

}  // namespace weir

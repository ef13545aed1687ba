#include "ps_server/coordinator/members/part_shares.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>

namespace weir {
namespace {

// The shares with which the last worker is done first: each further part goes to the worker that would be
// done with it first. At least as many parts as workers.
std::vector<uint32_t> Fastest(uint32_t parts, const std::vector<double>& seconds_of_part) {
  std::vector<uint32_t> shares(seconds_of_part.size(), 1);
  using Next = std::pair<double, size_t>;  // when the worker would be done with one more part
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  for (size_t i = 0; i < shares.size(); ++i) next.emplace(2 * seconds_of_part[i], i);
  for (uint32_t left = parts - static_cast<uint32_t>(shares.size()); left > 0; --left) {
    const size_t i = next.top().second;
    next.pop();
    ++shares[i];
    next.emplace((shares[i] + 1) * seconds_of_part[i], i);
  }
  return shares;
}

double SecondsOfStep(const std::vector<uint32_t>& shares, const std::vector<double>& seconds_of_part) {
  double seconds = 0;
  for (size_t i = 0; i < shares.size(); ++i) seconds = std::max(seconds, shares[i] * seconds_of_part[i]);
  return seconds;
}

}  // namespace

void PartShares::OnReport(uint64_t incarnation, double compute_seconds, uint64_t parts) {
  if (!std::isfinite(compute_seconds)) return;
  const auto [found, is_new] = speeds_.emplace(incarnation, Speed{compute_seconds, parts, std::nullopt});
  Speed& speed = found->second;
  if (is_new || parts < speed.parts + kPartsOfSample) return;
  const double sample =
      std::max(0.0, compute_seconds - speed.seconds) / static_cast<double>(parts - speed.parts);
  speed = {compute_seconds, parts, speed.of_part.has_value() ? (*speed.of_part + sample) / 2 : sample};
}

std::optional<std::vector<uint32_t>> PartShares::Change(absl::Time now, uint32_t parts,
                                                        const std::vector<Worker>& workers) {
  const size_t n = workers.size();
  uint64_t shared = 0;
  bool any = false, all = true;
  std::vector<double> seconds;
  for (const Worker& worker : workers) {
    shared += worker.share;
    any |= worker.share > 0;
    all &= worker.share > 0;
    const auto speed = speeds_.find(worker.incarnation);
    if (speed != speeds_.end() && speed->second.of_part.has_value())
      seconds.push_back(*speed->second.of_part);
  }
  const bool fits = all && shared == parts;
  if (n < 2 || parts <= n || seconds.size() < n) {
    // A worker without a share would compute nothing, and its speed would never be known.
    if (!any || fits) return std::nullopt;
    changed_.reset();
    return std::vector<uint32_t>(n, 0);
  }
  if (fits && changed_.has_value() && now - *changed_ < kInterval) return std::nullopt;
  std::vector<uint32_t> current(n);
  for (size_t i = 0; i < n; ++i) {
    current[i] = fits ? workers[i].share : static_cast<uint32_t>(parts / n + (i < parts % n ? 1 : 0));
  }
  std::vector<uint32_t> best = Fastest(parts, seconds);
  if (SecondsOfStep(best, seconds) <= (1 - kLeastGain) * SecondsOfStep(current, seconds)) {
    changed_ = now;
    return best;
  }
  if (!any || fits) return std::nullopt;
  return std::vector<uint32_t>(n, 0);
}

}  // namespace weir

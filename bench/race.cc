#include "bench/race.h"

#include <algorithm>
#include <memory>

#include "common/base/status_macros.h"

namespace weir::bench {
namespace {

double GigabytesPerStep(const Contestant& contestant) {
  return 2e-9 * sizeof(float) * static_cast<double>(contestant.elements);
}

// The most steps of one turn.
constexpr int kMostSteps = 20000;

absl::StatusOr<Turn> TakeTurn(Contest& contest, int steps) {
  const Contestant& contestant = contest.contestant();
  WEIR_ASSIGN_OR_RETURN(Contest::Result result, contest.Run(1 + steps));
  Turn turn;
  for (size_t i = 0; i < result.seconds.size(); ++i) {
    if (i % (1 + steps) != 0) turn.seconds.push_back(result.seconds[i]);
  }
  turn.step_seconds = contestant.clients == 1 ? Median(turn.seconds) : result.wall_seconds / (1 + steps);
  const double gigabytes = GigabytesPerStep(contestant) * contestant.clients * (1 + steps);
  turn.client_cpu_per_gb = result.client_cpu_seconds / gigabytes;
  turn.server_cpu_per_gb = result.server_cpu_seconds / gigabytes;
  turn.faults_per_step = static_cast<double>(result.faults) / (1 + steps);
  turn.server_peak_bytes = result.server_peak_bytes;
  return turn;
}

}  // namespace

double Quantile(std::vector<double> values, double share) {
  const size_t at =
      std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

double StepSeconds(const Turn& turn) { return turn.step_seconds; }

double Track::MedianOf(const std::function<double(const Turn&)>& value) const {
  std::vector<double> values;
  for (const Turn& turn : turns) values.push_back(value(turn));
  return Median(std::move(values));
}

double Track::step_seconds() const { return MedianOf(StepSeconds); }

double Track::gb_per_second() const {
  return GigabytesPerStep(contestant) * contestant.clients / step_seconds();
}

double Track::StepQuantile(double share) const {
  std::vector<double> all;
  for (const Turn& turn : turns) all.insert(all.end(), turn.seconds.begin(), turn.seconds.end());
  return Quantile(std::move(all), share);
}

std::vector<double> Ratios(const Track& above, const Track& below,
                           const std::function<double(const Turn&)>& value) {
  std::vector<double> ratios;
  for (size_t i = 0; i < above.turns.size(); ++i)
    ratios.push_back(value(above.turns[i]) / value(below.turns[i]));
  return ratios;
}

std::vector<Track> Race(const std::vector<Contestant>& contestants, const RaceOptions& options,
                        ServerHost* host) {
  struct Runner {
    std::unique_ptr<Contest> contest;
    int steps = 0;
  };
  std::vector<Runner> runners(contestants.size());
  std::vector<Track> tracks;
  for (size_t i = 0; i < contestants.size(); ++i) {
    Track& track = tracks.emplace_back();
    track.contestant = contestants[i];
    track.status = [&]() -> absl::Status {
      WEIR_ASSIGN_OR_RETURN(runners[i].contest, Contest::Start(contestants[i], host));
      // Warms up twice, because the first warm-up shows how long the second should be.
      int steps = 2;
      for (int warm_up = 0; warm_up < 2; ++warm_up) {
        WEIR_ASSIGN_OR_RETURN(const Turn turn, TakeTurn(*runners[i].contest, steps));
        steps = std::clamp(static_cast<int>(options.turn_seconds / turn.step_seconds), options.least_steps,
                           kMostSteps);
      }
      runners[i].steps = steps;
      return absl::OkStatus();
    }();
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < tracks.size(); ++i) {
      Track& track = tracks[i];
      if (!track.status.ok()) continue;
      absl::StatusOr<Turn> turn = TakeTurn(*runners[i].contest, runners[i].steps);
      if (turn.ok()) {
        track.turns.push_back(*std::move(turn));
      } else {
        track.status = turn.status();
        track.turns.clear();
      }
    }
  }
  return tracks;
}

}  // namespace weir::bench

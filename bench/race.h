#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/contestant.h"
#include "bench/host.h"

namespace weir::bench {

// Returns the median; of an even number of values, the upper of the two.
double Median(std::vector<double> values);
// Returns the value below which this share of the values lies.
double Quantile(std::vector<double> values, double share);

// One contestant's turn: some steps in a row. The first step of each client is left out, since it found the
// caches full of other contestants' data.
struct Turn {
  // With one client the median; with several, the time of the whole turn divided by the steps of each client.
  double step_seconds = 0;
  // Per GB of gradients and weights together, as float32.
  double client_cpu_per_gb = 0, server_cpu_per_gb = 0;
  double faults_per_step = 0;
  int64_t server_peak_bytes = 0;  // of all servers, so far
  std::vector<double> seconds;    // of all steps of all clients

  double cpu_per_gb() const { return client_cpu_per_gb + server_cpu_per_gb; }
};

struct Track {
  Contestant contestant;
  // Not OK: the contestant failed at its start or later; then there are no turns.
  absl::Status status;
  std::vector<Turn> turns;  // by round

  double MedianOf(const std::function<double(const Turn&)>& value) const;
  double step_seconds() const;
  // Gradients and weights together, over all clients.
  double gb_per_second() const;
  // A quantile of single steps, over all turns.
  double StepQuantile(double share) const;
};

// Returns, by round, the ratios of a value of two tracks of one race.
// Requires: both tracks are OK.
std::vector<double> Ratios(const Track& above, const Track& below,
                           const std::function<double(const Turn&)>& value);
double StepSeconds(const Turn& turn);

struct RaceOptions {
  int rounds = 7;
  // A turn takes about this long, and has at least `least_steps` steps.
  double turn_seconds = 0.25;
  int least_steps = 3;
};

// Lets contestants take turns: A B C A B C ... All contestants stay started and warm the whole time. Returns
// their tracks, in the order of `contestants`.
std::vector<Track> Race(const std::vector<Contestant>& contestants, const RaceOptions& options,
                        ServerHost* host);

}  // namespace weir::bench

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/contestant.h"
#include "bench/process.h"

namespace weir::bench {

// Runs contestants' servers, each in a process of its own, on this host or on another host where
// ServeRemotely() runs. Used by one thread, which must be the only thread of its process.
class ServerHost {
 public:
  static absl::StatusOr<std::unique_ptr<ServerHost>> Local();
  // `address`: "host:port" of a ServeRemotely() on another host.
  static absl::StatusOr<std::unique_ptr<ServerHost>> Remote(const std::string& address);

  struct Servers {
    int id = 0;
    std::vector<std::string> addresses;
  };
  absl::StatusOr<Servers> Start(const Contestant& contestant);
  // The usage of all servers together.
  absl::StatusOr<Usage> UsageOf(int id);
  absl::Status Stop(int id);

 private:
  ServerHost(std::unique_ptr<Child> child, std::unique_ptr<Control> remote)
      : child_(std::move(child)), remote_(std::move(remote)) {}
  Control& control() { return child_ != nullptr ? child_->control() : *remote_; }

  // One of the two is set.
  const std::unique_ptr<Child> child_;
  const std::unique_ptr<Control> remote_;
};

// Waits at host:port for a ServerHost::Remote(), serves it until it leaves, and waits for the next one, for
// ever. Port 0: any free port, which is printed.
absl::Status ServeRemotely(const std::string& listen);

// A contestant at work: its servers on a host, its clients in processes of their own on this one.
class Contest {
 public:
  static absl::StatusOr<std::unique_ptr<Contest>> Start(const Contestant& contestant, ServerHost* host);
  ~Contest();

  struct Result {
    std::vector<double> seconds;  // of each step of each client
    double wall_seconds = 0;      // from the first client's start to the last one's end
    double client_cpu_seconds = 0, server_cpu_seconds = 0;
    int64_t faults = 0;             // page faults of clients and servers
    int64_t server_peak_bytes = 0;  // resident, of all servers, since they started
  };
  // All clients do `steps` steps each, at the same time.
  absl::StatusOr<Result> Run(int steps);

  const Contestant& contestant() const { return contestant_; }
  absl::StatusOr<Usage> ServerUsage() { return host_->UsageOf(servers_.id); }

 private:
  Contest(Contestant contestant, ServerHost* host) : contestant_(std::move(contestant)), host_(host) {}
  absl::StatusOr<Usage> ClientUsage() const;

  const Contestant contestant_;
  ServerHost* const host_;
  ServerHost::Servers servers_;
  std::vector<std::unique_ptr<Child>> clients_;
};

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

// Returns, by round, the ratios of the times of a step in two tracks of one race.
// Requires: both tracks are OK.
std::vector<double> StepRatios(const Track& above, const Track& below);

// Lets contestants take turns: A B C A B C ... All contestants stay started and warm the whole time. A turn
// takes about `turn_seconds`, and has a few steps at least. Returns their tracks, in the order of
// `contestants`.
std::vector<Track> Race(const std::vector<Contestant>& contestants, int rounds, double turn_seconds,
                        ServerHost* host);

}  // namespace weir::bench

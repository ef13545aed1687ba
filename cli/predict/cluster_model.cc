#include "cli/predict/cluster_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>

#include "common/base/random.h"

namespace weir {
namespace {

// What is served one after another, in the order of the calls.
struct Queue {
  double free = 0, busy = 0;

  // Returns when the service begins, of what is ready then.
  double Serve(double ready, double service) {
    const double begin = std::max(ready, free);
    free = begin + service;
    busy += service;
    return begin;
  }
};

double Time(double bytes, double bandwidth) { return bandwidth > 0 ? bytes / bandwidth : 0; }

// How long the workers compute.
class ComputeTimes {
 public:
  explicit ComputeTimes(const ClusterModel& model) : m_(model) {
    for (uint32_t w = 0; w < m_.workers; ++w) random_.emplace_back(RandomKey(m_.seed, "cluster_model"), w);
  }

  // For the next push of this worker, its delay included.
  double Next(uint32_t worker) {
    const double factor = worker < m_.factors.size() ? m_.factors[worker] : 1;
    double seconds = m_.batch_seconds * factor * Batches(random_[worker]);
    if (m_.delay > 0 && m_.delayed_worker.value_or(worker) == worker) {
      seconds += m_.delay * Uniform(random_[worker]);
    }
    return seconds;
  }

 private:
  static constexpr uint32_t kDrawn = 64;

  static double Uniform(RandomStream& random) { return (random.Next() + 0.5) * 0x1p-32; }
  static double Normal(RandomStream& random) {
    const uint32_t bits = random.Next();
    return TwoNormals(bits, random.Next())[0];
  }

  // The local steps of one push, in units of a batch's undisturbed time. The sum of many is normal.
  double Batches(RandomStream& random) const {
    const double n = m_.local_steps;
    if (m_.jitter == 0 && m_.slow_share == 0) return n;
    if (m_.local_steps > kDrawn) {
      const double mean = std::exp(m_.jitter * m_.jitter / 2) * (1 + m_.slow_share * (m_.slow_factor - 1));
      const double square =
          std::exp(2 * m_.jitter * m_.jitter) * (1 + m_.slow_share * (m_.slow_factor * m_.slow_factor - 1));
      return std::max(0.0, n * mean + std::sqrt(n * (square - mean * mean)) * Normal(random));
    }
    double sum = 0;
    for (uint32_t i = 0; i < m_.local_steps; ++i) {
      const double slow = Uniform(random) < m_.slow_share ? m_.slow_factor : 1;
      sum += slow * (m_.jitter > 0 ? std::exp(m_.jitter * Normal(random)) : 1);
    }
    return sum;
  }

  const ClusterModel& m_;
  std::vector<RandomStream> random_;
};

class Simulation {
 public:
  explicit Simulation(const ClusterModel& model)
      : m_(model),
        sync_(m_.mode == ClusterModel::Mode::kSync),
        prefetch_(m_.mode == ClusterModel::Mode::kBounded && m_.prefetch && m_.staleness > 0),
        parts_(m_.parts > 0 ? m_.parts : m_.workers),
        needed_(parts_ - m_.backup_workers),
        times_(model),
        workers_(m_.workers) {
    at_clock_[0] = m_.workers;
  }

  ClusterPrediction Run() {
    // A worker without a part has nothing to do in any step.
    for (uint32_t w = 0; w < m_.workers && (!sync_ || w < parts_); ++w) Answer(w, 0);
    const uint64_t per_round = sync_ ? parts_ : m_.workers;
    const uint64_t rounds = std::clamp(kPushes / per_round, kLeastRounds, kMostRounds);
    RunTo(rounds / 10);  // not counted: all workers begin at once, which they never do again
    const Totals start = Now();
    RunTo(rounds);
    return Between(start, Now());
  }

 private:
  enum class Kind { kWeights, kPull, kComputed, kArrives, kServed, kApplied, kCommitted };
  struct Event {
    double time;
    uint64_t order;  // of events at one time, so that a simulation repeats
    Kind kind;
    uint32_t worker;
    uint64_t clock;
    uint64_t version;  // of the weights
    bool pulls;        // the next weights are asked for with this push
    double until;      // when a push is there whole

    bool operator>(const Event& other) const {
      return std::tie(time, order) > std::tie(other.time, other.order);
    }
  };
  struct Worker {
    Queue up, down;
    uint64_t version = 0;  // of the weights that it has
    uint64_t applied = 0;  // bounded, async: its pushes
    uint32_t part = 0;     // sync: under way
    std::optional<double> computing_since, waiting_since;
    // prefetch: weights that are here before they are needed, and whether the worker needs them.
    std::optional<uint64_t> fetched;
    bool needs_weights = true;
  };
  // Sums since the simulation's start.
  struct Totals {
    double time, computing, waiting, cpu, in, out, staleness, pushed_bytes, pulled_bytes;
    uint64_t steps, applied, dropped;
  };

  static constexpr uint64_t kPushes = 100000, kLeastRounds = 40, kMostRounds = 4000;

  void At(double time, Kind kind, uint32_t worker, uint64_t clock, uint64_t version = 0, bool pulls = false,
          double until = 0) {
    events_.push({time, order_++, kind, worker, clock, version, pulls, until});
  }

  void RunTo(uint64_t rounds) {
    while ((sync_ ? step_ : applied_ / m_.workers) < rounds) {
      // Never empty: one of the workers can always go on.
      const Event e = events_.top();
      events_.pop();
      now_ = e.time;
      Handle(e);
    }
  }

  void Handle(const Event& e) {
    switch (e.kind) {
      case Kind::kWeights:
        return OnWeights(e);
      case Kind::kPull:
        return OnPull(e.worker, e.clock);
      case Kind::kComputed:
        return OnComputed(e);
      case Kind::kArrives:
        return OnArrives(e);
      case Kind::kServed:
        cpu_.Serve(now_, ServerTime(m_.push_bytes));
        return At(std::max(e.until, cpu_.free), Kind::kApplied, e.worker, e.clock, e.version, e.pulls);
      case Kind::kApplied:
        return sync_ ? OnStaged(e) : OnApplied(e);
      case Kind::kCommitted:
        return OnCommitted();
    }
  }

  // ---- the way of a push and of weights

  // For one of the two ways of an exchange.
  double ServerTime(double bytes) const {
    return m_.server.seconds / 2 + m_.server.seconds_per_byte * bytes / m_.servers;
  }
  double WorkerTime(double bytes) const { return m_.worker.seconds / 2 + m_.worker.seconds_per_byte * bytes; }

  // The first byte of a push is at the servers, which work on it while the others come.
  void OnArrives(const Event& e) {
    const double begin = in_.Serve(now_, Time(m_.push_bytes / m_.servers, m_.server_bandwidth));
    const double whole = std::max(in_.free, now_ + Time(m_.push_bytes, m_.worker_bandwidth));
    At(begin, Kind::kServed, e.worker, e.clock, e.version, e.pulls, whole);
  }

  // The servers send this worker the weights for a clock.
  void Answer(uint32_t w, uint64_t clock) {
    pulled_bytes_ += m_.pull_bytes;
    const double begin = cpu_.Serve(now_, ServerTime(m_.pull_bytes));
    const double sent = out_.Serve(begin, Time(m_.pull_bytes / m_.servers, m_.server_bandwidth));
    Queue& down = workers_[w].down;
    down.Serve(sent, Time(m_.pull_bytes, m_.worker_bandwidth));
    const double whole = std::max({cpu_.free, out_.free, down.free});
    At(whole + m_.latency + WorkerTime(m_.pull_bytes), Kind::kWeights, w, clock, version_);
  }

  // ---- workers

  void Compute(uint32_t w, uint64_t clock) {
    workers_[w].computing_since = now_;
    At(now_ + times_.Next(w), Kind::kComputed, w, clock, workers_[w].version);
  }

  void Use(uint32_t w, uint64_t clock, uint64_t version) {
    Worker& worker = workers_[w];
    worker.needs_weights = false;
    worker.version = version;
    worker.part = w;
    if (prefetch_) At(now_ + m_.latency, Kind::kPull, w, clock + 1);
    Compute(w, clock);
  }

  void OnWeights(const Event& e) {
    Worker& worker = workers_[e.worker];
    if (worker.needs_weights) return Use(e.worker, e.clock, e.version);
    worker.fetched = e.version;
  }

  void OnComputed(const Event& e) {
    Worker& worker = workers_[e.worker];
    computing_ += now_ - *std::exchange(worker.computing_since, std::nullopt);
    worker.part += m_.workers;
    // A worker whose step was committed without it goes to the open one.
    const bool more = sync_ && e.clock == step_ && worker.part < parts_;
    pushed_bytes_ += m_.push_bytes;
    const double begin =
        worker.up.Serve(now_ + WorkerTime(m_.push_bytes), Time(m_.push_bytes, m_.worker_bandwidth));
    At(begin + m_.latency, Kind::kArrives, e.worker, e.clock, e.version, !more && !prefetch_);
    if (more) return Compute(e.worker, e.clock);
    worker.needs_weights = true;
    if (worker.waiting_since.has_value()) worker.waiting_since = now_;
    if (worker.fetched.has_value()) {
      Use(e.worker, e.clock + 1, *std::exchange(worker.fetched, std::nullopt));
    }
  }

  void Wait(uint32_t w) { workers_[w].waiting_since = now_; }
  // A prefetched pull that waits while its worker computes holds nobody up.
  void EndWait(uint32_t w) {
    const double since = *std::exchange(workers_[w].waiting_since, std::nullopt);
    if (workers_[w].needs_weights) waiting_ += now_ - since;
  }

  // ---- bounded and async

  uint64_t SlowestClock() const { return at_clock_.begin()->first; }

  void OnApplied(const Event& e) {
    staleness_ += static_cast<double>(version_ - e.version);
    ++version_;
    ++applied_;
    uint64_t& clock = workers_[e.worker].applied;
    if (--at_clock_[clock] == 0) at_clock_.erase(clock);
    ++at_clock_[++clock];
    if (e.pulls) OnPull(e.worker, e.clock + 1);
    while (!parked_.empty() && parked_.begin()->first <= SlowestClock()) {
      const auto [worker, at] = parked_.begin()->second;
      parked_.erase(parked_.begin());
      EndWait(worker);
      Answer(worker, at);
    }
  }

  void OnPull(uint32_t w, uint64_t clock) {
    if (m_.mode != ClusterModel::Mode::kBounded || SlowestClock() + m_.staleness >= clock) {
      return Answer(w, clock);
    }
    parked_.emplace(clock - m_.staleness, std::pair(w, clock));
    Wait(w);
  }

  // ---- sync

  void OnStaged(const Event& e) {
    if (e.clock < step_ || staged_ == needed_) {
      ++dropped_;
    } else if (++staged_ == needed_) {
      // Shard to ps:0, and back.
      At(now_ + 2 * m_.latency * m_.commit_rounds, Kind::kCommitted, 0, step_);
    }
    if (!e.pulls) return;
    if (e.clock < step_) return Answer(e.worker, step_);
    waiters_.push_back(e.worker);
    Wait(e.worker);
  }

  void OnCommitted() {
    ++step_;
    ++version_;
    applied_ += needed_;
    staged_ = 0;
    for (const uint32_t w : std::exchange(waiters_, {})) {
      EndWait(w);
      Answer(w, step_);
    }
  }

  // ---- results

  Totals Now() const {
    Totals t = {now_,       computing_,    waiting_,      cpu_.busy, in_.busy, out_.busy,
                staleness_, pushed_bytes_, pulled_bytes_, step_,     applied_, dropped_};
    for (const Worker& worker : workers_) {
      if (worker.computing_since.has_value()) t.computing += now_ - *worker.computing_since;
      if (worker.waiting_since.has_value() && worker.needs_weights) t.waiting += now_ - *worker.waiting_since;
    }
    return t;
  }

  ClusterPrediction Between(const Totals& a, const Totals& b) const {
    ClusterPrediction p;
    const double seconds = p.simulated_seconds = b.time - a.time;
    const double worker_seconds = seconds * m_.workers;
    p.pushes = b.applied - a.applied;
    const auto pushes = static_cast<double>(p.pushes), dropped = static_cast<double>(b.dropped - a.dropped);
    p.pushes_per_second = pushes / seconds;
    p.batches_per_second = p.pushes_per_second * m_.local_steps;
    p.steps_per_second =
        sync_ ? static_cast<double>(b.steps - a.steps) / seconds : p.pushes_per_second / m_.workers;
    p.computing = (b.computing - a.computing) / worker_seconds;
    const double idle = sync_ && m_.workers > parts_ ? m_.workers - parts_ : 0;  // without a part, they wait
    p.waiting = (b.waiting - a.waiting) / worker_seconds + idle / m_.workers;
    p.exchanging = std::max(0.0, 1 - p.computing - p.waiting);
    p.server_busy = std::min(1.0, std::max({b.cpu - a.cpu, b.in - a.in, b.out - a.out}) / seconds);
    p.mean_staleness = sync_ ? 0 : (b.staleness - a.staleness) / pushes;
    p.dropped = dropped / (pushes + dropped);
    p.pushed_bytes_per_second = (b.pushed_bytes - a.pushed_bytes) / seconds;
    p.pulled_bytes_per_second = (b.pulled_bytes - a.pulled_bytes) / seconds;
    return p;
  }

  const ClusterModel& m_;
  const bool sync_, prefetch_;
  const uint32_t parts_, needed_;
  ComputeTimes times_;
  std::vector<Worker> workers_;
  Queue cpu_, in_, out_;  // of one server: all do the same
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t order_ = 0;
  double now_ = 0;
  uint64_t version_ = 0;
  double computing_ = 0, waiting_ = 0, staleness_ = 0, pushed_bytes_ = 0, pulled_bytes_ = 0;
  uint64_t applied_ = 0, dropped_ = 0;
  // bounded, async: how many workers are at each clock, and who waits until the slowest is at a clock.
  std::map<uint64_t, uint32_t> at_clock_;
  std::multimap<uint64_t, std::pair<uint32_t, uint64_t>> parked_;
  // sync: the open step, its parts that are there, and who waits for its commit.
  uint64_t step_ = 0;
  uint32_t staged_ = 0;
  std::vector<uint32_t> waiters_;
};

}  // namespace

ClusterPrediction PredictCluster(const ClusterModel& model) { return Simulation(model).Run(); }

}  // namespace weir

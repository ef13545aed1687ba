// The model of a cluster: what follows from the modes' meanings, whatever the figures are.
#include "cli/predict/cluster_model.h"

#include <utility>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

using Mode = ClusterModel::Mode;

// Four workers that compute for 50 ms, with exchanges that cost next to nothing.
ClusterModel Four(Mode mode) {
  ClusterModel m;
  m.mode = mode;
  m.staleness = 3;
  m.workers = 4;
  m.batch_seconds = 0.05;
  m.push_bytes = 40000;
  m.pull_bytes = 20000;
  m.server = {1e-6, 1e-12};
  return m;
}

double Steps(const ClusterModel& m) { return PredictCluster(m).steps_per_second; }
double Pushes(const ClusterModel& m) { return PredictCluster(m).pushes_per_second; }

TEST_CASE("sync goes at the slowest worker's pace, async at the sum of the workers' paces") {
  for (const double slow : {1.0, 4.0}) {
    ClusterModel m = Four(Mode::kSync);
    m.factors = {slow};
    CHECK(Steps(m) == Approx(20 / slow).epsilon(0.01));
    m.mode = Mode::kAsync;
    CHECK(Pushes(m) == Approx(3 * 20 + 20 / slow).epsilon(0.01));
    // One worker that is always slower holds all others up, whatever the bound is.
    m.mode = Mode::kBounded;
    CHECK(Steps(m) == Approx(20 / slow).epsilon(0.01));
  }
}

TEST_CASE("backup workers hide the slowest, and drop what it makes") {
  ClusterModel m = Four(Mode::kSync);
  m.factors = {4};
  m.backup_workers = 1;
  const ClusterPrediction p = PredictCluster(m);
  CHECK(p.steps_per_second == Approx(20).epsilon(0.01));
  CHECK(p.dropped == Approx(1.0 / 13).epsilon(0.05));  // one push of the slow worker for 12 others
}

TEST_CASE("if batches are slow at random, bounded lies between sync and async, and rises with the bound") {
  ClusterModel m = Four(Mode::kSync);
  m.slow_share = 0.1;
  m.slow_factor = 4;
  const double sync = Pushes(m);
  // The longest of four batches is slow with a probability of 1 - 0.9^4.
  CHECK(sync == Approx(4 * 20 / (1 + 3 * (1 - 0.9 * 0.9 * 0.9 * 0.9))).epsilon(0.02));
  m.mode = Mode::kAsync;
  const double async = Pushes(m);
  CHECK(async == Approx(4 * 20 / 1.3).epsilon(0.02));
  m.mode = Mode::kBounded;
  double last = sync;
  for (const uint32_t bound : {0, 1, 3, 10, 100}) {
    m.staleness = bound;
    const double pushes = Pushes(m);
    CHECK(pushes >= 0.99 * last);
    CHECK(pushes <= 1.01 * async);
    last = pushes;
  }
  CHECK(last > 1.2 * sync);
}

TEST_CASE("every byte that is counted belongs to a push or a pull, and every worker's time to one share") {
  for (const Mode mode : {Mode::kSync, Mode::kBounded, Mode::kAsync}) {
    for (const bool prefetch : {false, true}) {
      ClusterModel m = Four(mode);
      m.prefetch = prefetch;
      m.jitter = 0.3;
      const ClusterPrediction p = PredictCluster(m);
      CHECK(p.pushed_bytes_per_second == Approx(m.push_bytes * p.pushes_per_second).epsilon(0.01));
      CHECK(p.pulled_bytes_per_second == Approx(m.pull_bytes * p.pushes_per_second).epsilon(0.01));
      CHECK(p.computing + p.waiting + p.exchanging == Approx(1).epsilon(1e-6));
      CHECK(p.pushes == Approx(p.pushes_per_second * p.simulated_seconds));
      CHECK(p.dropped == 0);
    }
  }
}

TEST_CASE("sync: a worker without a part waits for the others") {
  ClusterModel m = Four(Mode::kSync);
  m.parts = 4;
  const ClusterPrediction four = PredictCluster(m);
  m.workers = 16;
  const ClusterPrediction sixteen = PredictCluster(m);
  CHECK(sixteen.waiting == Approx((12 + 4 * four.waiting) / 16).epsilon(0.01));
  CHECK(sixteen.exchanging == Approx(four.exchanging / 4).epsilon(0.01));
}

TEST_CASE("a link carries no more than its bandwidth, and a server works for no more than its time") {
  ClusterModel m = Four(Mode::kAsync);
  m.workers = 64;
  m.push_bytes = m.pull_bytes = 1e8;
  m.server_bandwidth = 1e9;
  ClusterPrediction p = PredictCluster(m);
  CHECK(p.pushed_bytes_per_second == Approx(1e9).epsilon(0.01));
  CHECK(p.server_busy == Approx(1).epsilon(0.01));
  m.servers = 8;  // each has an eighth of the model
  CHECK(PredictCluster(m).pushed_bytes_per_second == Approx(8e9).epsilon(0.01));
  m.server_bandwidth = 0;
  m.worker_bandwidth = 1e9;
  m.batch_seconds = 0;
  p = PredictCluster(m);
  CHECK(p.pushed_bytes_per_second + p.pulled_bytes_per_second == Approx(64e9).epsilon(0.01));
  m = Four(Mode::kAsync);
  m.workers = 64;
  m.server = {0.01, 0};
  CHECK(Pushes(m) == Approx(100).epsilon(0.01));
}

TEST_CASE("latency and rounds before the commit lengthen a step by so much") {
  ClusterModel m = Four(Mode::kSync);
  m.latency = 0.01;
  CHECK(Steps(m) == Approx(1 / 0.07).epsilon(0.01));
  m.commit_rounds = 2;
  CHECK(Steps(m) == Approx(1 / 0.11).epsilon(0.01));
  m.local_steps = 10;  // of which one exchange follows
  CHECK(PredictCluster(m).batches_per_second == Approx(40 / 0.56).epsilon(0.01));
}

TEST_CASE("prefetch hides the exchange behind computing") {
  ClusterModel m = Four(Mode::kBounded);
  m.latency = 0.02;
  CHECK(Steps(m) == Approx(1 / 0.09).epsilon(0.01));
  m.prefetch = true;
  CHECK(Steps(m) == Approx(20).epsilon(0.01));
}

TEST_CASE("nothing that costs more makes a cluster faster") {
  for (const Mode mode : {Mode::kSync, Mode::kBounded, Mode::kAsync}) {
    ClusterModel m = Four(mode);
    m.server_bandwidth = m.worker_bandwidth = 1e7;
    const double before = Pushes(m);
    const auto slower = [&](auto change) {
      ClusterModel other = m;
      change(other);
      CHECK(Pushes(other) <= 1.001 * before);
    };
    slower([](ClusterModel& o) { o.batch_seconds *= 1.5; });
    slower([](ClusterModel& o) { o.push_bytes *= 2; });
    slower([](ClusterModel& o) { o.pull_bytes *= 2; });
    slower([](ClusterModel& o) { o.latency = 0.01; });
    slower([](ClusterModel& o) { o.server_bandwidth /= 2; });
    slower([](ClusterModel& o) { o.worker_bandwidth /= 2; });
    slower([](ClusterModel& o) { o.server.seconds = 0.02; });
    slower([](ClusterModel& o) { o.worker.seconds = 0.02; });
    slower([](ClusterModel& o) { o.factors = {1, 3}; });
    slower([](ClusterModel& o) { o.delay = 0.05; });
  }
}

TEST_CASE("equal models have equal predictions, other seeds other ones") {
  ClusterModel m = Four(Mode::kBounded);
  m.jitter = 0.5;
  m.delay = 0.01;
  const double first = Pushes(m);
  CHECK(Pushes(m) == first);
  m.seed = 2;
  CHECK(Pushes(m) != first);
  CHECK(Pushes(m) == Approx(first).epsilon(0.02));
}

TEST_CASE("the sum of many local steps has the mean and the spread of single ones") {
  ClusterModel m = Four(Mode::kSync);
  m.slow_share = 0.1;
  m.slow_factor = 4;
  m.jitter = 0.2;
  m.local_steps = 64;  // drawn one by one
  const double drawn = PredictCluster(m).batches_per_second;
  m.local_steps = 65;  // drawn at once
  CHECK(PredictCluster(m).batches_per_second == Approx(drawn).epsilon(0.02));
}

}  // namespace
}  // namespace weir

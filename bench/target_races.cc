// The targets that compare one contestant's speed with another's.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/cipher.h"
#include "bench/race.h"
#include "bench/sweep.h"
#include "bench/targets.h"
#include "bench/weir_contestant.h"

namespace weir::bench {
namespace {

using nlohmann::json;

// A race's tracks by name, from which targets are made.
class Results {
 public:
  explicit Results(std::vector<Track> tracks) {
    for (Track& track : tracks) {
      const std::string name = track.contestant.name;
      tracks_.emplace(name, std::move(track));
    }
  }
  const Track& operator[](const std::string& name) const { return tracks_.at(name); }
  bool Has(const std::string& name) const { return tracks_.count(name) > 0; }

  // The error of the first of `names` that did not run.
  absl::Status StatusOf(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      const absl::Status& status = (*this)[name].status;
      if (!status.ok()) return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
    }
    return absl::OkStatus();
  }

  json ToJson() const {
    json all = json::array();
    for (const auto& [name, track] : tracks_) {
      if (!track.status.ok()) {
        all.push_back({{"contestant", track.contestant}, {"error", std::string(track.status.message())}});
        continue;
      }
      std::vector<double> steps;
      for (const Turn& turn : track.turns) steps.push_back(turn.step_seconds);
      all.push_back(
          {{"contestant", track.contestant},
           {"step_seconds", track.step_seconds()},
           {"step_seconds_by_round", steps},
           {"gb_per_second", track.gb_per_second()},
           {"p50_seconds", track.StepQuantile(0.5)},
           {"p99_seconds", track.StepQuantile(0.99)},
           {"client_cpu_seconds_per_gb", track.MedianOf([](const Turn& t) { return t.client_cpu_per_gb; })},
           {"server_cpu_seconds_per_gb", track.MedianOf([](const Turn& t) { return t.server_cpu_per_gb; })},
           {"faults_per_step", track.MedianOf([](const Turn& t) { return t.faults_per_step; })}});
    }
    return all;
  }

 private:
  std::map<std::string, Track> tracks_;
};

// Adds a target with the samples that `samples` makes, or says why it cannot be measured.
template <typename Samples>
void Add(Report* report, const char* row, const std::string& work, bool at_least, double bound,
         const char* unit, const absl::Status& status, const Samples& samples) {
  report->targets.push_back(status.ok() ? MakeTarget(row, work, at_least, bound, unit, samples())
                                        : FailedTarget(row, work, at_least, bound, unit, status));
}

const char kTcp[] = "weir tcp", kShm[] = "weir shared memory", kShmCopied[] = "weir shared memory copied",
           kBf16[] = "weir tcp bf16", kUnix[] = "weir unix", kTls[] = "weir tcp with TLS";
const char kRaw[] = "raw tcp", kRing[] = "ring", kProtobuf[] = "protobuf";

Contestant Base(const char* name, const char* kind, int64_t elements) {
  Contestant contestant;
  contestant.name = name;
  contestant.kind = kind;
  contestant.elements = elements;
  return contestant;
}

Contestant WeirOf(const char* name, const char* config, int64_t elements) {
  Contestant weir = Weir(name, config);
  weir.elements = elements;
  return weir;
}

// The ring with the slots that suit this machine.
Contestant BestRing(int64_t elements, ServerHost* host) {
  std::vector<Contestant> rings;
  for (int64_t slot_kib : {64, 128, 256, 512, 1024}) {
    Contestant& ring = rings.emplace_back(Base(kRing, "ring", elements));
    ring.window_bytes = slot_kib << 10;
    ring.windows_in_flight = 8;
  }
  const std::vector<Track> tracks = Race(rings, {5, 0.1, 3}, host);
  return std::min_element(tracks.begin(), tracks.end(),
                          [](const Track& a, const Track& b) {
                            return a.status.ok() && (!b.status.ok() || a.step_seconds() < b.step_seconds());
                          })
      ->contestant;
}

// Sweeps for the best setting, and returns `raw` with it.
absl::StatusOr<Contestant> BestRaw(const Contestant& raw, const TargetOptions& options, ServerHost* host,
                                   const char* subject, Report* report) {
  ShowProgress(absl::StrCat("the raw socket loop's settings (", subject, ")"));
  const absl::StatusOr<SweepResult> sweep = Sweep(raw, options.quick ? 0.01 : 0.1, host);
  if (!sweep.ok()) return sweep.status();
  report->details[subject] = {{"tried", sweep->tried}, {"used", sweep->best}};
  return WithSetting(raw, sweep->best);
}

void CheckBaseline(const Contestant& raw, double used_seconds, ServerHost* host, Report* report) {
  // Since the sweep's best is used, only a machine that has changed meanwhile can make another setting better
  // by far.
  Contestant push = raw;
  push.elements = 16 << 20;
  push.optimizer = "sgd";
  push.pull = false;
  const double memcpy_speed = MemcpySpeed();
  const Track track = Race({push}, {7, 0.2, 3}, host)[0];
  if (!track.status.ok()) {
    report->invalid.push_back(absl::StrCat("the baseline's push of 64 MB failed: ", track.status.message()));
    return;
  }
  const double speed = 4e-9 * static_cast<double>(push.elements) / track.step_seconds();
  report->details["baseline"] = {{"push_64mb_gb_per_second", speed}, {"memcpy_gb_per_second", memcpy_speed}};
  if (speed < memcpy_speed / 5) {
    report->invalid.push_back(absl::StrCat("the baseline pushes 64 MB at ", speed,
                                           " GB/s, under a fifth of memcpy's ", memcpy_speed, " GB/s"));
  }
  double better = used_seconds;
  for (const json& tried : report->details["sweep"]["tried"]) {
    const double refined = tried["refined_step_seconds"];
    if (refined > 0) better = std::min(better, refined);
  }
  if (better < used_seconds * 0.8) {
    report->invalid.push_back(absl::StrCat("the sweep found a setting at ", better * 1e3,
                                           " ms a step, the one used takes ", used_seconds * 1e3, " ms"));
  }
}

void MeasureLargeStep(const TargetOptions& options, ServerHost* host, Report* report) {
  const bool tcp = options.Wants("tcp"), protobuf = options.Wants("protobuf"), shm = options.Wants("shm"),
             bf16 = options.Wants("bf16"), cpu = options.Wants("cpu"), faults = options.Wants("faults");
  if (!tcp && !protobuf && !shm && !bf16 && !cpu && !faults) return;
  const int64_t elements = options.quick ? 2'500'000 : 25'000'000;
  const bool needs_raw = tcp || shm || cpu;

  std::vector<Contestant> contestants;
  absl::StatusOr<Contestant> raw = Base(kRaw, "raw", elements);
  if (needs_raw) {
    raw = BestRaw(*raw, options, host, "sweep", report);
    if (!raw.ok()) {
      report->invalid.push_back(absl::StrCat("the sweep failed: ", raw.status().message()));
      return;
    }
    contestants.push_back(*raw);
  }
  contestants.push_back(WeirOf(kTcp, R"({"wire": {"transport": "tcp"}})", elements));
  if (protobuf) contestants.push_back(Base(kProtobuf, "protobuf", elements));
  if (shm) contestants.push_back(WeirOf(kUnix, R"({"wire": {"transport": "unix"}})", elements));
  if (shm || faults) {
    const char config[] = R"({"wire": {"transport": "shared_memory"}})";
    contestants.push_back(WeirOf(kShm, config, elements));
    contestants.back().in_place = true;
    // For comparison.
    if (shm) contestants.push_back(WeirOf(kShmCopied, config, elements));
  }
  if (shm) contestants.push_back(BestRing(elements, host));
  if (bf16)
    contestants.push_back(WeirOf(kBf16, R"({"wire": {"transport": "tcp", "dtype": "bf16"}})", elements));
  ShowProgress("the large step in all forms");
  RaceOptions race;
  race.rounds = options.pairs;
  const Results results(Race(contestants, race, host));
  report->details["step"] = results.ToJson();
  if (needs_raw && results[kRaw].status.ok()) CheckBaseline(*raw, results[kRaw].step_seconds(), host, report);

  const std::string step = absl::StrCat("step of ", elements / 1'000'000.0, " M floats, momentum, 1x1");
  const auto times = [&](const char* slow, const char* fast) {
    return Ratios(results[slow], results[fast], StepSeconds);
  };
  if (tcp) {
    Add(report, "tcp", step + ": TCP / raw socket loop", true, 0.90, "x", results.StatusOf({kRaw, kTcp}),
        [&] { return times(kRaw, kTcp); });
  }
  if (protobuf) {
    Add(report, "protobuf", step + ": TCP / protobuf in one message", true, 8, "x",
        results.StatusOf({kProtobuf, kTcp}), [&] { return times(kProtobuf, kTcp); });
  }
  if (shm) {
    Add(report, "shm", step + ": shared memory / the best over TCP", true, 2.0, "x",
        results.StatusOf({kRaw, kTcp, kShm}), [&] {
          std::vector<double> of_raw = times(kRaw, kShm), of_weir = times(kTcp, kShm);
          for (size_t i = 0; i < of_raw.size(); ++i) of_raw[i] = std::min(of_raw[i], of_weir[i]);
          return of_raw;
        });
    Add(report, "shm", step + ": shared memory / bare ring", true, 0.80, "x", results.StatusOf({kRing, kShm}),
        [&] { return times(kRing, kShm); });
  }
  if (bf16) {
    Add(report, "bf16", step + ", TCP: bf16 both ways / float32, time", false, 0.60, "x",
        results.StatusOf({kBf16, kTcp}), [&] { return times(kBf16, kTcp); });
  }
  if (cpu) {
    Add(report, "cpu", step + ": CPU seconds per GB, TCP / raw socket loop", false, 1.2, "x",
        results.StatusOf({kRaw, kTcp}),
        [&] { return Ratios(results[kTcp], results[kRaw], [](const Turn& t) { return t.cpu_per_gb(); }); });
  }
  for (const char* name : {kTcp, kShm}) {
    if (!faults) break;
    // A step moves 48,829 pages each way; a handful of faults is gRPC's and the C library's own housekeeping.
    Add(report, "faults", absl::StrCat(step, ": page faults a step after warm-up, ", name), false, 5, "",
        results.StatusOf({name}), [&] {
          std::vector<double> values;
          for (const Turn& turn : results[name].turns) values.push_back(turn.faults_per_step);
          return values;
        });
  }
}

void MeasureTls(const TargetOptions& options, ServerHost* host, Report* report) {
  if (!options.Wants("tls")) return;
  const int64_t elements = options.quick ? 2'500'000 : 25'000'000;
  const std::string work = "step of 25 M floats, momentum, 1x1, TCP with TLS / ";
  if (options.certificates.empty()) {
    report->targets.push_back(FailedTarget("tls", work + "without", true, 0.5, "x",
                                           absl::InvalidArgumentError("needs --certificates=DIR")));
    return;
  }
  const char config[] = R"({"wire": {"transport": "tcp"}})";
  Contestant plain = WeirOf(kTcp, config, elements), tls = WeirOf(kTls, config, elements);
  tls.certificates = options.certificates;
  ShowProgress("the large step with TLS");
  double cipher = CipherSpeed();
  const Results results(Race({plain, tls}, {options.pairs, 0.4, 3}, host));
  cipher = std::max(cipher, CipherSpeed());
  report->details["tls"] = results.ToJson();
  report->details["aes_256_gcm_gb_per_second"] = cipher;
  const absl::Status status = results.StatusOf({kTcp, kTls});
  Add(report, "tls", work + "without", true, 0.5, "x", status,
      [&] { return Ratios(results[kTcp], results[kTls], StepSeconds); });
  // Each side encrypts all that it sends and decrypts all that it gets, both on one thread.
  const double at_least = 2 * 4e-9 * static_cast<double>(elements) / cipher;
  Add(report, "tls", absl::StrCat(work, "without, plus AES-256-GCM of one core (", cipher, " GB/s)"), true,
      0.8, "x", status, [&] {
        std::vector<double> values;
        for (size_t i = 0; i < results[kTls].turns.size(); ++i) {
          values.push_back((results[kTcp].turns[i].step_seconds + at_least) /
                           results[kTls].turns[i].step_seconds);
        }
        return values;
      });
}

void MeasureTwoByTwo(const TargetOptions& options, ServerHost* host, Report* report) {
  if (!options.Wants("2x2")) return;
  const int64_t elements = options.quick ? 2'500'000 : 25'000'000;
  const std::string work = "2 servers x 2 workers, 25 M floats, momentum, total: TCP / raw socket loop";
  Contestant raw = Base(kRaw, "raw", elements),
             weir = WeirOf(kTcp, R"({"wire": {"transport": "tcp"}})", elements);
  raw.servers = raw.clients = weir.servers = weir.clients = 2;
  const absl::StatusOr<Contestant> best = BestRaw(raw, options, host, "sweep_2x2", report);
  if (!best.ok()) {
    report->targets.push_back(FailedTarget("2x2", work, true, 0.85, "x", best.status()));
    return;
  }
  ShowProgress("2 servers x 2 workers");
  const Results results(Race({*best, weir}, {options.pairs, 0.4, 3}, host));
  report->details["2x2"] = results.ToJson();
  Add(report, "2x2", work, true, 0.85, "x", results.StatusOf({kRaw, kTcp}),
      [&] { return Ratios(results[kRaw], results[kTcp], StepSeconds); });
}

void MeasureSmallStep(const TargetOptions& options, ServerHost* host, Report* report) {
  if (!options.Wants("1kb")) return;
  constexpr int64_t kElements = 256;
  ShowProgress("the step of 1 KB");
  const char kEcho[] = "bare gRPC stream echo", kPolling[] = "weir tcp, busy polling",
             kShmPolling[] = "weir shared memory, busy polling";
  std::vector<Contestant> contestants = {
      Base(kEcho, "echo", kElements), WeirOf(kTcp, R"({"wire": {"transport": "tcp"}})", kElements),
      WeirOf(kPolling, R"({"wire": {"transport": "tcp", "busy_poll_us": 200}})", kElements),
      WeirOf(kShm, R"({"wire": {"transport": "shared_memory"}})", kElements),
      WeirOf(kShmPolling, R"({"wire": {"transport": "shared_memory", "busy_poll_us": 200}})", kElements)};
  for (Contestant& contestant : contestants) contestant.optimizer = "sgd";
  const Results results(Race(contestants, {options.pairs, options.quick ? 0.05 : 0.3, 10}, host));
  report->details["1kb"] = results.ToJson();
  Add(report, "1kb", "1 KB push and pull, p50: TCP / bare gRPC stream echo, time", false, 1.3, "x",
      results.StatusOf({kEcho, kTcp}), [&] { return Ratios(results[kTcp], results[kEcho], StepSeconds); });
  Add(report, "1kb", "1 KB push and pull, p50: shared memory / bare gRPC stream echo, time", false, 0.8, "x",
      results.StatusOf({kEcho, kShm}), [&] { return Ratios(results[kShm], results[kEcho], StepSeconds); });
  const auto polling = [&](const char* name, double bound, const char* transport) {
    Add(report, "1kb", absl::StrCat("1 KB push and pull, p50, busy polling, ", transport), false, bound, "us",
        results.StatusOf({name}), [&] {
          std::vector<double> values;
          for (const Turn& turn : results[name].turns) values.push_back(turn.step_seconds * 1e6);
          return values;
        });
  };
  polling(kPolling, 30, "TCP");
  polling(kShmPolling, 15, "shared memory");
}

}  // namespace

void MeasureRaces(const TargetOptions& options, ServerHost* host, Report* report) {
  MeasureLargeStep(options, host, report);
  MeasureTls(options, host, report);
  MeasureTwoByTwo(options, host, report);
  MeasureSmallStep(options, host, report);
}

}  // namespace weir::bench

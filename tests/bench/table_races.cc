#include "tests/bench/table_races.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/contest.h"
#include "bench/contestant.h"
#include "common/base/status_macros.h"
#include "common/config/job_config.h"
#include "common/config/server_memory.h"
#include "tests/bench/row_contestants.h"
#include "tests/bench/row_gather.h"

namespace weir::bench {
namespace {

using nlohmann::json;

// Sets `elements` so that a step moves the bytes of a batch's rows.
Contestant Sized(Contestant contestant) {
  contestant.elements = static_cast<int64_t>(kBatchKeys * contestant.dim / 2);
  return contestant;
}

Contestant Limit(const std::string& kind, uint64_t rows, uint64_t dim) {
  Contestant contestant;
  contestant.name = contestant.kind = kind;
  contestant.servers = kind == "bare rows" ? 0 : 1;
  contestant.table_rows = rows;
  contestant.dim = dim;
  contestant.window_bytes = 256 << 10;
  return Sized(contestant);
}

void RaceGather(const char* what, const Contestant& limit, const Contestant& weir, double bound, int rounds,
                ServerHost* host, TableTargets* targets) {
  const std::string name = absl::StrCat(what, ", rows of ", weir.dim);
  const std::vector<Track> tracks = Race({limit, weir}, rounds, 0.25, host);
  for (const Track& track : tracks) {
    if (!track.status.ok()) {
      return targets->Fail(name,
                           absl::StrCat(track.contestant.name, ": ", std::string(track.status.message())));
    }
  }
  const double gigabytes = 1e-9 * sizeof(float) * static_cast<double>(kBatchKeys * weir.dim);
  for (const Track& track : tracks) {
    const double seconds = track.step_seconds();
    const double cpu = gigabytes * track.MedianOf([](const Turn& turn) { return turn.cpu_per_gb(); });
    std::printf("%-22s rows of %2d  %8.2f ms a batch, %8.2f ms of CPU time  %6.1f million keys/s\n",
                track.contestant.name.c_str(), static_cast<int>(track.contestant.dim), 1e3 * seconds,
                1e3 * cpu, 1e-6 * kBatchKeys / seconds);
    targets->json["gather"].push_back({{"what", track.contestant.name},
                                       {"dim", track.contestant.dim},
                                       {"seconds", seconds},
                                       {"cpu_seconds", cpu}});
  }
  targets->Judge(name, Median(StepRatios(tracks[0], tracks[1])), bound, true);
}

// Gigabytes.
double Gb(uint64_t bytes) { return static_cast<double>(bytes) * 1e-9; }

}  // namespace

void MeasureGather(uint64_t rows, int rounds, ServerHost* host, TableTargets* targets) {
  for (const uint64_t dim : {16, 64}) {
    RaceGather(
        "gather in shared memory / bare gather", Limit("bare rows", rows, dim),
        Sized(WeirRows("weir shared memory", rows, dim, R"({"wire": {"transport": "shared_memory"}})")), 0.5,
        rounds, host, targets);
    RaceGather("gather over TCP / raw socket loop", Limit("raw rows", rows, dim),
               Sized(WeirRows("weir tcp", rows, dim, R"({"wire": {"transport": "tcp"}})")), 0.7, rounds, host,
               targets);
  }
}

void MeasurePlan(uint64_t rows, const std::string& scratch, ServerHost* host, TableTargets* targets) {
  const std::string name = "memory of a server that is saved / its plan";
  constexpr double kWithin = 0.05;
  const json checkpoint = {{"directory", scratch}, {"every_seconds", 5}, {"keep", 1}};
  Contestant contestant = Sized(WeirRows("weir", rows, 16, json{{"checkpoint", checkpoint}}.dump()));
  json config = json::parse(contestant.config);
  config["tables"][0]["max_rows"] = rows;
  contestant.config = config.dump();
  contestant.row_step = "push";
  const auto measured = [&]() -> absl::StatusOr<Usage> {
    WEIR_ASSIGN_OR_RETURN(const auto contest, Contest::Start(contestant, host));
    WEIR_ASSIGN_OR_RETURN(const Usage full, contest->ServerUsage());
    std::printf("plan: %.2f GB with all rows\n", Gb(static_cast<uint64_t>(full.resident_bytes)));
    std::fflush(stdout);
    // Checkpoints that began while the table grew hold more memory. They are over after the first half of the
    // looks.
    constexpr int kLooks = 40, kSteps = 25;
    Usage most;
    for (int look = 0; look < kLooks; ++look) {
      WEIR_RETURN_IF_ERROR(contest->Run(kSteps).status());
      WEIR_ASSIGN_OR_RETURN(const Usage now, contest->ServerUsage());
      most.peak_resident_bytes = now.peak_resident_bytes;
      if (look >= kLooks / 2) most.resident_bytes = std::max(most.resident_bytes, now.resident_bytes);
    }
    return most;
  }();
  const auto planned = [&]() -> absl::StatusOr<uint64_t> {
    WEIR_ASSIGN_OR_RETURN(const ClientOptions options, WeirClientOptions(contestant, 0, {}));
    v1::JobConfig job;
    if (!job.ParseFromString(options.job_config)) return absl::InternalError("no JobConfig");
    return ServerBytes(job, 1, 16, 1);
  }();
  if (!measured.ok() || !planned.ok()) {
    const absl::Status why = measured.ok() ? planned.status() : measured.status();
    return targets->Fail(name, std::string(why.message()));
  }
  const auto most = static_cast<uint64_t>(measured->resident_bytes);
  const auto peak = static_cast<uint64_t>(measured->peak_resident_bytes);
  std::printf("plan: %.2f GB by `weir config show`; measured %.2f GB in training, %.2f GB while it grew\n",
              Gb(*planned), Gb(most), Gb(peak));
  targets->json["plan"] = {{"planned", *planned}, {"resident", most}, {"peak", peak}};
  const double ratio = static_cast<double>(most) / static_cast<double>(*planned);
  targets->Judge(name, ratio, 1 + kWithin, false);
  targets->Judge(name, ratio, 1 - kWithin, true);
}

absl::Status PrintSteps(uint64_t rows, uint64_t dim, const std::string& transport, int steps,
                        ServerHost* host) {
  Contestant contestant =
      Sized(WeirRows("weir", rows, dim, json{{"wire", {{"transport", transport}}}}.dump()));
  contestant.row_step = "both";
  contestant.servers = contestant.clients = 2;
  WEIR_ASSIGN_OR_RETURN(const auto contest, Contest::Start(contestant, host));
  WEIR_RETURN_IF_ERROR(contest->Run(std::max(1, steps / 10)).status());
  WEIR_ASSIGN_OR_RETURN(const Contest::Result result, contest->Run(steps));
  const json line = {{"steps", steps * contestant.clients},
                     {"seconds", result.wall_seconds},
                     {"client_cpu_seconds", result.client_cpu_seconds},
                     {"server_cpu_seconds", result.server_cpu_seconds}};
  std::printf("%s\n", line.dump().c_str());
  return absl::OkStatus();
}

}  // namespace weir::bench

#include "bench/wire_table.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/contestant.h"
#include "common/base/status_macros.h"

namespace weir::bench {
namespace {

using nlohmann::json;

// A raw socket loop's settings, and the time of a step with them.
struct RawSetting {
  int64_t window_bytes = 0;
  int connections = 1;
  std::string congestion_control;  // "": the system's own
  double step_seconds = 0;
};

// Returns "" (the system's congestion control), and those of cubic, reno and bbr that this user may choose.
std::vector<std::string> CongestionControls() {
  std::vector<std::string> usable = {""};
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  char own[16] = "";
  socklen_t size = sizeof own;
  getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, own, &size);
  for (const char* name : {"cubic", "reno", "bbr"}) {
    if (std::strcmp(name, own) == 0) continue;
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, std::strlen(name)) == 0) usable.push_back(name);
  }
  close(fd);
  return usable;
}

Contestant WithSetting(Contestant raw, const RawSetting& setting) {
  raw.window_bytes = setting.window_bytes;
  raw.connections = setting.connections;
  raw.congestion_control = setting.congestion_control;
  return raw;
}

// Finds the setting with which the contestant `raw` is fastest: tries all windows x connections x congestion
// controls, then the best few again. A turn takes about `turn_seconds`.
absl::StatusOr<RawSetting> Sweep(const Contestant& raw, double turn_seconds, ServerHost* host) {
  std::vector<RawSetting> settings;
  // Each connection has a thread at both ends.
  const unsigned most_connections = std::clamp(std::thread::hardware_concurrency() / 2, 2u, 8u);
  for (const std::string& control : CongestionControls()) {
    for (unsigned connections = 1; connections <= most_connections; connections *= 2) {
      for (int64_t window_kib : {128, 256, 512, 1024, 2048, 4096}) {
        settings.push_back({window_kib << 10, static_cast<int>(connections), control});
      }
    }
  }
  const auto faster = [](const RawSetting& a, const RawSetting& b) {
    return a.step_seconds < b.step_seconds;
  };
  for (RawSetting& setting : settings) {
    const Track track = Race({WithSetting(raw, setting)}, 2, turn_seconds, host)[0];
    WEIR_RETURN_IF_ERROR(track.status);
    setting.step_seconds = track.StepQuantile(0.25);
  }
  std::sort(settings.begin(), settings.end(), faster);
  settings.resize(std::min<size_t>(settings.size(), 4));
  std::vector<Contestant> finalists;
  for (const RawSetting& setting : settings) finalists.push_back(WithSetting(raw, setting));
  const std::vector<Track> tracks = Race(finalists, 7, 1.5 * turn_seconds, host);
  for (size_t i = 0; i < tracks.size(); ++i) {
    WEIR_RETURN_IF_ERROR(tracks[i].status);
    settings[i].step_seconds = tracks[i].step_seconds();
  }
  return *std::min_element(settings.begin(), settings.end(), faster);
}

// The contestant that all others are compared with.
const char kLimit[] = "raw tcp";
const char kTls[] = "weir tls";
// In place: each side reads the data where the other has it. Copied: the worker has both tensors in its own
// memory.
const char kShared[] = "weir shared memory", kSharedCopied[] = "weir shared memory copied";

Contestant Make(const std::string& name, const RawSetting& setting) {
  Contestant contestant;
  contestant.name = name;
  if (name == "weir tcp" || name == kTls) return Weir(name, R"({"wire": {"transport": "tcp"}})");
  if (name == "weir tcp bf16") return Weir(name, R"({"wire": {"transport": "tcp", "dtype": "bf16"}})");
  if (name == "weir unix") return Weir(name, R"({"wire": {"transport": "unix"}})");
  if (name == kShared || name == kSharedCopied) {
    contestant = Weir(name, R"({"wire": {"transport": "shared_memory"}})");
    contestant.in_place = name == kShared;
    return contestant;
  }
  contestant.kind = "raw";
  if (name == kLimit) return WithSetting(contestant, setting);
  if (name == "raw unix") contestant.transport = "unix";
  return contestant;
}

// "weir tcp wire.chunk_kib=512": a contestant, and additions to its job's config.
absl::StatusOr<Contestant> MakeWithSettings(const std::string& text, const RawSetting& setting,
                                            const std::string& certificates) {
  std::vector<std::string> words;
  json settings = json::object();
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' ', absl::SkipEmpty()))) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      words.push_back(word);
      continue;
    }
    json value = json::parse(word.substr(equals + 1), nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) value = word.substr(equals + 1);
    settings[json::json_pointer("/" + absl::StrReplaceAll(word.substr(0, equals), {{".", "/"}}))] = value;
  }
  const std::string name = absl::StrJoin(words, " ");
  if (std::find(kWireContestants.begin(), kWireContestants.end(), name) == kWireContestants.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' is no contestant; there are: ", absl::StrJoin(kWireContestants, ", ")));
  }
  if (name == kTls && certificates.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' needs --certificates=DIR"));
  }
  Contestant contestant = Make(name, setting);
  if (name == kTls) contestant.certificates = certificates;
  if (settings.empty()) return contestant;
  if (contestant.kind != "weir") {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "': only Weir takes settings"));
  }
  json config = json::parse(contestant.config);
  config.merge_patch(settings);
  contestant.config = config.dump();
  contestant.name = text;
  return contestant;
}

bool NeedsOneHost(const std::string& name) {
  return name == "raw unix" || name == "weir unix" || name == kShared || name == kSharedCopied;
}

json Cell(const Track& track, const Track& limit) {
  json cell = {{"contestant", track.contestant.name},
               {"bytes", track.contestant.elements * sizeof(float)},
               {"servers", track.contestant.servers},
               {"workers", track.contestant.clients},
               {"optimizer", track.contestant.optimizer}};
  if (!track.status.ok()) {
    cell["error"] = std::string(track.status.message());
    return cell;
  }
  cell["gb_per_second"] = track.gb_per_second();
  cell["p50_seconds"] = track.StepQuantile(0.5);
  cell["p99_seconds"] = track.StepQuantile(0.99);
  cell["client_cpu_seconds_per_gb"] = track.MedianOf([](const Turn& t) { return t.client_cpu_per_gb; });
  cell["server_cpu_seconds_per_gb"] = track.MedianOf([](const Turn& t) { return t.server_cpu_per_gb; });
  cell["faults_per_step"] = track.MedianOf([](const Turn& t) { return t.faults_per_step; });
  cell["server_peak_bytes"] = track.turns.back().server_peak_bytes;
  if (limit.status.ok()) cell["of_limit"] = Median(StepRatios(limit, track));
  return cell;
}

// Shows progress on stderr. Estimates the time left, since all races take about equally long.
void ShowProgress(size_t done, size_t races, absl::Duration took) {
  if (done == races) return;
  const absl::Duration left = took / static_cast<int64_t>(done) * static_cast<int64_t>(races - done);
  std::fprintf(stderr, "%zu of %zu races are done; about %s left\n", done, races,
               absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))).c_str());
}

void PrintCell(const json& cell) {
  const std::string layout = absl::StrCat(cell["servers"].get<int>(), "x", cell["workers"].get<int>());
  std::printf("%8s %6s %-9s %-25s ", FormatSize(cell["bytes"]).c_str(), layout.c_str(),
              cell["optimizer"].get<std::string>().c_str(), cell["contestant"].get<std::string>().c_str());
  if (cell.contains("error")) {
    std::printf("%s\n", cell["error"].get<std::string>().c_str());
  } else {
    std::printf("%8.3f %9.3f %9.3f %11.4f %11.4f %7.0f %9.0f ", cell["gb_per_second"].get<double>(),
                cell["p50_seconds"].get<double>() * 1e3, cell["p99_seconds"].get<double>() * 1e3,
                cell["client_cpu_seconds_per_gb"].get<double>(),
                cell["server_cpu_seconds_per_gb"].get<double>(), cell["faults_per_step"].get<double>(),
                1e-6 * cell["server_peak_bytes"].get<double>());
    const std::string of_limit =
        cell.contains("of_limit") ? absl::StrFormat("%.2f", cell["of_limit"].get<double>()) : "";
    std::printf("%8s\n", of_limit.c_str());
  }
  std::fflush(stdout);
}

}  // namespace

const std::vector<std::string> kWireContestants = {"raw tcp", "raw unix",  "weir tcp", "weir tcp bf16",
                                                   kTls,      "weir unix", kShared,    kSharedCopied};

absl::StatusOr<int64_t> ParseSize(const std::string& text) {
  for (const auto& [unit, factor] :
       {std::pair{"KB", int64_t{1} << 10}, {"MB", int64_t{1} << 20}, {"GB", int64_t{1} << 30}}) {
    int64_t number;
    const size_t digits = text.size() < 2 ? 0 : text.size() - 2;
    if (text.substr(digits) == unit && absl::SimpleAtoi(text.substr(0, digits), &number) && number >= 1 &&
        number <= (int64_t{64} << 30) / factor) {
      return number * factor;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a size from 1KB to 64GB, such as 64KB, 16MB or 1GB"));
}

std::string FormatSize(int64_t bytes) {
  if (bytes % (1 << 30) == 0) return absl::StrCat(bytes >> 30, "GB");
  if (bytes % (1 << 20) == 0) return absl::StrCat(bytes >> 20, "MB");
  return absl::StrCat(bytes >> 10, "KB");
}

absl::StatusOr<std::pair<int, int>> ParseLayout(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, 'x');
  int servers, workers;
  if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &servers) && absl::SimpleAtoi(parts[1], &workers) &&
      servers >= 1 && servers <= 64 && workers >= 1 && workers <= 64) {
    return std::pair{servers, workers};
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a layout: SERVERSxWORKERS, each from 1 to 64, such as 2x4"));
}

absl::StatusOr<json> PrintWireTable(const WireTableOptions& options, ServerHost* host) {
  RawSetting setting;
  const auto is_raw = [](const std::string& name) { return absl::StartsWith(name, "raw"); };
  if (std::any_of(options.contestants.begin(), options.contestants.end(), is_raw)) {
    // The sweep uses a size whose steps take some time, but not too long.
    Contestant sweeper;
    sweeper.kind = "raw";
    sweeper.elements =
        std::min<int64_t>(*std::max_element(options.sizes.begin(), options.sizes.end()), 64 << 20) /
        static_cast<int64_t>(sizeof(float));
    std::printf("looking for the raw socket loop's best setting ...\n");
    std::fflush(stdout);
    WEIR_ASSIGN_OR_RETURN(setting, Sweep(sweeper, 0.4 * options.turn_seconds, host));
    std::printf("windows of %s, connections: %d, congestion control: %s\n\n",
                FormatSize(setting.window_bytes).c_str(), setting.connections,
                setting.congestion_control.empty() ? "the system's" : setting.congestion_control.c_str());
  }
  json result = {{"raw_setting",
                  {{"window_bytes", setting.window_bytes},
                   {"connections", setting.connections},
                   {"congestion_control", setting.congestion_control}}}};
  std::printf("%8s %6s %-9s %-25s %8s %9s %9s %11s %11s %7s %9s %8s\n", "size", "layout", "optimizer", "",
              "GB/s", "p50 ms", "p99 ms", "client s/GB", "server s/GB", "faults", "server MB", "of limit");
  json& cells = result["cells"] = json::array();
  const size_t races = options.sizes.size() * options.layouts.size() * options.optimizers.size();
  size_t done = 0;
  const absl::Time started = absl::Now();
  for (int64_t bytes : options.sizes) {
    for (const std::string& layout : options.layouts) {
      WEIR_ASSIGN_OR_RETURN(const auto shape, ParseLayout(layout));
      for (const std::string& optimizer : options.optimizers) {
        std::vector<Contestant> contestants;
        for (const std::string& name : options.contestants) {
          if (options.two_hosts && NeedsOneHost(name)) continue;
          WEIR_ASSIGN_OR_RETURN(Contestant contestant, MakeWithSettings(name, setting, options.certificates));
          contestant.elements = bytes / static_cast<int64_t>(sizeof(float));
          contestant.optimizer = optimizer;
          std::tie(contestant.servers, contestant.clients) = shape;
          contestants.push_back(std::move(contestant));
        }
        const std::vector<Track> tracks = Race(contestants, options.rounds, options.turn_seconds, host);
        // If the limit is not among the contestants, nothing is compared with it.
        Track limit;
        limit.status = absl::NotFoundError("no limit");
        for (const Track& track : tracks) {
          if (track.contestant.name == kLimit) limit = track;
        }
        for (const Track& track : tracks) PrintCell(cells.emplace_back(Cell(track, limit)));
        ShowProgress(++done, races, absl::Now() - started);
      }
    }
  }
  return result;
}

}  // namespace weir::bench

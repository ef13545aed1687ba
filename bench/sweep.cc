#include "bench/sweep.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "bench/memory.h"
#include "bench/race.h"
#include "common/base/status_macros.h"

namespace weir::bench {

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

absl::StatusOr<SweepResult> Sweep(const Contestant& raw, double turn_seconds, ServerHost* host) {
  SweepResult result;
  const std::vector<std::string> controls =
      raw.transport == "tcp" ? CongestionControls() : std::vector<std::string>{""};
  // Each connection has a thread at both ends.
  const unsigned most_connections = std::clamp(std::thread::hardware_concurrency() / 2, 2u, 8u);
  for (const std::string& control : controls) {
    for (unsigned connections = 1; connections <= most_connections; connections *= 2) {
      for (int64_t window_kib : {128, 256, 512, 1024, 2048, 4096}) {
        result.tried.push_back({window_kib << 10, static_cast<int>(connections), control});
      }
    }
  }
  for (RawSetting& setting : result.tried) {
    const Track track = Race({WithSetting(raw, setting)}, {2, turn_seconds, 3}, host)[0];
    WEIR_RETURN_IF_ERROR(track.status);
    setting.step_seconds = track.StepQuantile(0.25);
  }
  std::sort(result.tried.begin(), result.tried.end(),
            [](const RawSetting& a, const RawSetting& b) { return a.step_seconds < b.step_seconds; });
  std::vector<Contestant> finalists;
  for (size_t i = 0; i < result.tried.size() && i < 4; ++i) {
    finalists.push_back(WithSetting(raw, result.tried[i]));
  }
  const std::vector<Track> tracks = Race(finalists, {7, 1.5 * turn_seconds, 3}, host);
  for (size_t i = 0; i < tracks.size(); ++i) {
    WEIR_RETURN_IF_ERROR(tracks[i].status);
    result.tried[i].refined_step_seconds = tracks[i].step_seconds();
  }
  result.best = *std::min_element(result.tried.begin(), result.tried.begin() + tracks.size(),
                                  [](const RawSetting& a, const RawSetting& b) {
                                    return a.refined_step_seconds < b.refined_step_seconds;
                                  });
  return result;
}

double MemcpySpeed() {
  constexpr int64_t kElements = 16 << 20;
  const Tensor from(kElements, 1);
  Tensor to(kElements, 0);
  std::vector<double> seconds;
  for (int i = 0; i < 15; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(to.data(), from.data(), from.bytes());
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return static_cast<double>(from.bytes()) * 1e-9 / Median(seconds);
}

}  // namespace weir::bench

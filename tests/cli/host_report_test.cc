#include "cli/report/host_report.h"

#include "catch2/catch.hpp"
#include "common/cuda/cuda_device.h"
#include "nlohmann/json.hpp"
#include "tests/common/fake_root.h"

namespace weir {
namespace {

using Catch::Contains;

FakeRoot Machine() {
  FakeRoot root;
  root.Write("/proc/cpuinfo",
             "processor\t: 0\nmodel name\t: Model 7 @ 2: fast\n\nprocessor\t: 1\nmodel name\t: other\n");
  root.Write("/proc/meminfo",
             "MemTotal:       16000000 kB\nMemFree:        1 kB\nMemAvailable:   8000000 kB\n");
  root.Write("/proc/self/cgroup", "0::/\n");
  root.Write("/sys/fs/cgroup/memory.max", "2000000000\n");
  root.Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
             "always within_size advise [never] deny force\n");
  root.Write("/proc/sys/net/ipv4/tcp_congestion_control", "bbr\n");
  root.Write("/proc/sys/net/ipv4/tcp_available_congestion_control", "reno bbr cubic\n");
  root.Write("/proc/sys/net/ipv4/tcp_allowed_congestion_control", "reno bbr cubic\n");
  return root;
}

TEST_CASE("What the system's files say is reported") {
  FakeRoot root = Machine();
  HostReport report = LookAtHost(root.path());
  CHECK(report.cpu == "Model 7 @ 2: fast");
  CHECK(report.memory_bytes == uint64_t{16'000'000} * 1024);
  CHECK(report.available_bytes == uint64_t{8'000'000} * 1024);
  CHECK(report.memory_limit_bytes == 2'000'000'000);
  CHECK(report.huge_pages == "madvise");
  CHECK(report.shared_huge_pages == "never");
  CHECK(report.congestion_control == "bbr");
  CHECK(report.congestion_choices == std::vector<std::string>{"reno", "bbr", "cubic"});
  CHECK(report.cores > 0);
  CHECK_THAT(report.kernel, Contains("Linux "));
  CHECK_THAT(HostReportText(report), Contains("huge pages          madvise; shared memory: never\n") &&
                                         Contains("bbr; may be chosen: reno, bbr, cubic\n") &&
                                         Contains("this container may have 2.00 GB"));
  root.Write("/sys/fs/cgroup/memory.max", "max\n");
  CHECK(LookAtHost(root.path()).memory_limit_bytes == 0);
}

TEST_CASE("A machine that says nothing of itself is reported too") {
  FakeRoot root;
  const HostReport report = LookAtHost(root.path());
  CHECK(report.cpu.empty());
  CHECK(report.memory_bytes == 0);
  CHECK_THAT(HostReportText(report), Contains("processor           not known\n"));
  const auto json = nlohmann::json::parse(HostReportJson(report));
  CHECK(json["cpu"].is_null());
  CHECK(json["memory_limit_bytes"].is_null());
}

TEST_CASE("Either there are devices or it is said why not") {
  const HostReport report = LookAtHost();
  const auto found = cuda::Probe();
  CHECK(report.devices.size() == (found.ok() ? found->devices.size() : 0));
  CHECK(report.no_devices == (found.ok() ? "" : std::string(found.status().message())));
  CHECK(report.cublas.empty() != report.no_cublas.empty());
}

TEST_CASE("Devices, and why one is not used") {
  HostReport report;
  report.cuda_driver = "13.1";
  report.devices = {{"cuda:0", "Model \x1b[1m", "9.0", 80'000'000'000, 132, ""},
                    {"cuda:1", "Old", "7.5", 16'000'000'000, 40, "compute capability 7.5"}};
  CHECK_THAT(
      HostReportText(report),
      Contains("cuda:0              Model \\x1b[1m, compute capability 9.0, 80.0 GB, 132 multiprocessors: "
               "used\n") &&
          Contains("40 multiprocessors: not used: compute capability 7.5\n"));
  const auto json = nlohmann::json::parse(HostReportJson(report));
  CHECK(json["devices"][0]["unused"].is_null());
  CHECK(json["devices"][1]["unused"] == "compute capability 7.5");
  CHECK(json["devices"][1]["memory_bytes"] == 16'000'000'000);
  CHECK(json["cuda_driver"] == "13.1");
  CHECK(json["cublas"].is_null());
}

}  // namespace
}  // namespace weir

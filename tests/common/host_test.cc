#include "common/base/host.h"

#include <sched.h>

#include "catch2/catch.hpp"
#include "tests/common/fake_root.h"

namespace weir {
namespace {

int Cpus(const FakeRoot& root) { return UsableCpus(root.path()); }

// This process may use so many CPUs by its mask alone.
int Mask() { return UsableCpus("/does/not/exist"); }

TEST_CASE("the affinity mask counts, and no quota does not") {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "0::/\n");
  root.Write("/sys/fs/cgroup/cpu.max", "max 100000\n");
  CHECK(Cpus(root) == Mask());
  cpu_set_t all, one;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  CHECK(Mask() == CPU_COUNT(&all));
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  }
  REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  CHECK(Cpus(root) == 1);
  REQUIRE(sched_setaffinity(0, sizeof all, &all) == 0);
}

TEST_CASE("the least quota of the process's control groups counts, rounded up, of either version") {
  const FakeRoot root;
  SECTION("the second, in a container") {
    root.Write("/proc/self/cgroup", "0::/\n");
    root.Write("/sys/fs/cgroup/cpu.max", "50000 100000\n");
  }
  SECTION("the second, a group above") {
    root.Write("/proc/self/cgroup", "0::/pod/task\n");
    root.Write("/sys/fs/cgroup/pod/task/cpu.max", "9000000 100000\n");
    root.Write("/sys/fs/cgroup/pod/cpu.max", "100000 100000\n");
  }
  SECTION("the first") {
    root.Write("/proc/self/cgroup", "5:cpu,cpuacct:/pod/task\n4:pids:/\n0::/\n");
    root.Write("/sys/fs/cgroup/cpu/pod/task/cpu.cfs_quota_us", "20000\n");
    root.Write("/sys/fs/cgroup/cpu/pod/task/cpu.cfs_period_us", "20000\n");
    root.Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    root.Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  }
  SECTION("the first, in a container, which sees a path of the host and its own group as the root") {
    root.Write("/proc/self/cgroup", "5:cpu:/docker/0123\n");
    root.Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "70000\n");
    root.Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  }
  CHECK(Cpus(root) == 1);
}

TEST_CASE("a quota above the CPUs that there are, or none that is a number, changes nothing") {
  const FakeRoot root;
  root.Write("/proc/self/cgroup", "0::/\n");
  root.Write("/sys/fs/cgroup/cpu.max", GENERATE("100000000 100000\n", "", "?\n", "0 0\n", "-1 100000\n"));
  CHECK(Cpus(root) == Mask());
}

}  // namespace
}  // namespace weir

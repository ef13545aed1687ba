#include "common/telemetry/metrics.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

TEST_CASE("the page") {
  MetricRegistry registry;
  registry.AddGauge("weir_workers", "Live workers.").Set(4);
  registry.AddCallbackCounter("weir_pushes_total", "Pushes applied.", {{"shard", "1"}}, [] { return 7; });
  registry.AddCallbackCounter("weir_pushes_total", "Pushes applied.", {{"shard", "0"}}, [] { return 1; });
  registry.AddCallbackGauge("weir_version", "The shard's version.", {}, [] { return 0.1; });
  registry.AddCallbackCounter("weir_cpu_seconds_total", "CPU time.", {}, [] { return 1e21; });
  CHECK(registry.Exposition() == R"(# HELP weir_cpu_seconds_total CPU time.
# TYPE weir_cpu_seconds_total counter
weir_cpu_seconds_total 1e+21
# HELP weir_pushes_total Pushes applied.
# TYPE weir_pushes_total counter
weir_pushes_total{shard="1"} 7
weir_pushes_total{shard="0"} 1
# HELP weir_version The shard's version.
# TYPE weir_version gauge
weir_version 0.1
# HELP weir_workers Live workers.
# TYPE weir_workers gauge
weir_workers 4
)");
}

TEST_CASE("a family whose series come and go") {
  MetricRegistry registry;
  std::vector<std::pair<Labels, double>> workers;
  registry.AddCallbackGauges("weir_busy", "Busy.", [&workers] { return workers; });
  CHECK(registry.Exposition() == "# HELP weir_busy Busy.\n# TYPE weir_busy gauge\n");
  workers = {{{{"task", "worker:1"}}, 0.5}, {{{"task", "worker:\"2"}}, 1}};
  CHECK(registry.Exposition() ==
        "# HELP weir_busy Busy.\n# TYPE weir_busy gauge\nweir_busy{task=\"worker:1\"} 0.5\n"
        "weir_busy{task=\"worker:\\\"2\"} 1\n");
  workers.pop_back();
  CHECK(registry.Exposition() ==
        "# HELP weir_busy Busy.\n# TYPE weir_busy gauge\nweir_busy{task=\"worker:1\"} 0.5\n");
}

TEST_CASE("labels and help are escaped") {
  MetricRegistry registry;
  registry.AddGauge("g", "back\\slash\nline \"quote\"", {{"path", "C:\\\"x\"\n\xFF"}});
  CHECK(registry.Exposition() ==
        "# HELP g back\\\\slash\\nline \"quote\"\n# TYPE g gauge\ng{path=\"C:\\\\\\\"x\\\"\\n\xEF\xBF\xBD\"} "
        "0\n");
}

TEST_CASE("numbers that are none") {
  MetricRegistry registry;
  auto& gauge = registry.AddGauge("g", "G.");
  const auto shown = [&] {
    const std::string page = registry.Exposition();
    return page.substr(page.rfind("g "));
  };
  gauge.Set(std::numeric_limits<double>::infinity());
  CHECK(shown() == "g +Inf\n");
  gauge.Set(-std::numeric_limits<double>::infinity());
  CHECK(shown() == "g -Inf\n");
  gauge.Set(std::numeric_limits<double>::quiet_NaN());
  CHECK(shown() == "g NaN\n");
}

TEST_CASE("the process's own metrics") {
  MetricRegistry registry;
  registry.AddProcessMetrics();
  const std::string page = registry.Exposition();
  for (const char* name :
       {"process_resident_memory_bytes ", "process_cpu_seconds_total ", "process_open_fds "}) {
    const size_t at = page.find(std::string("\n") + name);
    REQUIRE(at != std::string::npos);
    CHECK(std::stod(page.substr(at + 1 + std::string(name).size())) >= 0);
  }
  CHECK(page.find("process_open_fds 0") == std::string::npos);
}

}  // namespace
}  // namespace weir

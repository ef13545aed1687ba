// What ends up in weights has the same bits whatever CPU the C library finds: its functions have variants,
// some with fused multiply-adds, whose last bits differ.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/checksums.h"
#include "common/base/portable_math.h"
#include "common/base/random.h"
#include "common/optimizer/schedule.h"
#include "common/system/subprocess.h"
#include "proto/job_config.pb.h"

namespace weir {
namespace {

LearningRateSchedule Schedule(v1::ScheduleConfig::Kind kind) {
  v1::ScheduleConfig config;
  config.set_type(kind);
  config.set_step_size(10);
  config.set_gamma(0.97);
  config.set_power(0.9);
  config.set_final_factor(0.01);
  config.add_milestones(30);
  return *LearningRateSchedule::Create(0.3, config, 20'000);
}

std::string HashOfBits() {
  Sha256 hash;
  const auto add = [&hash](double value) { hash.Update(&value, sizeof value); };
  std::vector<LearningRateSchedule> schedules;
  for (int kind = v1::ScheduleConfig::SCHEDULE_CONSTANT; v1::ScheduleConfig::Kind_IsValid(kind); ++kind) {
    schedules.push_back(Schedule(static_cast<v1::ScheduleConfig::Kind>(kind)));
  }
  for (int i = 0; i < 20'000; ++i) {
    add(Power(0.999, static_cast<uint64_t>(i)));
    const auto bits = Philox(1, 0, static_cast<uint64_t>(i));
    for (const double normal : TwoNormals(bits[0], bits[1])) add(normal);
    for (const LearningRateSchedule& schedule : schedules) add(schedule.Rate(i));
  }
  return hash.Hex();
}

// What the C library answers, to see that a setting changes it.
std::string HashOfLibrary() {
  Sha256 hash;
  for (int i = 0; i < 20'000; ++i) {
    for (const double value : {std::pow(0.999, i), std::log((i + 1) * 0x1p-20), std::cos(i * 0.001)}) {
      hash.Update(&value, sizeof value);
    }
  }
  return hash.Hex();
}

TEST_CASE("the hashes of what this process computes", "[.child]") {
  printf("bits=%s library=%s\n", HashOfBits().c_str(), HashOfLibrary().c_str());
}

TEST_CASE("Schedules, powers of beta and normal values have the same bits whatever CPU the C library finds") {
  const auto hashes = [](const char* without) {
    Subprocess::Options options;
    options.args = {"/proc/self/exe", "the hashes of what this process computes"};
    options.environment = {{"GLIBC_TUNABLES", std::string("glibc.cpu.hwcaps=") + without}};
    options.remove_environment = {"XML_OUTPUT_FILE", "TESTBRIDGE_TEST_ONLY", "TEST_TOTAL_SHARDS"};
    const auto result = RunCommand(std::move(options), std::chrono::seconds(50));
    REQUIRE(result.ok());
    const size_t at = result->output.find("bits=");
    REQUIRE(at != std::string::npos);
    return std::make_pair(result->output.substr(at + 5, 64), result->output.substr(at + 78, 64));
  };
  const std::string here = HashOfBits();
  const auto [bits, library] = hashes("-FMA,-FMA4,-AVX2");
  CHECK(bits == here);
  if (library == HashOfLibrary()) {
    printf("SKIPPED: on this machine the C library has the same variants with and without the setting\n");
  }
}

}  // namespace
}  // namespace weir

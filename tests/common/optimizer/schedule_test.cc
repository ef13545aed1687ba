#include "common/optimizer/schedule.h"

#include <cmath>
#include <string>
#include <utility>

#include "catch2/catch.hpp"
#include "proto/job_config.pb.h"

namespace weir {
namespace {

v1::OptimizerConfig MakeConfig(v1::ScheduleConfig::Kind kind, uint64_t warmup = 0) {
  v1::OptimizerConfig config;
  config.set_learning_rate(0.5f);
  config.mutable_schedule()->set_type(kind);
  config.mutable_schedule()->set_warmup_steps(warmup);
  return config;
}

absl::StatusOr<LearningRateSchedule> Create(const v1::OptimizerConfig& config, uint64_t job_steps) {
  return LearningRateSchedule::Create(config.learning_rate(), config.schedule(), job_steps);
}

TEST_CASE("Schedule: constant is the default") {
  v1::OptimizerConfig config;
  config.set_learning_rate(0.5f);
  const LearningRateSchedule schedule = *Create(config, 100);
  for (double t : {0.0, 0.5, 7.0, 1e9}) CHECK(schedule.Rate(t) == 0.5);
}

TEST_CASE("Schedule: warm-up rises in equal parts and ends on the rate") {
  const LearningRateSchedule schedule = *Create(MakeConfig(v1::ScheduleConfig::SCHEDULE_CONSTANT, 4), 100);
  CHECK(schedule.Rate(0) == 0.125);
  CHECK(schedule.Rate(0.99) == 0.125);  // a fraction of a step belongs to its step
  CHECK(schedule.Rate(1) == 0.25);
  CHECK(schedule.Rate(2) == 0.375);
  CHECK(schedule.Rate(3) == 0.5);
  CHECK(schedule.Rate(3.75) == 0.5);
  CHECK(schedule.Rate(4) == 0.5);
  CHECK(schedule.Rate(400) == 0.5);
}

TEST_CASE("Schedule: step") {
  v1::OptimizerConfig config = MakeConfig(v1::ScheduleConfig::SCHEDULE_STEP, 2);
  config.mutable_schedule()->set_step_size(10);
  config.mutable_schedule()->set_gamma(0.25);
  const LearningRateSchedule schedule = *Create(config, 100);
  CHECK(schedule.Rate(0) == 0.25);
  CHECK(schedule.Rate(1) == 0.5);
  CHECK(schedule.Rate(2) == 0.5);
  CHECK(schedule.Rate(11.9) == 0.5);
  CHECK(schedule.Rate(12) == 0.125);
  CHECK(schedule.Rate(22) == 0.03125);
  CHECK(schedule.Rate(31.99) == 0.03125);
}

TEST_CASE("Schedule: step without step_size is refused") {
  const absl::Status status = Create(MakeConfig(v1::ScheduleConfig::SCHEDULE_STEP), 100).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Contains("optimizer.schedule.step_size"));
}

TEST_CASE("Schedule: cosine falls to its floor and stays there") {
  v1::OptimizerConfig config = MakeConfig(v1::ScheduleConfig::SCHEDULE_COSINE);
  config.mutable_schedule()->set_total_steps(12);
  config.mutable_schedule()->set_final_factor(0.2);
  const LearningRateSchedule schedule = *Create(config, 100);
  // 0.5 (0.2 + 0.8 (1 + cos(pi t / 12)) / 2)
  CHECK(schedule.Rate(0) == Approx(0.5));
  CHECK(schedule.Rate(4) == Approx(0.5 * (0.2 + 0.8 * 0.75)));
  CHECK(schedule.Rate(6) == Approx(0.3));
  CHECK(schedule.Rate(8) == Approx(0.5 * (0.2 + 0.8 * 0.25)));
  CHECK(schedule.Rate(1.5) == Approx(0.5 * (0.2 + 0.8 * 0.9619397662556434)));
  CHECK(schedule.Rate(12) == Approx(0.1));
  CHECK(schedule.Rate(1e6) == Approx(0.1));
}

TEST_CASE("Schedule: cosine starts after the warm-up and ends with the job where no steps are given") {
  v1::OptimizerConfig config = MakeConfig(v1::ScheduleConfig::SCHEDULE_COSINE, 5);
  const LearningRateSchedule schedule = *Create(config, 100);
  CHECK(schedule.Rate(0) == Approx(0.1));
  CHECK(schedule.Rate(4) == Approx(0.5));
  CHECK(schedule.Rate(5) == Approx(0.5));
  CHECK(schedule.Rate(5 + 47.5) == Approx(0.25));
  CHECK(schedule.Rate(100) == 0);
}

TEST_CASE("Schedule: linear and polynomial fall to their floor and stay there") {
  v1::OptimizerConfig config = MakeConfig(v1::ScheduleConfig::SCHEDULE_LINEAR, 2);
  config.mutable_schedule()->set_total_steps(8);
  config.mutable_schedule()->set_final_factor(0.2);
  for (const auto& [power, middle] :
       {std::pair(0.0, 0.5), std::pair(2.0, 0.25), std::pair(0.5, std::sqrt(0.5))}) {
    if (power > 0) {
      config.mutable_schedule()->set_type(v1::ScheduleConfig::SCHEDULE_POLYNOMIAL);
      config.mutable_schedule()->set_power(power);
    }
    const LearningRateSchedule schedule = *Create(config, 100);
    CHECK(schedule.Rate(1) == Approx(0.5));
    CHECK(schedule.Rate(2) == Approx(0.5));
    CHECK(schedule.Rate(6) == Approx(0.5 * (0.2 + 0.8 * middle)));
    CHECK(schedule.Rate(10) == Approx(0.1));
    CHECK(schedule.Rate(1e6) == Approx(0.1));
  }
  config.mutable_schedule()->clear_total_steps();
  CHECK(Create(config, 10)->Rate(6) == Approx(Create(config, 6)->Rate(4)));
}

TEST_CASE("Schedule: exponential, and several milestones") {
  v1::OptimizerConfig config = MakeConfig(v1::ScheduleConfig::SCHEDULE_EXPONENTIAL, 1);
  config.mutable_schedule()->set_gamma(0.5);
  CHECK(Create(config, 100)->Rate(1.9) == 0.5);
  CHECK(Create(config, 100)->Rate(4) == 0.0625);
  config.mutable_schedule()->set_type(v1::ScheduleConfig::SCHEDULE_MULTI_STEP);
  for (const uint64_t milestone : {2, 3, 10}) config.mutable_schedule()->add_milestones(milestone);
  const LearningRateSchedule schedule = *Create(config, 100);
  CHECK(schedule.Rate(2.9) == 0.5);
  CHECK(schedule.Rate(3) == 0.25);
  CHECK(schedule.Rate(4) == 0.125);
  CHECK(schedule.Rate(10) == 0.125);
  CHECK(schedule.Rate(1e6) == 0.0625);
}

TEST_CASE("Schedule: inverse square root goes on from the warm-up") {
  const LearningRateSchedule schedule =
      *Create(MakeConfig(v1::ScheduleConfig::SCHEDULE_INVERSE_SQRT, 4), 100);
  CHECK(schedule.Rate(1) == 0.25);
  CHECK(schedule.Rate(4) == 0.5);
  CHECK(schedule.Rate(16) == 0.25);
  CHECK(schedule.Rate(64) == 0.125);
  CHECK(Create(MakeConfig(v1::ScheduleConfig::SCHEDULE_INVERSE_SQRT), 100)->Rate(3) == 0.25);
}

TEST_CASE("Schedule: one cycle rises to its peak and falls to its floor") {
  v1::OptimizerConfig config = MakeConfig(v1::ScheduleConfig::SCHEDULE_ONE_CYCLE);
  config.mutable_schedule()->set_start_factor(0.2);
  config.mutable_schedule()->set_final_factor(0.1);
  config.mutable_schedule()->set_peak_share(0.5);
  const LearningRateSchedule schedule = *Create(config, 10);  // the peak is at step 4
  CHECK(schedule.Rate(0) == Approx(0.1));
  CHECK(schedule.Rate(2) == Approx(0.3));
  CHECK(schedule.Rate(4) == Approx(0.5));
  CHECK(schedule.Rate(6.5) == Approx(0.275));
  CHECK(schedule.Rate(9) == Approx(0.05));
  CHECK(schedule.Rate(1e6) == Approx(0.05));
  // A peak at or before the first step.
  config.mutable_schedule()->set_peak_share(0.1);
  CHECK(Create(config, 10)->Rate(0) == Approx(0.5));
  CHECK(Create(config, 1)->Rate(0) == Approx(0.05));
}

TEST_CASE("Schedule: a warm-up as a share of the job's steps") {
  v1::OptimizerConfig config = MakeConfig(v1::ScheduleConfig::SCHEDULE_LINEAR);
  config.mutable_schedule()->clear_warmup_steps();
  config.mutable_schedule()->set_warmup_share(0.196);
  const LearningRateSchedule schedule = *Create(config, 20);  // 4 steps
  CHECK(schedule.Rate(0) == 0.125);
  CHECK(schedule.Rate(3) == 0.5);
  CHECK(schedule.Rate(12) == Approx(0.25));
  config.mutable_schedule()->set_warmup_share(0);
  CHECK(Create(config, 20)->Rate(10) == Approx(0.25));
}

TEST_CASE("Schedule: no type is refused") {
  const absl::Status status = Create(MakeConfig(v1::ScheduleConfig::SCHEDULE_UNSPECIFIED), 100).status();
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(std::string(status.message()), Catch::Contains("optimizer.schedule.type"));
}

}  // namespace
}  // namespace weir

#include "cli/config/checkpoints.h"

#include "catch2/catch.hpp"

namespace weir {
namespace {

TEST_CASE("Checkpoints of a job in words") {
  v1::JobConfig config;
  CHECK_THAT(DescribeCheckpoints(config), Catch::Contains("none") && Catch::Contains("ends the job"));
  config.mutable_checkpoint()->set_directory("/runs/7");
  CHECK(DescribeCheckpoints(config) ==
        "checkpoints: at intervals that follow from what one costs and at the job's end, in /runs/7, the "
        "newest 3 kept");
  config.mutable_checkpoint()->set_every_steps(100);
  config.mutable_checkpoint()->set_every_seconds(2.5);
  config.mutable_checkpoint()->set_keep(1);
  CHECK(DescribeCheckpoints(config) ==
        "checkpoints: every 100 steps and every 2.5 s and at the job's end, in /runs/7, the newest 1 kept");
}

}  // namespace
}  // namespace weir

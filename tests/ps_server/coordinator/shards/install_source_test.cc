#include <catch2/catch.hpp>

#include "common/protocol/job_failure.h"
#include "ps_server/coordinator/shards/initial_values.h"
#include "tests/ps_server/coordinator/checkpoints_fixture.h"

namespace weir {
namespace {

using Catch::Contains;

struct Fixture : CheckpointsFixture {
  explicit Fixture(std::optional<uint64_t> init_from = std::nullopt)
      : source(
            job, checkpoints,
            {init_from,
             [this](uint64_t before, InstallSource::Found found) {
               asked_before = before;
               answer = std::move(found);
             },
             [this] { ++changes; }, [this](const absl::Status& failure) { failures.push_back(failure); }}) {}
  // Saves a checkpoint of this step.
  void Save(uint64_t of) {
    step = of;
    checkpoints.Request(/*of_now=*/true, [](const absl::StatusOr<v1::CheckpointReply>&) {});
    Write();
  }
  v1::Install Install() const {
    v1::Install install;
    source.Describe(&install);
    return install;
  }

  uint64_t asked_before = 0;
  InstallSource::Found answer;
  int changes = 0;
  InstallSource source;
};

TEST_CASE("Shards begin with the newest checkpoint, with the weights of init_from, or with version 0") {
  const bool init_from = GENERATE(false, true);
  Fixture f(init_from ? std::optional<uint64_t>(9) : std::nullopt);
  CHECK(f.source.exists() == init_from);
  CHECK(f.Install().has_restore() == init_from);
  CHECK(f.Install().restore().weights_only() == init_from);
  f.Save(4);
  CHECK(f.source.exists());
  CHECK(f.Install().restore().step() == 4);
  CHECK_FALSE(f.Install().restore().weights_only());
}

TEST_CASE("A damaged checkpoint is passed over for the one before it") {
  Fixture f;
  f.Save(4);
  f.disk->holds = true;
  v1::CheckpointManifest before;
  before.set_step(2);
  f.disk->before = before;
  f.source.OnDamaged("ps:1", "a hole");
  CHECK(f.source.searching());
  CHECK_FALSE(f.source.found());
  // A second shard finds the same damage.
  f.source.OnDamaged("ps:2", "a hole");
  CHECK(f.changes == 1);
  f.disk->Answer();
  CHECK(f.disk->passed_over == std::vector<uint64_t>{4});
  CHECK(f.source.found());
  CHECK(f.changes == 2);
  CHECK(f.Install().restore().step() == 2);
  f.source.Take();
  CHECK_FALSE(f.source.searching());
}

TEST_CASE("A checkpoint that ps:0 finds whole is loaded once more") {
  Fixture f;
  f.Save(4);
  f.disk->before = absl::FailedPreconditionError("it is whole");
  f.source.OnDamaged("ps:1", "a hole");
  CHECK(f.changes == 1);
  CHECK_FALSE(f.source.searching());
  f.source.OnDamaged("ps:1", "a hole");
  REQUIRE(f.failures.size() == 1);
  CHECK(KindOf(f.failures[0]) == v1::FAILURE_CONFIG);
  CHECK_THAT(std::string(f.failures[0].message()), Contains("ps:1: a hole") && Contains("it is whole"));
}

TEST_CASE("Without a whole checkpoint the job fails") {
  Fixture f;
  f.Save(4);
  f.source.OnDamaged("ps:1", "a hole");
  REQUIRE(f.failures.size() == 1);
  CHECK_THAT(std::string(f.failures[0].message()), Contains("none is whole"));
}

TEST_CASE("Weights to begin with are passed over, too") {
  Fixture f(9);
  f.source.OnDamaged("ps:1", "a hole");
  CHECK(f.asked_before == 9);
  SECTION("there are earlier ones") {
    f.answer(7);
    CHECK(f.source.found());
    CHECK(f.Install().restore().step() == 7);
    CHECK(f.Install().restore().init_from());
  }
  SECTION("there are none") {
    f.answer(absl::DataLossError("no other"));
    CHECK(f.failures.size() == 1);
  }
}

}  // namespace
}  // namespace weir

#include "ps_server/shard/versions/version_readers.h"

#include <memory>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

// Versions 0, 1, ... in memory of their own. All but the newest are old.
class Versions {
 public:
  explicit Versions(const Clock* clock)
      : readers(std::make_shared<VersionReaders>(clock, ReaderLimits(), [this] { ++releases; })) {
    slabs.push_back(AllocateSlab(1));
  }
  // Lends a version to a worker.
  std::shared_ptr<const LentVersion> Lend(uint64_t count) {
    return readers->Lend(count, slabs[count], {1 + count, 0, 0});
  }
  // Lends a version to a member that only reads.
  std::shared_ptr<const LentVersion> LendToReader(uint64_t count) {
    return readers->Lend(count, slabs[count], {1 + count, absl::nullopt, 7});
  }
  void Publish() {
    readers->Supersede(slabs.back().get());
    slabs.push_back(AllocateSlab(1));
  }
  std::shared_ptr<const LentVersion> LendDead() {
    slabs.push_back(AllocateSlab(1));
    auto lent = readers->Lend(slabs.size(), slabs.back(), {}, /*making=*/true);
    readers->Kill(slabs.back().get());
    return lent;
  }

  int releases = 0;
  std::vector<Slab> slabs;
  const std::shared_ptr<VersionReaders> readers;
};

TEST_CASE("The next version waits while readers hold three, and no longer than their time") {
  ManualClock clock;
  Versions v(&clock);
  std::vector<std::shared_ptr<const LentVersion>> held;
  for (uint64_t count = 0; count < 3; ++count) {
    CHECK(v.readers->MayPublish());
    held.push_back(v.Lend(count));
    held.push_back(v.Lend(count));  // shares the version
    if (count < 2) v.Publish();
    clock.Advance(absl::Seconds(1));
  }
  CHECK_FALSE(v.readers->MayPublish());
  // Version 0 was old from second 0 on.
  clock.Advance(ReaderLimits().patience - absl::Seconds(3) - absl::Milliseconds(1));
  CHECK(v.readers->RevokeLate().empty());
  CHECK_FALSE(v.readers->MayPublish());
  clock.Advance(absl::Milliseconds(1));
  const auto written_off = v.readers->RevokeLate();
  REQUIRE(written_off.size() == 1);
  CHECK(written_off[0].count == 0);
  CHECK(written_off[0].holders.size() == 2);
  CHECK(v.readers->MayPublish());
  CHECK((held[0]->revoked && held[1]->revoked));
  CHECK_FALSE(held[2]->revoked);
  // Only as many versions are revoked as are in the way.
  clock.Advance(absl::Hours(1));
  CHECK(v.readers->RevokeLate().empty());
  CHECK_FALSE(held[2]->revoked);
}

TEST_CASE("The time of a reader begins when its version becomes old") {
  ManualClock clock;
  Versions v(&clock);
  std::vector<std::shared_ptr<const LentVersion>> held = {v.Lend(0)};
  clock.Advance(absl::Hours(1));
  v.Publish();
  held.push_back(v.Lend(1));
  v.Publish();
  held.push_back(v.Lend(2));
  CHECK(v.readers->RevokeLate().empty());
  clock.Advance(ReaderLimits().patience);
  // The newest version is never taken back, however long a reader has held it.
  CHECK(v.readers->RevokeLate().size() == 1);
  CHECK(held[0]->revoked);
  clock.Advance(absl::Hours(1));
  CHECK(v.readers->MayPublish());
}

TEST_CASE(
    "What was made of an overtaken push holds up no version, only the next build, and that for a time") {
  ManualClock clock;
  Versions v(&clock);
  std::vector<std::shared_ptr<const LentVersion>> dead;
  for (size_t i = 0; i < ReaderLimits().max_dead; ++i) {
    CHECK(v.readers->MayBuild());
    dead.push_back(v.LendDead());
    CHECK(v.readers->MayPublish());
  }
  CHECK_FALSE(v.readers->MayBuild());
  clock.Advance(ReaderLimits().patience);
  CHECK(v.readers->RevokeLate().size() == 1);
  CHECK(v.readers->MayBuild());
  CHECK(v.readers->written_off() == 1);
  dead.push_back(v.LendDead());
  CHECK_FALSE(v.readers->MayBuild());
  CHECK(v.readers->RevokeLate().size() == 1);
}

TEST_CASE("Who only reads holds up no version: beyond two old ones, the oldest is written off at once") {
  ManualClock clock;
  Versions v(&clock);
  std::vector<std::shared_ptr<const LentVersion>> held;
  for (uint64_t count = 0; count < 4; ++count) {
    held.push_back(v.LendToReader(count));
    v.Publish();
    CHECK(v.readers->MayPublish());
    CHECK(v.readers->RevokeLate().size() == (count < 2 ? 0 : 1));
  }
  CHECK((held[0]->revoked && held[1]->revoked));
  CHECK_FALSE((held[2]->revoked || held[3]->revoked));
  // If a worker holds the version, too, it counts as a worker's.
  const auto shared = v.Lend(2);
  const auto newest = v.LendToReader(4);
  v.Publish();
  CHECK(v.readers->RevokeLate().empty());
}

TEST_CASE(
    "While versions are written off because of workers, workers get copies, and the same holds for readers") {
  ManualClock clock;
  Versions v(&clock);
  const bool reads = GENERATE(false, true);
  const auto lend = [&](uint64_t count) { return reads ? v.LendToReader(count) : v.Lend(count); };
  std::vector<std::shared_ptr<const LentVersion>> held;
  for (uint64_t count = 0; v.readers->written_off() < ReaderLimits().max_written_off; ++count) {
    held.push_back(lend(count));
    CHECK(held.back()->may_refer);
    clock.Advance(ReaderLimits().patience);
    v.readers->RevokeLate();
    v.Publish();
    REQUIRE(count < 10);
  }
  const uint64_t newest = v.slabs.size() - 1;
  CHECK_FALSE(lend(newest)->may_refer);
  CHECK((reads ? v.Lend(newest) : v.LendToReader(newest))->may_refer);
  held.erase(held.begin());  // the oldest is among the written-off ones
  CHECK(v.readers->written_off() == ReaderLimits().max_written_off - 1);
  CHECK(lend(newest)->may_refer);
}

TEST_CASE("A version that a checkpoint is written from is not counted, nor taken") {
  ManualClock clock;
  Versions v(&clock);
  std::vector<std::shared_ptr<const LentVersion>> held;
  for (uint64_t count = 0; count < 3; ++count) {
    held.push_back(v.Lend(count));
    if (count == 0) v.readers->Freeze({v.slabs[0].get()});
    if (count < 2) v.Publish();
  }
  CHECK(v.readers->MayPublish());
  clock.Advance(absl::Hours(1));
  v.readers->Thaw();
  CHECK(v.releases == 1);
  CHECK_FALSE(v.readers->MayPublish());
  CHECK(v.readers->RevokeLate().size() == 1);
}

TEST_CASE("Retired readers are all revoked, and nobody hears of what they let go") {
  ManualClock clock;
  Versions v(&clock);
  auto held = v.Lend(0);
  v.readers->Retire();
  CHECK(held->revoked);
  held = nullptr;
  CHECK(v.releases == 0);
  CHECK_FALSE(v.readers->AreRead(v.slabs[0].get()));
}

}  // namespace
}  // namespace weir

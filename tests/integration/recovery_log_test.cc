// Bounded and async jobs with server.durability "log" whose servers are killed: nothing is lost, and the logs
// list what was applied.
#include <csignal>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "catch2/catch.hpp"
#include "ps_server/push_log/push_log.h"
#include "ps_server/shard/restore/restore.h"
#include "tests/integration/recovery_run.h"

namespace weir {
namespace {

using Catch::Contains;
constexpr uint64_t kBatches = (3 * 1500 + 15) / 16;

// No checkpoint is taken by itself after the first, of version 0.
RecoveryRun::Options Options(const std::string& mode, std::vector<std::string> more = {}) {
  RecoveryRun::Options options;
  options.set = {"consistency.mode=" + mode, "server.durability=log", "train.epochs=3",
                 "debug.worker_delay=0.04", "checkpoint.every_steps=100000"};
  if (mode == "bounded") options.set.push_back("consistency.staleness=2");
  options.set = With(std::move(options.set), more);
  return options;
}

// The contents of a shard's log, over all its incarnations.
struct Ledger {
  std::map<uint64_t, int> applied;  // by batch: number of times
  // Batches that were applied, dropped, or computed from weights of an incarnation that had ended.
  std::set<uint64_t> settled;
  uint64_t versions = 0, refused = 0, scaled = 0, dropped = 0;
  bool consecutive = true, keys_differ = true;
};

Ledger ReadLedger(const std::string& directory, uint32_t shard) {
  Ledger ledger;
  v1::LogSegment of;
  of.set_shard(shard);
  of.set_num_shards(2);
  // Of version 0, with which the job began.
  of.set_checkpoint(1);
  std::set<std::tuple<uint32_t, uint64_t, uint64_t>> keys;
  const auto end = ReadPushLog(
      FileSystem::Posix(), LogFolder(directory, shard, 2), of, /*from_segment=*/0,
      [&](const v1::LoggedPush& record, absl::Span<const float> /*gradient*/) {
        if (record.has_membership()) return absl::OkStatus();
        const v1::PushRequest& push = record.push();
        ledger.keys_differ &=
            keys.emplace(push.caller().worker(), push.caller().incarnation(), push.clock()).second;
        if (record.outcome() != v1::OK) {
          ++ledger.refused;
          ledger.dropped += record.staleness() > 0;
          ledger.settled.insert(push.batch_plus_one() - 1);
          return absl::OkStatus();
        }
        ledger.consecutive &= record.version() == ++ledger.versions;
        ledger.scaled += record.gradient_factor() > 0 && record.gradient_factor() < 1;
        ledger.settled.insert(push.batch_plus_one() - 1);
        ++ledger.applied[push.batch_plus_one() - 1];
        return absl::OkStatus();
      });
  INFO(end.status().ToString());
  CHECK(end.ok());
  return ledger;
}

TEST_CASE("ps:1 and ps:0 are killed again and again: no acknowledged push is lost, none is applied twice") {
  struct Case {
    std::string mode;
    std::vector<std::string> more;
    bool scales = false, drops = false;
  };
  const auto [mode, more, scales, drops] = GENERATE(values<Case>(
      {{"bounded", {}},
       {"async",
        {R"(consistency.staleness_policy={"type":"scale"})", "wire.push_dtype=int4"},
        /*scales=*/true},
       {"async", {R"(consistency.staleness_policy={"type":"drop","limit":1})"}, false, /*drops=*/true}}));
  INFO(mode << ", " << (more.empty() ? "" : more[0]));
  RecoveryRun run(Options(mode, more));
  const std::vector<std::string> victims = {"ps:1", "ps:0", "ps:1", "ps:0", "ps:1"};
  for (size_t kill = 0; kill < victims.size(); ++kill) {
    run.WaitForStep(8 + 9 * kill);
    run.Kill(victims[kill]);
    run.Restart(victims[kill]);
  }
  const nlohmann::json summary = run.WaitForEnd();
  INFO(summary.dump(2));
  CHECK(summary["lost_pushes"] == 0);
  // A push that is dropped counts no examples, and its batch is not done again.
  CHECK((summary["examples"] == 3 * 1500) == !drops);
  for (uint32_t shard = 0; shard < 2; ++shard) {
    const Ledger ledger = ReadLedger(run.directory(), shard);
    INFO("shard " << shard << ", " << ledger.refused << " refused");
    CHECK(ledger.consecutive);
    CHECK(ledger.keys_differ);
    CHECK(ledger.versions <= kBatches);
    CHECK(ledger.versions == ledger.applied.size());
    CHECK((ledger.scaled > 0) == scales);
    CHECK((ledger.dropped > 0) == drops);
    CHECK(ledger.settled.size() == kBatches);
  }
  const RunResult replay = RunToEnd({"ps_server/ps_server", "--replay", run.directory()});
  INFO(replay.output);
  CHECK(replay.status == 0);
  CHECK_THAT(replay.output, Contains("start: version 0"));
  CHECK_THAT(replay.output, Contains(summary["weights_sha256"].get<std::string>()));
}

TEST_CASE("All servers are killed at once, with a checkpoint and pushes behind it: no push is lost") {
  RecoveryRun run(Options("async"));
  run.WaitForStep(10);
  const auto saved = run.TakeCheckpoint();
  run.WaitForStep(saved.step() + 10);
  for (const char* task : {"ps:0", "ps:1"}) run.job()[task].Signal(SIGKILL);
  for (const char* task : {"ps:0", "ps:1"}) run.Kill(task);
  for (const char* task : {"ps:0", "ps:1"}) run.Restart(task);
  const nlohmann::json summary = run.WaitForEnd();
  CHECK(summary["lost_pushes"] == 0);
  CHECK(summary["examples"] == 3 * 1500);
}

}  // namespace
}  // namespace weir

// Embedding tables in jobs of real processes: what all rows are at the end.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "tests/integration/table_run.h"

namespace weir {
namespace {

using Catch::Contains;
// ---- the same bits

void CheckSync(const TableRun& run) {
  JobOfTables t(run);
  t.StartAll();
  t.job.ExpectAllExit(0);
  CHECK((t.Rows() == TrainTablesSerially(run.set)));
}

TEST_CASE("sync: all rows have the bits of a serial loop: 1 server, 1 worker") { CheckSync({1, 1, {}, {}}); }
TEST_CASE("sync: all rows have the bits of a serial loop: 1 server, 3 workers", "[transports]") {
  CheckSync({1, 3, {}, {}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: 2 servers, 2 workers", "[transports]") {
  CheckSync({2, 2, {}, {}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: 3 servers, 1 worker") { CheckSync({3, 1, {}, {}}); }
TEST_CASE("sync: all rows have the bits of a serial loop: 3 servers, 3 workers", "[transports]") {
  CheckSync({3, 3, {}, {"both", "-", "both"}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: they take many messages", "[transports]") {
  CheckSync({2, 2, {LongRows(), "wire.chunk_kib=256", "wire.chunks_in_flight=3"}, {"both", "-"}});
}
TEST_CASE("sync: all rows have the bits of a serial loop: in bfloat16 on the wire", "[transports]") {
  CheckSync({2, 2, {"wire.dtype=bf16"}, {"both", "-"}});
}

TEST_CASE("sync: all rows have the bits of a serial loop when a worker is killed", "[transports]") {
  JobOfTables t({2, 2, {"cluster.min_workers=1", "cluster.lease_seconds=3"}, {"-", "dies"}});
  t.StartAll();
  t.job.ExpectExit("worker:1", 128 + 9);
  for (const char* task : {"ps:0", "ps:1", "worker:0", "evaluator:0"}) t.job.ExpectExit(task, 0);
  CHECK((t.Rows() == TrainTablesSerially({})));
}

TEST_CASE(
    "sync: a job that goes on from its checkpoint on other servers has the bits of one that never stopped") {
  const TestFolder saved;
  const std::string checkpoint =
      absl::StrCat("checkpoint={\"directory\": \"", saved.path("checkpoints"), "\"}");
  // Half of the work.
  JobOfTables first({2, 2, {checkpoint, "train.examples=48"}, {}});
  first.StartAll();
  first.job.ExpectAllExit(0);
  const AllRows all = TrainTablesSerially({});
  CHECK((first.Rows() != all));
  JobOfTables second({3, 1, {checkpoint}, {}});
  second.StartAll();
  second.job.ExpectAllExit(0);
  CHECK((second.Rows() == all));
}

// ---- every update counts once

void CheckCounts(const TableRun& run) {
  JobOfTables t(run);
  t.StartAll();
  t.job.ExpectAllExit(0);
  CHECK((t.Rows() == CountKeys()));
}

TEST_CASE("bounded: every update of every row counts", "[transports]") {
  CheckCounts({2,
               3,
               {"consistency={\"mode\": \"bounded\", \"staleness\": 1}", CountingTables()},
               {"count", "count", "count"}});
}
TEST_CASE("async: every update of every row counts", "[transports]") {
  CheckCounts({3, 2, {"consistency={\"mode\": \"async\"}", CountingTables()}, {"count", "count"}});
}
TEST_CASE("async: every update of every row counts when a worker is killed") {
  JobOfTables t({2,
                 2,
                 {"consistency={\"mode\": \"async\"}", "cluster.min_workers=1", "cluster.lease_seconds=3",
                  CountingTables()},
                 {"count", "count,dies"}});
  t.StartAll();
  t.job.ExpectExit("worker:1", 128 + 9);
  for (const char* task : {"ps:0", "ps:1", "worker:0", "evaluator:0"}) t.job.ExpectExit(task, 0);
  CHECK((t.Rows() == CountKeys()));
}

// ---- what is not finite

std::string Spoilt() {
  return absl::StrCat("the gradient of table 'items/deep', key ",
                      TableKeysOf(kSpoiltBatch, kSpoiltTable)[kSpoiltKey], ", column ", kSpoiltColumn,
                      " is NaN");
}

TEST_CASE("a NaN in a row: with reject the step goes without that part") {
  JobOfTables t({2, 2, {"consistency.on_nonfinite=reject"}, {"nan", "nan"}});
  t.StartAll();
  t.job.ExpectAllExit(0);
  CHECK_THAT(t.WorkerLogs(),
             Contains("a push is refused, and done without an update: worker ") && Contains(Spoilt()));
  CHECK((t.Rows() == TrainTablesSerially({}, {kSpoiltBatch})));
}

TEST_CASE("a NaN in a row: with stop it ends every task, by name") {
  JobOfTables t({2, 2, {"consistency.on_nonfinite=stop"}, {"nan", "nan"}});
  t.StartAll();
  for (const char* task : {"ps:0", "ps:1"}) {
    t.job.ExpectExit(task, kExitInternal, kEndLimit);
    CHECK_THAT(t.job[task].log(), Contains("training diverged: worker ") && Contains(Spoilt()));
  }
  for (const char* task : {"worker:0", "worker:1", "evaluator:0"}) {
    t.job.ExpectExit(task, 1);
    CHECK_THAT(t.job[task].log(), Contains(Spoilt()));
  }
}

}  // namespace
}  // namespace weir

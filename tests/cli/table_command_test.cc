// `weir table stats` and `get` as processes: of a job's status, and of a checkpoint of the library that
// servers use. tests/integration/tables_test.cc asks a running job for rows.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "catch2/catch.hpp"
#include "common/program/exit_codes.h"
#include "nlohmann/json.hpp"
#include "tests/cli/checkpointed_job.h"
#include "tests/cli/fake_coordinator.h"
#include "tests/cli/weir_process.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

v1::ClusterStatus StatusWithTables() {
  v1::ClusterStatus status;
  for (const char* name : {"users", "items"}) {
    v1::TableStatus& table = *status.add_tables();
    table.set_name(name);
    table.set_dim(16);
    for (const uint64_t rows : {1000, 1001}) table.add_shards()->set_rows(rows);
    table.mutable_all()->set_rows(2001);
    table.mutable_all()->set_bytes(1230000);
    table.mutable_all()->set_keys_counted(17);
    table.mutable_all()->set_admitted(2005);
    table.mutable_all()->set_evicted(4);
  }
  v1::HotKey& hot = *status.mutable_tables(0)->mutable_all()->add_hottest();
  hot.set_key(UINT64_MAX);
  hot.set_share(0.9375);
  return status;
}

TEST_CASE("stats of a running job") {
  const v1::ClusterStatus status = StatusWithTables();
  FakeCoordinator coordinator(&status);
  REQUIRE(coordinator.port() != 0);
  const std::string job = "--address=" + coordinator.address();
  const WeirResult all = Weir({"table", "stats", job});
  INFO(all.output);
  CHECK(all.code == 0);
  CHECK_THAT(all.output, Contains("users") && Contains("items") && Contains("2,001") && Contains("1.23 MB") &&
                             Contains("1,000 1,001\n") && Contains("2,005") &&
                             Contains("hottest keys of users, by estimate:\n") &&
                             Contains("18446744073709551615") && Contains("93.75%"));
  const WeirResult one = Weir({"table", "stats", "items", job, "--json"});
  CHECK(one.code == 0);
  const auto json = nlohmann::json::parse(one.output);
  REQUIRE(json.size() == 1);
  CHECK(json[0]["name"] == "items");
  CHECK(json[0]["all"]["evicted"] == 4);
  CHECK(json[0]["all"]["expired"].is_null());
  CHECK(json[0]["shards"][1]["rows"] == 1001);
  const WeirResult none = Weir({"table", "stats", "item", job});
  CHECK(none.code == kExitConfig);
  CHECK_THAT(none.output, Contains("there is no table 'item'; there are users, items"));
}

TEST_CASE("a job without tables, and none at all") {
  const v1::ClusterStatus status;
  FakeCoordinator coordinator(&status);
  REQUIRE(coordinator.port() != 0);
  const WeirResult none = Weir({"table", "stats", "--address=" + coordinator.address()});
  CHECK(none.code == kExitConfig);
  CHECK_THAT(none.output, Contains("there are no embedding tables"));
  CHECK(Weir({"table", "stats", "--address=127.0.0.1:1"}).code == kExitPeerLost);
  const WeirResult both = Weir({"table", "stats", "--address=127.0.0.1:1", "--checkpoint=/nowhere"});
  CHECK(both.code == kExitUsage);
  const WeirResult bad = Weir({"table", "get", "users", "-1", "--address=127.0.0.1:1"});
  CHECK(bad.code == kExitUsage);
  CHECK_THAT(bad.output, Contains("must be a whole number from 0 to 2^64 - 1, got '-1'"));
}

TEST_CASE("stats and rows of a checkpoint") {
  std::string folder = (fs::path(std::getenv("TEST_TMPDIR")) / "runs-XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()) != nullptr);
  REQUIRE(CheckpointedJob{/*with_table=*/true}.Write(folder).ok());
  const std::string from = "--checkpoint=" + folder;
  const auto stats = nlohmann::json::parse(Weir({"table", "stats", from, "--json"}).output);
  REQUIRE(stats.size() == 1);
  CHECK(stats[0]["name"] == "clicks");
  CHECK(stats[0]["all"]["rows"] == 37);
  CHECK(stats[0]["all"]["keys_counted"] == 12);
  CHECK(stats[0]["all"]["admitted"].is_null());
  CHECK(stats[0]["shards"].size() == 2);

  StoredJob stored;
  stored.tables = {TestTable("clicks", 4)};
  const auto rows = stored.Entries(0, /*counters=*/false), counters = stored.Entries(0, /*counters=*/true);
  uint64_t absent = 0;
  while (rows.count(absent) + counters.count(absent) > 0) ++absent;
  const auto& [key, row] = *rows.begin();
  const auto& [counted, counter] = *counters.begin();
  const std::vector<std::string> get = {
      "table", "get", "clicks", std::to_string(key), std::to_string(absent), std::to_string(counted), from};
  const WeirResult text = Weir(get);
  INFO(text.output);
  CHECK(text.code == 0);
  CHECK_THAT(text.output, Contains(std::to_string(key) + ": updated in version ") &&
                              Contains(std::to_string(absent) + ": no row\n") &&
                              Contains(" pushes counted, the last in version "));
  std::vector<std::string> with_slots = get;
  with_slots.insert(with_slots.end(), {"--json", "--slots"});
  const auto json = nlohmann::json::parse(Weir(with_slots).output)["rows"];
  REQUIRE(json.size() == 3);
  CHECK(json[0]["key"] == key);
  CHECK(json[0]["exists"] == true);
  CHECK(json[0]["updated"] == row.updated);
  CHECK(json[0]["values"].get<std::vector<float>>() == row.values);
  CHECK(json[0]["slots"][0]["values"].get<std::vector<float>>() == row.slots);
  CHECK(json[1]["exists"] == false);
  CHECK(json[1]["updated"].is_null());
  CHECK(json[2]["pushes_counted"] == counter.pushes);

  const WeirResult none = Weir({"table", "get", "users", "1", from});
  CHECK(none.code == kExitConfig);
  CHECK_THAT(none.output, Contains("there is no table 'users'; there are clicks"));
  CHECK(Weir({"table", "stats", "--checkpoint=/nowhere"}).code == kExitConfig);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace weir

#include "catch2/catch.hpp"
#include "cli/report/status_text.h"

namespace weir {
namespace {

TEST_CASE("The servers' time for the hash of a job's rows is that of the server with the most bytes") {
  v1::ClusterStatus status;
  CHECK(TimeForDigests(status) == absl::ZeroDuration());
  for (const uint64_t table : {1, 2}) {
    v1::TableStatus& of = *status.add_tables();
    of.mutable_all()->set_bytes(100'000'000'000);
    of.add_shards()->set_bytes(table * 500'000'000);
    of.add_shards()->set_bytes(table * 1'000'000'000);
  }
  CHECK(TimeForDigests(status) == absl::Seconds(60));
}

}  // namespace
}  // namespace weir

#include "tests/protocol/wire_fields.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/protocol/handshake.h"
#include "proto/coordinator.pb.h"

namespace weir {
namespace {

TEST_CASE("what the version before says keeps its name, number and type") {
  const EarlierWire earlier = LastVersion();
  const WireFields present = PresentWireFields();
  std::vector<std::string> missing;
  std::set_difference(earlier.fields.begin(), earlier.fields.end(), present.begin(), present.end(),
                      std::back_inserter(missing));
  INFO(
      "within a major version fields, values and calls are added, never changed or removed "
      "(docs/protocol.md)");
  CHECK(missing == std::vector<std::string>());
}

TEST_CASE("the file of the last version is of the version before this one") {
  const v1::ProtocolVersion own = OwnProtocol();
  INFO("with a new version, replace the file by what print_wire_fields prints before the change");
  CHECK(LastVersion().major == own.major());
  CHECK(LastVersion().minor + 1 == own.minor());
}

TEST_CASE("a message loses what an earlier version does not know, at any depth") {
  EarlierWire earlier = LastVersion();
  v1::ClusterStatus status;
  status.set_step(7);
  status.add_tasks()->set_task("worker:0");
  status.mutable_tasks(0)->set_incarnation(3);
  const v1::ClusterStatus known = status;
  CHECK(earlier.fields.erase("weir.v1.ClusterStatus.worker_utilization = 37: double") == 1);
  CHECK(earlier.fields.erase("weir.v1.TaskStatus.utilization = 9: double") == 1);
  status.set_worker_utilization(0.5);
  status.mutable_tasks(0)->set_utilization(0.5);
  CHECK(MakeEarlier(earlier, &status));
  CHECK(status.SerializeAsString() == known.SerializeAsString());
  CHECK_FALSE(MakeEarlier(earlier, &status));

  // A field of another number or type is another field.
  CHECK(earlier.fields.erase("weir.v1.TaskStatus.incarnation = 4: uint64") == 1);
  earlier.fields.insert("weir.v1.TaskStatus.incarnation = 4: uint32");
  CHECK(MakeEarlier(earlier, &status));
  CHECK(status.tasks(0).task() == "worker:0");
  CHECK(status.tasks(0).incarnation() == 0);

  v1::JoinRequest join;
  *join.mutable_protocol() = OwnProtocol();
  CHECK(MakeEarlier(earlier, &join));
  CHECK(join.protocol().minor() == earlier.minor);
}

}  // namespace
}  // namespace weir

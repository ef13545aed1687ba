#include "ps_server/grpc/rpc_roles.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

constexpr Access kNo = Access::kNo, kYes = Access::kYes, kSelf = Access::kSelf;

// method, worker, server, reader, admin, control, is_join
constexpr RpcRule kRules[] = {
    {"weir.v1.Coordinator/Join", kSelf, kNo, kSelf, kNo, false, true},
    {"weir.v1.Coordinator/Heartbeat", kSelf, kNo, kSelf, kNo},
    {"weir.v1.Coordinator/Leave", kSelf, kNo, kSelf, kNo},
    {"weir.v1.Coordinator/NextRange", kSelf, kNo, kNo, kNo},
    {"weir.v1.Coordinator/Pin", kSelf, kNo, kSelf, kNo},
    {"weir.v1.Coordinator/Unpin", kSelf, kNo, kSelf, kNo},
    {"weir.v1.Coordinator/Report", kSelf, kNo, kSelf, kNo},
    {"weir.v1.Coordinator/Stop", kSelf, kNo, kNo, kNo},
    {"weir.v1.Coordinator/Checkpoint", kNo, kNo, kNo, kYes, true},
    {"weir.v1.Coordinator/Announce", kNo, kSelf, kNo, kNo, true},
    {"weir.v1.Coordinator/Status", kYes, kYes, kYes, kYes},
    {"weir.v1.ParameterServer/Exchange", kSelf, kNo, kSelf, kNo},
    {"weir.v1.ParameterServer/ReadRows", kYes, kNo, kYes, kNo},
    {"weir.v1.ShardControl/Attach", kNo, Access::kCoordinator, kNo, kNo, true},
    {"grpc.health.v1.Health/Check", kYes, kYes, kYes, kYes},
    {"grpc.health.v1.Health/Watch", kYes, kYes, kYes, kYes},
};

absl::string_view Cell(Access access) {
  switch (access) {
    case Access::kNo:
      return "–";
    case Access::kYes:
      return "yes";
    case Access::kSelf:
      return "as itself";
    case Access::kCoordinator:
      return "ps:0";
  }
  return "";
}

}  // namespace

Access RpcRule::of(Role role) const {
  switch (role) {
    case Role::kWorker:
      return worker;
    case Role::kServer:
      return server;
    case Role::kReader:
      return reader;
    case Role::kAdmin:
      return admin;
  }
  return Access::kNo;
}

absl::Span<const RpcRule> RpcRules() { return kRules; }

const RpcRule& RuleOf(absl::string_view method) {
  const auto* const rule = std::find_if(std::begin(kRules), std::end(kRules),
                                        [&](const RpcRule& candidate) { return candidate.method == method; });
  if (rule == std::end(kRules)) {
    LogError("no row in ps_server/grpc/rpc_roles.cc says who may call ", method);
    std::abort();
  }
  return *rule;
}

std::string RpcRolesTable() {
  std::string table = "| RPC | worker | ps | reader | admin |\n|---|---|---|---|---|\n";
  for (const RpcRule& rule : kRules) {
    absl::StrAppend(&table, "| `", rule.method, "` | ", Cell(rule.worker), " | ", Cell(rule.server), " | ",
                    Cell(rule.reader), " | ", Cell(rule.admin), " |\n");
  }
  return table;
}

}  // namespace weir

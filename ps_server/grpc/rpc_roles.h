#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/rpc/identity.h"

namespace weir {

// Who may call what, where connections have certificates: the whole table, one row an RPC. An RPC that is not
// in the table is refused.

// A message may speak for somebody: for a worker, a reader, a server. A caller speaks for itself alone: a
// worker for its own rank, a server for its own index, a reader for any reader (each process knows its own by
// the secret of v1.Caller.instance).
enum class Access {
  kNo,
  kYes,
  kSelf,         // the message speaks for the caller
  kCoordinator,  // ps:0 alone
};

struct RpcRule {
  absl::string_view method;  // "weir.v1.Coordinator/Join"
  Access worker = Access::kNo, server = Access::kNo, reader = Access::kNo, admin = Access::kNo;
  // Without a token and without certificates, other users of this machine are refused (GrpcAdmission).
  bool control = false;
  // A caller may call it so often a second as server.clients.joins_per_second says.
  bool is_join = false;

  Access of(Role role) const;
};

// In the order of the services and their methods.
absl::Span<const RpcRule> RpcRules();

// The method must have a row.
const RpcRule& RuleOf(absl::string_view method);

// Whether a message that pushes a gradient may come from this role. In an Exchange, a reader only pulls.
inline bool MayPush(Role role) { return role == Role::kWorker; }

// Whom a message speaks for.
struct Speaker {
  Role role = Role::kReader;
  uint32_t index = 0;  // 0 for a reader
};
inline bool SpeaksForItself(const Identity& caller, const Speaker& speaker) {
  return caller.role == speaker.role && (caller.role == Role::kReader || caller.index == speaker.index);
}

// The table for docs/security.md, in Markdown.
std::string RpcRolesTable();

}  // namespace weir

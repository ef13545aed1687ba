#include "ps_server/grpc/grpc_admission.h"

#include "absl/strings/str_cat.h"
#include "common/rpc/grpc_convert.h"
#include "common/rpc/grpc_credentials.h"
#include "common/system/clock.h"
#include "common/telemetry/logging.h"
#include "ps_server/grpc/tcp_peer.h"

namespace weir {
namespace {

constexpr std::chrono::seconds kRefusalHolds{1};
constexpr char kTable[] = " (docs/security.md says who may call what)";

grpc::Status Unauthenticated(const std::string& why) { return {grpc::StatusCode::UNAUTHENTICATED, why}; }
grpc::Status Denied(const std::string& why) {
  return {grpc::StatusCode::PERMISSION_DENIED, absl::StrCat(why, kTable)};
}

// The caller: its host and, with TLS, its identity.
std::string KeyOf(const std::string& peer, const std::optional<Identity>& caller) {
  return absl::StrCat(HostOfPeer(peer), caller.has_value() ? " " + caller->ToUri() : "");
}

}  // namespace

grpc::Status GrpcAdmission::Admit(const grpc::ServerContext& context, const RpcRule& rule,
                                  std::optional<Identity>* caller) {
  grpc::Status status = Check(context, rule, caller);
  if (status.ok() && rule.is_join) status = CheckRate(context, *caller);
  return Note(std::move(status), context, rule, *caller);
}

grpc::Status GrpcAdmission::AdmitMessage(const grpc::ServerContext& context, const RpcRule& rule,
                                         const std::optional<Identity>& caller, const Speaker& speaker,
                                         bool pushes) {
  if (!caller.has_value()) return grpc::Status::OK;
  grpc::Status status;
  if (pushes && !MayPush(caller->role)) {
    status = Denied(absl::StrCat(caller->ToUri(), " may pull, but not push"));
  } else if (rule.of(caller->role) == Access::kSelf && !SpeaksForItself(*caller, speaker)) {
    status = Denied(absl::StrCat(caller->ToUri(), " may not speak for ",
                                 Identity{job_, speaker.role, speaker.index}.ToUri()));
  }
  return Note(std::move(status), context, rule, caller);
}

grpc::Status GrpcAdmission::Check(const grpc::ServerContext& context, const RpcRule& rule,
                                  std::optional<Identity>* caller) {
  if (!token_.empty() && !CarriesToken(token_, context)) return Unauthenticated(kTokenMissing);
  if (job_.empty()) return rule.control && token_.empty() ? CheckUser(context) : grpc::Status::OK;
  absl::StatusOr<std::optional<Identity>> identity = CallerOf(context);
  if (!identity.ok()) {
    return Unauthenticated(absl::StrCat("the caller's certificate ", identity.status().message()));
  }
  *caller = *std::move(identity);
  if (!caller->has_value()) return grpc::Status::OK;  // on a Unix socket
  const Identity& who = **caller;
  if (who.job != job_) {
    return Unauthenticated(absl::StrCat("the caller's certificate is that of ", who.ToUri(),
                                        "; this is a server of job ", job_));
  }
  const Access access = rule.of(who.role);
  if (access == Access::kNo || (access == Access::kCoordinator && who.index != 0)) {
    return Denied(absl::StrCat(who.ToUri(), " may not call ", rule.method));
  }
  return grpc::Status::OK;
}

grpc::Status GrpcAdmission::CheckUser(const grpc::ServerContext& context) {
  const std::string peer = context.peer();
  const Clock::time_point now = Clock::now();
  {
    MutexLock lock(mutex_);
    const auto known = refusals_.find(peer);
    if (known != refusals_.end() && now < known->second.until) return known->second.status;
  }
  const absl::Status checked = CheckTcpPeer(peer, port_);
  if (checked.ok()) return grpc::Status::OK;
  MutexLock lock(mutex_);
  if (refusals_.size() >= kMostRefusals) refusals_.clear();
  refusals_[peer] = {now + kRefusalHolds, ToGrpc(checked)};
  return refusals_[peer].status;
}

grpc::Status GrpcAdmission::CheckRate(const grpc::ServerContext& context,
                                      const std::optional<Identity>& caller) {
  const std::string key = KeyOf(context.peer(), caller);
  MutexLock lock(mutex_);
  if (joins_.Take(key, weir::Clock::Awake().Now())) return grpc::Status::OK;
  limits_.Count(Limit::kJoins);
  return {grpc::StatusCode::UNAVAILABLE,
          absl::StrCat("more than ", joins_per_second_,
                       " Joins a second came from this caller (server.clients.joins_per_second); try again")};
}

grpc::Status GrpcAdmission::Note(grpc::Status status, const grpc::ServerContext& context, const RpcRule& rule,
                                 const std::optional<Identity>& caller) {
  if (status.ok()) return status;
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) ++unauthenticated_;
  if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED) ++denied_;
  const std::string peer = context.peer();
  const std::string key = KeyOf(peer, caller);
  std::optional<uint64_t> left_out;
  {
    MutexLock lock(mutex_);
    left_out = logged_.Due(key, weir::Clock::Awake().Now());
  }
  if (!left_out.has_value()) return status;
  LogWarning(
      "refused a call of ", std::string(rule.method), " from ", peer, ": ", status.error_message(),
      *left_out > 0 ? absl::StrCat("; and ", *left_out, " more of its calls in the minute before") : "");
  return status;
}

}  // namespace weir

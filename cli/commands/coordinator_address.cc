#include "cli/commands/coordinator_address.h"

#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/commands/grpc_status_client.h"
#include "cli/report/format.h"
#include "common/config/address.h"
#include "common/config/cluster_spec.h"
#include "common/program/exit_codes.h"
#include "common/rpc/tls.h"

namespace weir {
namespace {

constexpr absl::Duration kStatusDeadline = absl::Seconds(5);

absl::StatusOr<std::string> AddressIn(const absl::StatusOr<ClusterSpec>& spec, absl::string_view source) {
  if (!spec.ok()) return absl::FailedPreconditionError(spec.status().message());
  const auto addresses = spec->ps_addresses();
  if (addresses.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(source, ": cluster.ps: lists no server; ps:0 is the one to ask"));
  }
  return addresses[0];
}

// No valid address: InvalidArgument in the command line, FailedPrecondition in the cluster or TF_CONFIG.
absl::StatusOr<std::string> CoordinatorAddress(const ClusterFlags& flags) {
  if (!flags.address.empty()) {
    const auto parsed = ParseAddress(flags.address);
    if (parsed.ok()) return flags.address;
    return absl::InvalidArgumentError(absl::StrCat("--address: ", parsed.status().message()));
  }
  if (!flags.cluster.empty()) return AddressIn(ReadClusterSpec(flags.cluster), flags.cluster);
  if (const char* tf_config = std::getenv("TF_CONFIG")) {
    return AddressIn(ParseClusterSpec(tf_config, "TF_CONFIG"), "TF_CONFIG");
  }
  return absl::InvalidArgumentError(
      "which cluster? Name it with --cluster=FILE, --address=HOST:PORT (of ps:0) or TF_CONFIG");
}

Refusal ExplainNoAnswer(const std::string& address, const absl::Status& status, const Tls* tls) {
  if (absl::IsUnimplemented(status)) {
    return {kExitConfig, absl::StrCat("what answers at ", address,
                                      " has no coordinator; ps:0 alone has one, is this its address?")};
  }
  if (absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status)) {
    return {kExitConfig, absl::StrCat("ps:0 at ", address, ": ", Printable(status.message()))};
  }
  if (const absl::Status cause = ProbeTls(address, /*server=*/0, tls); !cause.ok()) {
    return {kExitConfig, Printable(cause.message())};
  }
  return {kExitPeerLost,
          absl::StrCat("ps:0 at ", address, " does not answer (", Printable(status.message()),
                       "); is the job running, is this its address, or does ps:0 stand still?")};
}

}  // namespace

bool AskJob(const ClusterFlags& flags, RunningJob* job, Refusal* refusal) {
  absl::StatusOr<std::string> address = CoordinatorAddress(flags);
  if (!address.ok()) {
    *refusal = {absl::IsInvalidArgument(address.status()) ? kExitUsage : kExitConfig,
                std::string(address.status().message())};
    return false;
  }
  job->address = *std::move(address);
  absl::StatusOr<JobToken> token = JobToken::ReadIfGiven(flags.token_file);
  absl::StatusOr<std::shared_ptr<const Tls>> tls = Tls::ReadIfGiven(flags.tls);
  if (!token.ok() || !tls.ok()) {
    *refusal = {kExitConfig, std::string((token.ok() ? tls.status() : token.status()).message())};
    return false;
  }
  job->token = *std::move(token);
  job->tls = *std::move(tls);
  absl::StatusOr<v1::ClusterStatus> status =
      StatusClient(job->address, job->token, job->tls).Get(kStatusDeadline);
  if (!status.ok()) {
    *refusal = ExplainNoAnswer(job->address, status.status(), job->tls.get());
    return false;
  }
  job->status = *std::move(status);
  return true;
}

}  // namespace weir

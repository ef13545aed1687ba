#include "cli/status_command.h"

#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/grpc_status_client.h"
#include "cli/status_text.h"
#include "common/config/address.h"
#include "common/config/cluster_spec.h"
#include "common/config/text_file.h"
#include "common/exit_codes.h"
#include "common/status_macros.h"

namespace weir {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(5);

int Refuse(int exit_code, absl::string_view message) {
  std::fprintf(stderr, "error: %s\n", std::string(message).c_str());
  return exit_code;
}

absl::StatusOr<std::string> CoordinatorAddress(const std::string& text, const std::string& source) {
  WEIR_ASSIGN_OR_RETURN(const ClusterSpec spec, ParseClusterSpec(text, source));
  const auto addresses = spec.ps_addresses();
  if (addresses.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": cluster.ps: lists no server; ps:0 is the one to ask"));
  }
  return addresses[0];
}

absl::StatusOr<std::string> AddressInFile(const std::string& path) {
  WEIR_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return CoordinatorAddress(text, path);
}

}  // namespace

int RunStatus(const StatusOptions& options) {
  absl::StatusOr<std::string> address = options.address;
  if (!options.address.empty()) {
    const auto parsed = ParseAddress(options.address);
    if (!parsed.ok()) return Refuse(kExitUsage, absl::StrCat("--address: ", parsed.status().message()));
  } else if (!options.cluster_file.empty()) {
    address = AddressInFile(options.cluster_file);
  } else if (const char* tf_config = std::getenv("TF_CONFIG")) {
    address = CoordinatorAddress(tf_config, "TF_CONFIG");
  } else {
    return Refuse(kExitUsage,
                  "which cluster? Name it with --cluster=FILE, --address=HOST:PORT (of ps:0) or TF_CONFIG");
  }
  if (!address.ok()) return Refuse(kExitConfig, address.status().message());

  const auto status = StatusClient(*address).Get(kDeadline);
  switch (status.status().code()) {
    case absl::StatusCode::kOk:
      std::fputs((options.json ? StatusJson(*status) : StatusReport(*status)).c_str(), stdout);
      std::fflush(stdout);
      return kExitOk;
    case absl::StatusCode::kUnimplemented:
      return Refuse(kExitConfig,
                    absl::StrCat("what answers at ", *address,
                                 " has no coordinator; ps:0 alone has one, is this its address?"));
    default:
      return Refuse(kExitPeerLost,
                    absl::StrCat("ps:0 at ", *address, " does not answer (", status.status().message(),
                                 "); is the job running, and is this its address?"));
  }
}

}  // namespace weir

#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/tls.h"

namespace weir {

// The flags with which commands name a running cluster. At most one of the first two is given; with neither,
// TF_CONFIG names the cluster.
struct ClusterFlags {
  std::string cluster;     // a file, or "dns:..."
  std::string address;     // of ps:0
  std::string token_file;  // "": the job has no token
  TlsFiles tls;            // none named: the job has no TLS
};

// The address of ps:0, "host:port". InvalidArgument: the command line gives none, or no good one.
// FailedPrecondition: the cluster or TF_CONFIG gives none, or no good one.
absl::StatusOr<std::string> CoordinatorAddress(const ClusterFlags& flags);

// What to say, and which code to exit with, if a call to ps:0 failed with `status`. Null for `tls`: there is
// none. May connect to ps:0 to find out.
struct Refusal {
  int exit_code;
  std::string message;
};
Refusal ExplainNoAnswer(const std::string& address, const absl::Status& status, const Tls* tls);

}  // namespace weir

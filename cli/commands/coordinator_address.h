#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace weir {

// The flags with which commands name a running cluster. At most one of the first two is given; with neither
// it is TF_CONFIG's.
struct ClusterFlags {
  std::string cluster_file;
  std::string address;     // of ps:0
  std::string token_file;  // "": the job has no token
};

// Of ps:0, "host:port". InvalidArgument: the command line says none or no good one; FailedPrecondition: the
// file or TF_CONFIG does.
absl::StatusOr<std::string> CoordinatorAddress(const ClusterFlags& flags);

// What to say, and to exit with, where ps:0 was asked and `status` came back, which is not OK.
struct Refusal {
  int exit_code;
  std::string message;
};
Refusal ExplainNoAnswer(const std::string& address, const absl::Status& status);

}  // namespace weir

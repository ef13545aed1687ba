#pragma once

#include <string>

namespace weir {

// `weir status`: asks the coordinator of a running cluster. At most one of `cluster_file` and `address` is
// given; with neither the cluster is TF_CONFIG's.
struct StatusOptions {
  std::string cluster_file;
  std::string address;  // of ps:0
  bool json = false;
};

// Returns the exit code: 0; 64, 78: no or no good address; 138: nothing answers.
int RunStatus(const StatusOptions& options);

}  // namespace weir

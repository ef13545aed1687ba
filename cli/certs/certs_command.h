#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/config/cluster_spec.h"

namespace weir {

struct CertsInitOptions {
  std::string directory;
  std::string spec;          // as --cluster
  std::string job = "weir";  // the job's name in the certificates
  int days = 365;
};

// Makes a new CA, and with it a certificate and a key for each task of the cluster, for a reader and for an
// admin, in a folder that must be new or empty: ca.pem, ca.key, worker-0.pem, worker-0.key, ... Keys are for
// this user alone. InvalidArgument: no name for a job; FailedPrecondition, AlreadyExists: the folder.
absl::Status WriteCertificates(const std::string& directory, const ClusterSpec& cluster,
                               const std::string& job, absl::Time now, absl::Duration validity);

// `weir certs init` and `weir certs check`. Return the exit code.
int RunCertsInit(const CertsInitOptions& options);
int RunCertsCheck(const std::string& path);

}  // namespace weir

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/identity.h"
#include "common/rpc/tls.h"

namespace weir {

// Makes a new CA, and with it a certificate and a key for each of the identities, in a folder that must be
// new or empty: ca.pem, ca.key, worker-0.pem, worker-0.key, ... Keys are for this user alone.
// InvalidArgument: no name for a job; FailedPrecondition, AlreadyExists: the folder.
absl::Status WriteCertificates(const std::string& directory, const std::string& job,
                               const std::vector<Identity>& identities, absl::Time now,
                               absl::Duration validity);

// Those of them that the process with this identity needs.
TlsFiles FilesOf(const std::string& directory, const Identity& identity);

}  // namespace weir

#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/rpc/identity.h"

namespace weir {

// Makes a new CA, and with it a certificate and a key for each of the identities, in a folder that must be
// new or empty: ca.pem, ca.key, and the files of TlsFilesIn(). Keys are for this user alone.
// InvalidArgument: no name for a job; FailedPrecondition, AlreadyExists: the folder.
absl::Status WriteCertificates(const std::string& directory, const std::string& job,
                               const std::vector<Identity>& identities, absl::Time now,
                               absl::Duration validity);

}  // namespace weir

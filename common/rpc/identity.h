#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// A role: a certificate names the role that its process has in a job (docs/security.md).
enum class Role { kWorker, kServer, kReader, kAdmin };

// Who a process is, as a subject alternative name (SAN) of its certificate says:
//
//   URI  spiffe://JOB/worker/1   spiffe://JOB/ps/0   spiffe://JOB/reader   spiffe://JOB/admin
//   DNS  worker-1.JOB.weir       ps-0.JOB.weir       reader.JOB.weir       admin.JOB.weir
//
// JOB is a DNS label: 1 to 63 of a-z, 0-9 and "-", the first and last no "-". A worker's index is its rank: a
// chief is worker 0.
struct Identity {
  std::string job;
  Role role = Role::kReader;
  uint32_t index = 0;  // 0 for reader and admin

  std::string ToUri() const;
  std::string ToDns() const;
};

inline bool operator==(const Identity& a, const Identity& b) {
  return a.job == b.job && a.role == b.role && a.index == b.index;
}

// The identity that these names of one certificate give. Names of other kinds are ignored. NotFound: none of
// them is an identity. InvalidArgument: a URI with "spiffe:" is no identity, or two names disagree.
absl::StatusOr<Identity> IdentityOf(const std::vector<std::string>& uris,
                                    const std::vector<std::string>& dns_names);

// InvalidArgument: `job` is no DNS label.
absl::Status CheckJobName(absl::string_view job);

}  // namespace weir

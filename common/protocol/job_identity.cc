#include "common/protocol/job_identity.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weir {

std::string Describe(const v1::JobIdentity& job) {
  if (job.id() == 0) return "no job yet";
  return absl::StrFormat("job '%s' (%016x)", job.name(), job.id());
}

std::string DescribeJob(uint64_t id) { return absl::StrFormat("a job with the id %016x", id); }

bool MayBeSame(uint64_t a, uint64_t b) { return a == 0 || b == 0 || a == b; }

absl::Status CheckAddressee(const v1::JobIdentity& own, uint32_t index, uint64_t job,
                            uint32_t shard_plus_one) {
  const bool right_shard = shard_plus_one == 0 || shard_plus_one == index + 1;
  if (MayBeSame(own.id(), job) && right_shard) return absl::OkStatus();
  std::string meant = MayBeSame(own.id(), job) ? "" : absl::StrCat(" of ", DescribeJob(job));
  meant = absl::StrCat(shard_plus_one == 0 ? "a server" : absl::StrCat("ps:", shard_plus_one - 1), meant);
  return absl::NotFoundError(absl::StrCat("this is ps:", index, " of ", Describe(own),
                                          ", but the call is for ", meant,
                                          "; check the addresses in the caller's cluster spec"));
}

}  // namespace weir

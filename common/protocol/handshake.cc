#include "common/protocol/handshake.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace weir {
namespace {

constexpr uint32_t kMajor = 1, kMinor = 11;

v1::ProtocolVersion Make(uint32_t major, uint32_t minor) {
  v1::ProtocolVersion version;
  version.set_major(major);
  version.set_minor(minor);
  return version;
}

// The first version of the protocol had no version field.
uint32_t MajorOf(const v1::ProtocolVersion& version) { return version.major() == 0 ? 1 : version.major(); }

}  // namespace

v1::ProtocolVersion OwnProtocol() { return Make(kMajor, kMinor); }

absl::Status CheckProtocol(absl::string_view peer, const v1::ProtocolVersion& theirs, absl::string_view me,
                           const v1::ProtocolVersion& own) {
  if (MajorOf(theirs) == MajorOf(own)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(peer, " speaks version ", ToString(theirs), " of the protocol, and ", me, " version ",
                   ToString(own), ": upgrade ", MajorOf(theirs) < MajorOf(own) ? peer : me));
}

bool SaysInstance(const v1::ProtocolVersion& version) {
  return std::pair(MajorOf(version), version.minor()) >= std::pair(1u, 1u);
}

bool WaitsAtWorkEnd(const v1::ProtocolVersion& version) {
  return std::pair(MajorOf(version), version.minor()) >= std::pair(1u, 3u);
}

bool WeighsPushes(const v1::ProtocolVersion& version) {
  return std::pair(MajorOf(version), version.minor()) >= std::pair(1u, 10u);
}
bool SharesParts(const v1::ProtocolVersion& version) {
  return std::pair(MajorOf(version), version.minor()) >= std::pair(1u, 11u);
}

bool TakesQuantisedPushes(const v1::ProtocolVersion& version) {
  return std::pair(MajorOf(version), version.minor()) >= std::pair(1u, 11u);
}

std::string ToString(const v1::ProtocolVersion& version) {
  return absl::StrCat(MajorOf(version), ".", version.minor());
}

v1::ProtocolVersion ParseProtocol(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '.');
  uint32_t major = 0, minor = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &major) || !absl::SimpleAtoi(parts[1], &minor) ||
      major == 0) {
    return Make(1, 0);
  }
  return Make(major, minor);
}

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

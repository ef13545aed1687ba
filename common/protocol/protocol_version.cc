#include "common/protocol/protocol_version.h"

#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace weir {
namespace {

constexpr uint32_t kMajor = 1, kMinor = 9;

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

}  // namespace weir

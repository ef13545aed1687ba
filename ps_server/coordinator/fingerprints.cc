#include "ps_server/coordinator/fingerprints.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

constexpr int kMost = 16;
constexpr size_t kLongestName = 64, kLongestValue = 128;

// The text goes into messages and the log.
absl::Status CheckText(int index, absl::string_view field, absl::string_view text, size_t longest) {
  const bool printable =
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
  if (printable && !text.empty() && text.size() <= longest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("fingerprints[", index, "].", field, ": must be 1 to ",
                                                 longest, " printable bytes; got ", text.size(), " bytes"));
}

}  // namespace

absl::Status Fingerprints::Check(const v1::JoinRequest& request) const {
  if (request.fingerprints_size() > kMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("fingerprints: ", request.fingerprints_size(), "; at most ", kMost, " are allowed"));
  }
  std::set<absl::string_view> names;
  for (int i = 0; i < request.fingerprints_size(); ++i) {
    const v1::Fingerprint& given = request.fingerprints(i);
    WEIR_RETURN_IF_ERROR(CheckText(i, "name", given.name(), kLongestName));
    WEIR_RETURN_IF_ERROR(CheckText(i, "value", given.value(), kLongestValue));
    if (!names.insert(given.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("fingerprints[", i, "].name: \"", given.name(), "\" is given twice"));
    }
    const auto found = declared_.find(given.name());
    if (found == declared_.end() || found->second.value == given.value()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the workers differ in ", given.name(), ": ", request.task(), " has ", given.value(),
                     ", and ", found->second.task, ", which joined before, has ", found->second.value,
                     ". Start every worker with the same program and the same data in the same order, and "
                     "not with a shard or "
                     "a random split of its own: Weir gives each worker other examples of one training set"));
  }
  return absl::OkStatus();
}

void Fingerprints::Declare(const v1::JoinRequest& request) {
  for (const v1::Fingerprint& given : request.fingerprints()) {
    declared_.emplace(given.name(), Declared{given.value(), request.task()});
  }
}

}  // namespace weir

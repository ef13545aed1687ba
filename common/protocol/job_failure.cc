#include "common/protocol/job_failure.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace weir {
namespace {

constexpr absl::string_view kDiverged = "training diverged";
constexpr absl::string_view kMisfit = "the job cannot run as it was started";
constexpr absl::string_view kStorage = "storage failed: ";

}  // namespace

std::string NonFiniteValue(absl::string_view what, float value) {
  if (std::isfinite(value)) return absl::StrCat(what, " is not finite");
  return absl::StrCat(what, " is ", std::isnan(value) ? "NaN" : value > 0 ? "Inf" : "-Inf");
}

std::string NonFinitePush(uint32_t worker, absl::string_view task, absl::string_view found, uint64_t clock) {
  return absl::StrCat("worker ", worker, " (", task, "): ", found, " at clock ", clock);
}

std::string Divergence(absl::string_view push) {
  return absl::StrCat(kDiverged, ": ", push,
                      "; try a lower optimizer.learning_rate, train.clip_norm or a warm-up");
}

bool IsDivergence(absl::string_view failure) { return absl::StartsWith(failure, kDiverged); }

std::string Misfit(absl::string_view why) { return absl::StrCat(kMisfit, ": ", why); }

std::string StorageFailure(absl::string_view why) { return absl::StrCat(kStorage, why); }

// ResourceExhausted alone may be want of memory.
bool IsStorageFailure(const absl::Status& status) {
  return absl::IsResourceExhausted(status) && absl::StrContains(status.message(), kStorage);
}

absl::Status JobFailure(absl::string_view failure) {
  if (IsDivergence(failure)) return absl::InternalError(failure);
  if (absl::StartsWith(failure, kMisfit)) return absl::FailedPreconditionError(failure);
  if (absl::StartsWith(failure, kStorage)) return absl::ResourceExhaustedError(failure);
  return absl::UnavailableError(failure);
}

}  // namespace weir

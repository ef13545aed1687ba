#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weir {

// The rules for the metrics of programs (v1.LoggedMetric), which both ends of the protocol keep.

// The names of one report, and of a job. Of these, those with histograms: a report fits into
// kMaxRequestBytes.
inline constexpr size_t kMaxLogged = 64, kMaxLoggedHistograms = 4;
// The intervals of a score in [0, 1].
inline constexpr size_t kScoreIntervals = 1024;

// InvalidArgument: names it, and says what is allowed.
absl::Status CheckMetricName(absl::string_view name);

// The area under the ROC curve; scores of one interval count as equal. nullopt: labels of one kind only.
std::optional<double> AucOf(absl::Span<const uint64_t> positives, absl::Span<const uint64_t> negatives);

}  // namespace weir

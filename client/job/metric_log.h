#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/types.h"
#include "proto/coordinator.pb.h"

namespace weir {

// The metrics that a member's program has logged since the member joined, for its reports to ps:0. A name
// keeps its kind. Not thread-safe.
class MetricLog {
 public:
  // As Client::Log() and Client::LogScores(), whose errors these are. `weight`: above 0. `clock`: of the
  // newest work.
  absl::Status Add(absl::Span<const LoggedValue> values, bool last, double weight, uint64_t clock);
  absl::Status AddScores(absl::string_view name, absl::Span<const float> scores,
                         absl::Span<const float> labels);

  void Describe(v1::WorkerReport* report) const;

 private:
  // InvalidArgument: this name cannot have a value of this kind, or be a further one beside `more` others.
  absl::Status Check(absl::string_view name, v1::LoggedMetric::Kind kind, size_t more) const;

  std::map<std::string, v1::LoggedMetric, std::less<>> metrics_;
};

}  // namespace weir

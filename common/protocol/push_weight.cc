#include "common/protocol/push_weight.h"

#include "absl/strings/str_cat.h"

namespace weir {

absl::Status CheckPushWeight(double weight, bool sync) {
  if (weight == 0) return absl::OkStatus();
  // NaN, too.
  if (!(weight > 0 && weight <= kMostPushWeight)) {
    return absl::InvalidArgumentError(absl::StrCat("weight: a push's weight in the mean of its step is ",
                                                   "above 0 and at most ", kMostPushWeight, "; got ",
                                                   weight));
  }
  if (sync) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "weight: got ", weight, ", but with consistency.mode \"bounded\" or \"async\" a push is ",
      "applied alone, so that there is no mean for it to have a weight in. Leave the weight out, "
      "or set consistency.mode to \"sync\""));
}

}  // namespace weir

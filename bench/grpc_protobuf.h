#pragma once

#include "bench/contestant.h"

namespace weir::bench {

// What most programmers would write first: a unary call whose request holds the gradient as protobuf `bytes`,
// and whose reply holds the weights.
absl::StatusOr<std::unique_ptr<StepServer>> StartProtobufServer(const Contestant& contestant, int index,
                                                                const std::string& host);
absl::StatusOr<std::unique_ptr<StepClient>> ConnectProtobufClient(const Contestant& contestant,
                                                                  const std::vector<std::string>& addresses);

}  // namespace weir::bench

#pragma once

#include "bench/contestant.h"

namespace weir::bench {

// The limits of look-ups of rows (bench/row_gather.h), which have no versions, checks or recovery.
//
// "bare rows": one thread gathers a batch in its own process.
absl::StatusOr<std::unique_ptr<StepClient>> ConnectBareRows(const Contestant& contestant, int index);

// "raw rows": the same gather at the other end of a plain TCP connection. A batch's keys are sent once each,
// as Weir's client does and with its sorting; the server gathers their rows in windows of
// Contestant::window_bytes, each of which is sent while the client puts the one before wherever its keys were
// asked for.
absl::StatusOr<std::unique_ptr<StepServer>> StartRawRowServer(const Contestant& contestant,
                                                              const std::string& host);
absl::StatusOr<std::unique_ptr<StepClient>> ConnectRawRows(const Contestant& contestant, int index,
                                                           const std::string& address);

}  // namespace weir::bench

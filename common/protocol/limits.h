#pragma once

#include <cstddef>
#include <cstdint>

// Limits that one end of the protocol keeps and the other checks. The limits of chunks stand in
// common/codec/wire_codec.h, those of a model in common/model/model_spec.h.
namespace weir {

// The largest message (proto/parameter_server.proto). Chunks hold at most 1 MiB, and a model's description
// must fit too; no message that a job needs is larger.
inline constexpr int kMaxMessageBytes = 4 << 20;
// The largest request other than a Join, whose model may be as large as a message: a request that names 1024
// ranges which a worker has completed. Also the largest message of an exchange, without its payload.
inline constexpr size_t kMaxRequestBytes = 64 << 10;
// The longest PushRequest.refused, which the shard keeps with its answer.
inline constexpr size_t kMaxRefusalBytes = 1000;

// The rows of one exchange with one shard, each way (common/protocol/row_layout.h).
inline constexpr uint64_t kMaxRowBytes = uint64_t{512} << 20;

// The ids of readers begin here; below are the ranks of workers (proto/model.proto, Caller).
inline constexpr uint32_t kFirstReader = 1u << 31;

// ps:0 hears of each task at least twice a second. A task of which it has heard nothing for so long stands
// still, or is cut off: ps:0 names it, long before its lease ends.
inline constexpr double kSilentSeconds = 3;

// train.divergence compares the mean losses of windows of batches (v1.LossWindow). The batches of a window,
// and of a worker's first window: training that diverges often does so from the start.
inline constexpr uint64_t kLossWindow = 50, kFirstLossWindow = 5;
// The most windows that one report has.
inline constexpr int kMaxLossWindows = 32;

}  // namespace weir

#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/codec/wire_codec.h"
#include "ps_server/shard/shard.h"

namespace weir {

// Takes one unit of a gradient.
inline absl::Status TakeUnit(PushArrival& arrival, const std::vector<float>& gradient, uint64_t unit) {
  const uint64_t first = unit * kChunkUnit;
  const absl::string_view bytes(reinterpret_cast<const char*>(&gradient[first]),
                                std::min<uint64_t>(kChunkUnit, gradient.size() - first) * sizeof(float));
  return arrival.TakeChunk(first, absl::MakeConstSpan(&bytes, 1), bytes.size()).status();
}

// Takes the chunks of a gradient in order, as they come off a wire. Returns the first error.
inline absl::Status TakeAll(PushArrival& arrival, const std::vector<float>& gradient) {
  const uint64_t chunk = kMaxChunkBytes / sizeof(float);
  for (uint64_t first = 0; first < gradient.size(); first += chunk) {
    const absl::string_view bytes(reinterpret_cast<const char*>(&gradient[first]),
                                  std::min<uint64_t>(chunk, gradient.size() - first) * sizeof(float));
    absl::Status status = arrival.TakeChunk(first, absl::MakeConstSpan(&bytes, 1), bytes.size()).status();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Pushes a gradient, from the header to the answer.
inline void PushWhole(Shard& shard, Shard::Session session, const v1::PushRequest& header,
                      std::vector<float> gradient, std::function<void(absl::StatusOr<v1::PushReply>)> done) {
  shard.Begin(session, header,
              [&shard, session, gradient = std::move(gradient), done](absl::StatusOr<PushBegin> begin) {
                if (!begin.ok()) return done(begin.status());
                if (auto* answer = absl::get_if<PushAnswer>(&*begin)) return done(answer->reply);
                auto arrival = absl::get<std::unique_ptr<PushArrival>>(*std::move(begin));
                if (absl::Status status = TakeAll(*arrival, gradient); !status.ok()) return done(status);
                shard.Push(session, std::move(arrival), [done](absl::StatusOr<PushAnswer> answer) {
                  done(answer.ok() ? absl::StatusOr<v1::PushReply>(answer->reply) : answer.status());
                });
              });
}

}  // namespace weir

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/codec/value_codec.h"
#include "common/codec/wire_codec.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// How values travel, from the job's WireConfig.
struct WireOptions {
  v1::Dtype push_dtype = v1::F32;
  uint32_t push_kept = 0;  // WireType::kept
  v1::Dtype pull_dtype = v1::F32;
  // Of a quantised push_dtype: what a push rounds away is added to the next.
  bool error_feedback = false;
  // Chunks may lie in memory that both sides share.
  bool shared_memory = false;
  // Chunks start and end at multiples of this (or at the shard's end). The protocol sets the value. A
  // simulation may take a smaller multiple of its models' block size, so that models of a few values have
  // chunks, too.
  int64_t chunk_unit = kChunkUnit;
  // Elements of the gradient in one message: a multiple of chunk_unit, at most kMaxChunkBytes of float32.
  int64_t chunk_elements = ChunkElements(kMaxChunkBytes / 1024);

  WireType push_type() const { return {push_dtype, push_kept}; }

  // For a push whose values must arrive as they are.
  WireOptions Exact() const {
    WireOptions exact = *this;
    exact.push_dtype = v1::F32;
    exact.push_kept = 0;
    return exact;
  }

  // `unit`: chunk_unit. A chunk has as many of these units as the config's has of the protocol's.
  static WireOptions From(const v1::WireConfig& config, int64_t unit = kChunkUnit) {
    const auto dtype = [](v1::WireConfig::Type type) {
      switch (type) {
        case v1::WireConfig::TYPE_BF16:
          return v1::BF16;
        case v1::WireConfig::TYPE_INT8:
          return v1::INT8;
        case v1::WireConfig::TYPE_INT4:
          return v1::INT4;
        case v1::WireConfig::TYPE_BIT1:
          return v1::BIT1;
        case v1::WireConfig::TYPE_TOPK:
          return v1::TOPK;
        case v1::WireConfig::TYPE_F32:
        case v1::WireConfig::TYPE_UNSPECIFIED:  // refused where configs are read
          break;
      }
      return v1::F32;
    };
    WireOptions options;
    options.push_dtype = dtype(config.has_push_dtype() ? config.push_dtype() : config.dtype());
    options.pull_dtype = dtype(config.has_pull_dtype() ? config.pull_dtype() : config.dtype());
    if (options.push_dtype == v1::TOPK) {
      const auto kept = static_cast<uint32_t>(std::lround(config.push_share() * kTopKBlockValues));
      options.push_kept = std::clamp<uint32_t>(kept, 1, kMostKept);
    }
    options.error_feedback = config.has_error_feedback()
                                 ? config.error_feedback()
                                 : IsQuantised(options.push_dtype) && options.push_dtype != v1::INT8;
    options.shared_memory = config.transport() == v1::WireConfig::TRANSPORT_AUTO ||
                            config.transport() == v1::WireConfig::TRANSPORT_SHARED_MEMORY;
    options.chunk_unit = unit;
    options.chunk_elements = ChunkElements(config.chunk_kib()) / kChunkUnit * unit;
    return options;
  }
};

}  // namespace weir

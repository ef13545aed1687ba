#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "client/exchange/shard_set.h"
#include "client/job/history.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// Writes the shards' answers to one worker into its history.
class HistoryObserver final : public ShardSet::Observer {
 public:
  HistoryObserver(const v1::Caller& caller, std::unique_ptr<History> history)
      : caller_(caller), history_(std::move(history)) {}

  void OnPush(const ShardSet::Push& push, uint32_t shard, const v1::PushReply& reply) override;
  void OnPull(const ShardSet::Pull& pull, uint32_t shard, const v1::PullReply& reply) override;
  // As History::Close().
  absl::Status Close() { return history_->Close(); }

 private:
  const v1::Caller caller_;
  const std::unique_ptr<History> history_;
};

}  // namespace weir

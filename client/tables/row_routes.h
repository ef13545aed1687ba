#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/tables/key_cuts.h"
#include "client/types.h"
#include "common/protocol/exchange_layout.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// The rows of one exchange on their ways to all shards and back (RowLayout). Sums the gradients of keys that
// occur several times, gives each shard its keys, and puts the answered rows where the caller wants them.
//
// All that is sent is copied here, once. Thread-safe: only Place() writes, to the caller's memory, for
// different shards to different places.
class RowRoutes {
 public:
  struct Types {
    v1::Dtype push = v1::F32;
    v1::Dtype pull = v1::F32;
  };
  // `cuts`: of these tables. `push` is read here; the memory of `pull` is written by Place().
  // InvalidArgument: a table that the job does not have, or that comes twice; a number of values other than
  // keys x dim; more than the rows of an exchange may have.
  static absl::StatusOr<std::shared_ptr<const RowRoutes>> Create(const std::vector<TableSpec>& tables,
                                                                 KeyCuts& cuts,
                                                                 absl::Span<const RowGradients> push,
                                                                 absl::Span<const RowsToRead> pull,
                                                                 const Types& types);

  // InvalidArgument: a sum of the push is NaN or infinite, or would be in the push's type; names the first
  // one by table, key and column. Then nothing of the push may be sent.
  const absl::Status& finite() const { return finite_; }

  // The entries of PushRequest and PullRequest that tell the shard of its rows.
  const RowLayout::Entries& push(uint32_t shard) const { return shards_[shard].push; }
  const RowLayout::Entries& pull(uint32_t shard) const { return shards_[shard].pull; }
  // The bytes that go to the shard: its part of the push, then from pull_at() on the keys of the pull. They
  // live as long as this.
  absl::Span<const char> request(uint32_t shard) const {
    return {shards_[shard].request.get(), shards_[shard].request_bytes};
  }
  uint64_t pull_at(uint32_t shard) const { return shards_[shard].pull_at; }
  // The length of the shard's answer.
  uint64_t reply_bytes(uint32_t shard) const { return shards_[shard].reply.bytes(); }

  // Returns whether a row of the shard's answer ends at this byte.
  // Requires: 0 < byte <= reply_bytes().
  bool RowEndsAt(uint32_t shard, uint64_t byte) const;
  // Writes the whole rows at [first, first + bytes) of the shard's answer, which lie in `pieces`, to wherever
  // their keys were asked for.
  void Place(uint32_t shard, uint64_t first, uint64_t bytes,
             absl::Span<const absl::string_view> pieces) const;

 private:
  // The keys of one table of a push or a pull.
  struct Cut {
    uint32_t table = 0;
    size_t dim = 0;
    std::shared_ptr<const KeyCut> keys;
  };
  struct Shard {
    RowLayout::Entries push, pull;
    std::unique_ptr<char[]> request;
    uint64_t request_bytes = 0, pull_at = 0;
    RowLayout reply;
    // By entry of `pull`: its position in pulled_.
    std::vector<size_t> pulled;
  };
  struct Pulled {
    Cut cut;
    float* values;
  };

  explicit RowRoutes(const Types& types) : types_(types) {}

  static absl::StatusOr<Cut> CutKeys(const std::vector<TableSpec>& tables, KeyCuts& cuts, const char* what,
                                     uint32_t table, absl::Span<const uint64_t> keys, size_t values);
  // Writes the shard's keys of a cut; returns the end of what was written.
  static char* WriteKeys(const Cut& cut, uint32_t shard, char* to);
  // Writes the shard's sums. Returns the position among them of the first value that is not finite; their
  // number: there is none, and all were written.
  size_t WriteSums(const Cut& cut, uint32_t shard, const float* gradients, char* to) const;
  // Fills finite_ with the first value of the table's sums that is not finite, which is of the batch's key-th
  // key.
  void Refuse(const std::string& table, const Cut& cut, const float* gradients, size_t key, size_t column);

  const Types types_;
  std::vector<Pulled> pulled_;
  std::vector<Shard> shards_;
  absl::Status finite_;
};

}  // namespace weir

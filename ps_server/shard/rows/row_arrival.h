#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/protocol/exchange_layout.h"
#include "google/protobuf/repeated_field.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// Keys of one table, each once, rising.
struct TableKeys {
  uint32_t table = 0;  // the position in JobConfig.tables
  size_t count = 0;
  std::unique_ptr<uint64_t[]> keys;

  absl::Span<const uint64_t> span() const { return {keys.get(), count}; }
};
// The rows that a pull asks for, by rising table.
using RowKeys = std::vector<TableKeys>;

// The gradients of a push's rows.
struct PushedRows {
  struct OfTable {
    TableKeys keys;
    size_t dim = 0;
    std::unique_ptr<float[]> gradients;  // dim for each key
  };
  std::vector<OfTable> tables;  // rising

  // The memory of these rows and their keys, in bytes.
  uint64_t size() const;

  // Views of these rows' memory, in the order of an exchange with float32 values (RowLayout).
  std::vector<absl::string_view> bytes() const;

  // The first value that is NaN or infinite; `what` as for NonFiniteValue().
  struct NonFinite {
    std::string what;
    float value = 0;
  };
  std::optional<NonFinite> non_finite;
};

// The answer to a pull's keys: the rows of one table after the other's, in float32.
struct ReadRows {
  std::shared_ptr<float> values;
};

// The rows of an exchange that are arriving (v1.Rows): the rows of its push, then the keys of its pull.
// Pieces are taken directly from the memory where they were received, and each byte is read once. Memory for
// a table is taken when its rows begin to come, and has no pages before it is filled.
//
// One thread at a time uses an arrival.
class RowArrival {
 public:
  using Tables = google::protobuf::RepeatedPtrField<v1::TableConfig>;

  // `layout`: of the exchange's request, whose push has this dtype. `tables`: the job's; outlive the arrival.
  RowArrival(const Tables& tables, RowLayout layout, v1::Dtype dtype);

  // Takes the next bytes, which begin at byte `first` of all. After an error the arrival is of no use.
  // InvalidArgument: these are not the next bytes, or there are too many, or keys do not rise.
  // ResourceExhausted: there is no memory for the rows.
  absl::Status Take(uint64_t first, absl::Span<const absl::string_view> pieces, uint64_t bytes);
  // The push is over before all of its rows have come. If the missing rows come, they are dropped; the next
  // piece may also begin with the pull's keys.
  void DropPush();

  uint64_t received() const { return at_; }
  uint64_t bytes() const { return layout_.bytes(); }
  bool whole() const { return at_ == bytes(); }

  // Call these once whole.
  PushedRows TakePush() { return std::move(push_); }
  RowKeys TakePull() { return std::move(pull_); }

 private:
  // A contiguous range of the bytes: the keys or the gradients of an entry.
  struct Section {
    enum class Kind { kPushKeys, kGradients, kPullKeys };
    Kind kind;
    size_t entry;  // of push_.tables or pull_
    uint64_t begin, end;
  };
  absl::Status Begin(const Section& section);
  // Takes bytes of the section, in which at_ lies.
  void Copy(const Section& section, absl::string_view bytes);
  // Checks the bytes of the section that have come, of which `from` bytes were checked before.
  absl::Status Check(const Section& section, uint64_t from);
  std::string NameOf(uint32_t table) const;
  TableKeys& KeysOf(const Section& section);

  const Tables& tables_;
  const RowLayout layout_;
  const v1::Dtype dtype_;
  std::vector<Section> sections_;
  size_t section_ = 0;  // of at_
  uint64_t at_ = 0;
  uint64_t pull_begin_ = 0;
  bool push_dropped_ = false;
  // The first bytes of a value that the border of two pieces cuts.
  std::array<char, sizeof(float)> cut_{};
  PushedRows push_;
  RowKeys pull_;
};

// The memory of a push's rows, in bytes: they are kept in float32, whatever their type on the wire.
uint64_t BytesOfRows(const RowArrival::Tables& tables, const v1::PushRequest& push);

// The rows that a push names, from PushedRows::bytes(). InvalidArgument: `bytes` are not such rows.
absl::StatusOr<PushedRows> RowsFromBytes(const RowArrival::Tables& tables, const v1::PushRequest& push,
                                         absl::string_view bytes);

}  // namespace weir

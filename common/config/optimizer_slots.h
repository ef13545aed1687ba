#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// The values that an optimizer keeps for each weight, in its own order. The names are in checkpoints, so they
// must never change.
inline std::vector<const char*> OptimizerSlots(const v1::OptimizerConfig& config) {
  switch (config.type()) {
    case v1::OptimizerConfig::KIND_MOMENTUM:
    case v1::OptimizerConfig::KIND_NESTEROV:
      return {"momentum"};
    case v1::OptimizerConfig::KIND_ADAGRAD:
      return {"accumulator"};
    case v1::OptimizerConfig::KIND_RMSPROP:
      return {"mean_square"};
    case v1::OptimizerConfig::KIND_ADAM:
    case v1::OptimizerConfig::KIND_ADAMW:
      if (config.amsgrad()) return {"m", "v", "v_max"};
      return {"m", "v"};
    case v1::OptimizerConfig::KIND_LAMB:
      return {"m", "v"};
    case v1::OptimizerConfig::KIND_LION:
      return {"m"};
    case v1::OptimizerConfig::KIND_SGD:
    case v1::OptimizerConfig::KIND_UNSPECIFIED:
      break;
  }
  return {};
}

// A slot that the optimizer of a table keeps beside a row's values, in the optimizer's order.
struct RowSlotKind {
  enum class Words {
    kOfValues,  // a float32 for each value
    kOfRow,     // one for the row
    kCount,     // one for the row, a uint32
  };
  const char* name;
  Words words;
};
inline std::vector<RowSlotKind> TableRowSlots(v1::TableOptimizer::Kind kind) {
  using Words = RowSlotKind::Words;
  switch (kind) {
    case v1::TableOptimizer::KIND_MOMENTUM:
      return {{"momentum", Words::kOfValues}};
    case v1::TableOptimizer::KIND_ADAGRAD:
      return {{"accumulator", Words::kOfValues}};
    case v1::TableOptimizer::KIND_ROWWISE_ADAGRAD:
      return {{"accumulator", Words::kOfRow}};
    case v1::TableOptimizer::KIND_ADAM:
    case v1::TableOptimizer::KIND_ADAMW:
      return {{"m", Words::kOfValues}, {"v", Words::kOfValues}, {"updates", Words::kCount}};
    case v1::TableOptimizer::KIND_FTRL:
      return {{"z", Words::kOfValues}, {"n", Words::kOfValues}};
    case v1::TableOptimizer::KIND_SGD:
    case v1::TableOptimizer::KIND_UNSPECIFIED:
      break;
  }
  return {};
}

// The words of a table's row, 4 bytes each: its values, and what the optimizer keeps beside them.
inline uint64_t TableRowValues(const v1::TableConfig& table) {
  uint64_t words = table.dim();
  for (const RowSlotKind& slot : TableRowSlots(table.optimizer().type())) {
    words += slot.words == RowSlotKind::Words::kOfValues ? table.dim() : 1;
  }
  return words;
}

// Adds to `row` what the optimizer of its table keeps beside the row's values, by name. `words`: those of
// TableRowSlots(), in their order. Words of another number, as of a file by somebody else, become one slot
// "slots".
void AddRowSlots(const v1::TableConfig& table, absl::Span<const float> words, v1::RowState* row);

}  // namespace weir

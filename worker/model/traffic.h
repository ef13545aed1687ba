#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/data/dataset.h"

// The weights, gradients and rows of tables that a model gets and gives while it computes.
namespace weir {

// How weights and gradients come and go while a gradient is computed (Model::ForwardBackward). By default all
// weights are there and have changed, and the pass completes the gradient.
struct Traffic {
  // The weights differ from those of the pass before.
  bool new_weights = true;
  // If set, called for each layer with new weights, in forward's order, before the weights of the tensors
  // [first, end) are read. Returns once they are there. An error ends the pass with that error.
  std::function<absl::Status(size_t first, size_t end)> await_weights;
  // No other pass will add to the gradient. Otherwise the gradient may stay on the device, and the functions
  // below are not called.
  bool last = true;
  // If set, called between forward, which has asked for all weights, and backward. An error ends the pass.
  std::function<absl::Status()> forward_done;
  // If set, called when the whole pass is queued on a device that computes meanwhile: for Model::Prepare().
  std::function<void()> queued;
  // If set, called again and again while the device computes the last backward, until it returns the weights
  // of the next pass with new weights; they may not be there yet. They are copied to the device meanwhile
  // (DeviceOptions::weights_ahead), and kept until a pass has begun with these or other new weights.
  std::function<std::shared_ptr<const float>()> next_weights;
  // If set, called with the index (in the model's spec) of each tensor whose gradient is complete where the
  // host reads it, from the last to the first, as the backward pass proceeds.
  std::function<void(size_t tensor)> gradient_ready;
};

// Where an embedding layer has its rows from.
struct EmbeddingSource {
  uint32_t table = 0;  // the position in JobConfig.tables
  int64_t dim = 0;
  size_t column = 0;  // the position in Dataset::keys
};

// The rows of one table that some examples name, each key once, in the order of its first occurrence.
struct TableRows {
  uint32_t table = 0;
  int64_t dim = 0;
  std::vector<uint64_t> keys;
  absl::flat_hash_map<uint64_t, size_t> positions;  // of each key
  std::vector<float> values;                        // [keys, dim]; the reader's to fill
};

// The gradients of rows, table by table as in a list of TableRows: [keys, dim] each.
using RowGradientValues = std::vector<std::vector<float>>;

// The rows that the examples at `indexes` need for these layers, one entry for each table, by position.
std::vector<TableRows> RowsFor(absl::Span<const EmbeddingSource> sources, const Dataset& data,
                               absl::Span<const int32_t> indexes);
// The rows that all examples need.
std::vector<TableRows> RowsForAll(absl::Span<const EmbeddingSource> sources, const Dataset& data);

}  // namespace weir

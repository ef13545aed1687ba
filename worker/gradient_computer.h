#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/types.h"
#include "common/model/model_spec.h"
#include "worker/model/traffic.h"

namespace weir {

// The rows that the gradient of one piece of work is computed from, and the gradient's part for these rows.
// Not thread-safe.
struct WorkRows {
  uint64_t first_example = 0, examples = 0;  // of the work
  std::vector<TableRows> tables;
  RowGradientValues gradients;  // empty until they are computed

  bool IsFor(const Work& work) const {
    return first_example == work.first_example && examples == work.examples;
  }
};

// The rows, to be read into their own memory. A table of which no example names a row is left out.
inline std::vector<RowsToRead> ToRead(std::vector<TableRows>* tables) {
  std::vector<RowsToRead> rows;
  for (TableRows& table : *tables) {
    if (!table.keys.empty()) rows.push_back({table.table, table.keys, absl::MakeSpan(table.values)});
  }
  return rows;
}

// The gradients of rows.tables.
inline std::vector<RowGradients> GradientsOf(const WorkRows& rows) {
  std::vector<RowGradients> gradients;
  for (size_t i = 0; i < rows.tables.size(); ++i) {
    const TableRows& table = rows.tables[i];
    if (!table.keys.empty()) gradients.push_back({table.table, table.keys, rows.gradients[i]});
  }
  return gradients;
}

// Computes the gradients of a job's work, one at a time. A training loop knows models, devices and data only
// through this class. Not thread-safe.
class GradientComputer {
 public:
  virtual ~GradientComputer() = default;

  virtual const ModelSpec& spec() const = 0;
  // Examples in the training set.
  virtual uint64_t train_examples() const = 0;

  // Host memory for spec().elements() floats, uninitialized: for weights that arrive and gradients that
  // leave. The memory goes back when its last owner releases it, on any thread, and may outlive the computer.
  // ResourceExhausted.
  virtual absl::StatusOr<std::shared_ptr<float>> TakeMemory() = 0;
  // Whether gradients are made in the host's memory, in any part of it. False: gradients are copied there
  // from a device, fastest to memory from TakeMemory().
  virtual bool on_host() const = 0;

  // The rows of embedding tables that the work's gradient is computed from, without their values; null: the
  // model has none. They hold no memory of this object.
  virtual std::shared_ptr<WorkRows> RowsOf(const Work&) { return nullptr; }
  // The work that is likely to follow this one, which is at hand or was computed last; nullopt: the job ends,
  // as far as can be told.
  virtual std::optional<Work> LikelyNext(const Work&) { return std::nullopt; }

  // Computes the gradient of the mean loss over the work's examples, clipped if the job's config says so.
  // `weights` and `gradient` are all tensors of spec(), end to end. `rows`: RowsOf(work) with their values,
  // whose gradients are set; null if there are none. Returns the sum of the losses. `traffic` is as in
  // Model::ForwardBackward(), for the whole gradient (`last` and `queued` do not matter). Several threads may
  // call await_weights and next_weights at once; the other functions are called one at a time, forward_done
  // before any gradient_ready. An error is a device's or the traffic's; then the memory is not in use any
  // more.
  virtual absl::StatusOr<double> Compute(const Work& work, float* weights, float* gradient, WorkRows* rows,
                                         const Traffic& traffic) = 0;
  // The tensors to push for the gradient that Compute() is making, or made last.
  virtual std::vector<ConstTensor> Gradient() = 0;
};

}  // namespace weir

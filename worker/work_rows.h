#pragma once

#include <cstdint>
#include <vector>

#include "client/types.h"
#include "worker/model/table_rows.h"

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
std::vector<RowsToRead> ToRead(std::vector<TableRows>* tables);
// The gradients of rows.tables.
std::vector<RowGradients> GradientsOf(const WorkRows& rows);

}  // namespace weir

#include "worker/gradient_computer.h"

#include <cstddef>

#include "absl/types/span.h"

namespace weir {

std::vector<RowsToRead> ToRead(std::vector<TableRows>* tables) {
  std::vector<RowsToRead> rows;
  for (TableRows& table : *tables) {
    if (!table.keys.empty()) rows.push_back({table.table, table.keys, absl::MakeSpan(table.values)});
  }
  return rows;
}

std::vector<RowGradients> GradientsOf(const WorkRows& rows) {
  std::vector<RowGradients> gradients;
  for (size_t i = 0; i < rows.tables.size(); ++i) {
    const TableRows& table = rows.tables[i];
    if (!table.keys.empty()) gradients.push_back({table.table, table.keys, rows.gradients[i]});
  }
  return gradients;
}

}  // namespace weir

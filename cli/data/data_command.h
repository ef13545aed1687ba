#pragma once

#include <cstdint>
#include <string>

#include "cli/data/click_log.h"

namespace weir {

struct DataClicksOptions {
  std::string directory;
  uint64_t rows = 100000;      // to train
  uint64_t test_rows = 20000;  // the rows after them
  ClickLogOptions log;
};

// `weir data clicks`: writes DIR/train.csv and DIR/test.csv, and prints what a model can reach. Returns the
// exit code.
int RunDataClicks(const DataClicksOptions& options);

}  // namespace weir

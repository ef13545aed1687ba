#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace weir {

// The flags that the benchmarks of a worker's step share: an MLP with two hidden layers, on one device.
struct MlpFlags {
  std::string device = "cuda:0";
  int64_t inputs = 784, width = 4096, batch = 1024;
  double seconds = 2;  // of each measurement, roughly

  void AddTo(CLI::App* app);
};

// Prints the error, and returns its exit code; 0 for OK.
int ReportEnd(const absl::Status& status);

}  // namespace weir

#pragma once

#include <cstdlib>
#include <utility>

#include "worker/data/load_data.h"

namespace weir {

// The digits, which are part of the program.
inline const Datasets& Digits() {
  static const Datasets* const digits = [] {
    v1::DataConfig config;
    config.set_format(v1::DataConfig::FORMAT_DIGITS);
    auto data = LoadData(config, ".", v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY);
    if (!data.ok()) std::abort();
    return new Datasets(*std::move(data));
  }();
  return *digits;
}

}  // namespace weir

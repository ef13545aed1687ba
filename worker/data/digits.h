#pragma once

#include "worker/data/load_data.h"

namespace weir {

constexpr float kDigitsScale = 1.0f / 16;

// The 1,797 handwritten digits of UCI optdigits that are compiled in (worker/data/digits/README.md): images
// of [1, 8, 8] with values 0 .. 16 times `scale`, 10 classes. The file orders them by writer, so they are
// shuffled first, the same way every time. Then the first 1,500 are for training and the last 297 for the
// test.
DatasetPair LoadDigits(float scale);

}  // namespace weir

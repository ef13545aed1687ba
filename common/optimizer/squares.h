#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/exact_sum.h"
#include "common/optimizer/kernel_table.h"

namespace weir {

// Adds the squares of n elements of one tensor to a sum. The elements begin at this position of the model's
// address space.
//
// Each term of the sum is of the elements that lie in one run of kSquaresRun positions, aligned in the
// address space. The borders of blocks are borders of such runs (common/model/partition.h), so the terms do
// not depend on how many shards hold the tensor. `n` elements must end at such a border, too, or at the
// tensor's end.
void AddSquares(const Kernels& kernels, const float* values, int64_t position, size_t n, ExactSum* sum);

}  // namespace weir

#pragma once

#include <cstdint>
#include <functional>

namespace emulated_cuda {

// Runs `body` in n fibers of the calling thread, which switch at Yield. `enter(i)` is called whenever fiber i
// continues. Between two yields the fibers run one after another in an order that `seed` decides. False: some
// fibers ended while others yielded, which a barrier does not allow.
bool RunFibers(unsigned n, uint64_t seed, const std::function<void(unsigned)>& enter,
               const std::function<void()>& body);

// Called in a fiber: the others run until all have yielded.
void Yield();

}  // namespace emulated_cuda

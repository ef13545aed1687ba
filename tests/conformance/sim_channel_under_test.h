#pragma once

#include <memory>

#include "tests/conformance/channel_under_test.h"

namespace weir {

// The simulation's channel, over its network. The shard's process is a simulated one.
std::unique_ptr<ChannelUnderTest> MakeSimChannelUnderTest(bool shared_memory);

}  // namespace weir

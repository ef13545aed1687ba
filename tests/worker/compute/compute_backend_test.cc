#include "worker/compute/compute_backend.h"

#include "catch2/catch.hpp"
#include "tests/worker/compute/compute_conformance.h"
#include "tests/worker/compute/queued_backend.h"

namespace weir {
namespace {

TEST_CASE("The CPU backend conforms") {
  CheckComputeBackend([] { return *MakeComputeBackend("cpu", 1); });
}

TEST_CASE("A device with memory and time of its own fits the interface") {
  CheckComputeBackend(MakeQueuedBackend);
}

TEST_CASE("A backend that is not there is refused by name") {
  CHECK(MakeComputeBackend("tpu", 1).status().message() ==
        "compute device 'tpu' is not in this build; it has 'cpu'");
  CHECK(MakeComputeBackend("cpu", 0).status().message() == "compute.threads is 0; it must be at least 1");
}

}  // namespace
}  // namespace weir

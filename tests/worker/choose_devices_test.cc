#include <cstdlib>

#include "catch2/catch.hpp"
#include "worker/replicas.h"

namespace weir {
namespace {

using Names = std::vector<std::string>;

absl::StatusOr<std::vector<int>> NoGpu() {
  return absl::FailedPreconditionError("no NVIDIA driver was found");
}
absl::StatusOr<std::vector<int>> TwoGpus() { return std::vector<int>{1, 3}; }

uint32_t RankOf(const char* task, const std::string& cluster) {
  const std::string config = R"({"cluster": )" + cluster + R"(, "task": )" + task + "}";
  const auto environment = FromEnvironment(config.c_str(), "", "", {});
  INFO(environment.status().message());
  REQUIRE(environment.ok());
  return LocalRank(*environment);
}

TEST_CASE("auto takes the usable device of the local rank") {
  CHECK(ChooseDevices("auto", Precision::kTf32, 0, TwoGpus)->names == Names{"cuda:1"});
  CHECK(ChooseDevices("auto", Precision::kFloat32, 1, TwoGpus)->names == Names{"cuda:3"});
  CHECK(ChooseDevices("auto", Precision::kFloat32, 2, TwoGpus)->names == Names{"cuda:1"});
  CHECK(ChooseDevices("auto", Precision::kFloat32, 1, TwoGpus)->reason ==
        "2 devices to use, this is worker 1 of the host");
}

TEST_CASE("auto without a GPU is the CPU, in float32") {
  const auto chosen = ChooseDevices("auto", Precision::kFloat32, 3, NoGpu);
  CHECK(chosen->names == Names{"cpu"});
  CHECK(chosen->reason == "no GPU: no NVIDIA driver was found");
  CHECK(
      ChooseDevices("auto", Precision::kBfloat16, 0, NoGpu).status() ==
      absl::FailedPreconditionError(
          "compute.precision is bf16, which needs a GPU, and --device=auto finds none: no NVIDIA driver was "
          "found; take compute.precision out to train on the CPU"));
}

TEST_CASE("A named device is taken as it is") {
  const auto never = []() -> absl::StatusOr<std::vector<int>> { std::abort(); };
  CHECK(ChooseDevices("cuda:7,cuda:7", Precision::kFloat32, 1, never)->names == Names{"cuda:7", "cuda:7"});
  CHECK(ChooseDevices("cpu", Precision::kFloat32, 1, never)->names == Names{"cpu"});
  CHECK(ChooseDevices("gpu", Precision::kFloat32, 1, never).status().code() ==
        absl::StatusCode::kInvalidArgument);
}

TEST_CASE("The local rank counts the workers before this one on its host") {
  const std::string cluster =
      R"({"ps": ["a:1"], "chief": ["b:1"], "worker": ["a:2", "b:2", "A:3", "b:3"], "evaluator": ["b:4"]})";
  CHECK(RankOf(R"({"type": "chief", "index": 0})", cluster) == 0);
  CHECK(RankOf(R"({"type": "worker", "index": 0})", cluster) == 0);
  CHECK(RankOf(R"({"type": "worker", "index": 1})", cluster) == 1);
  CHECK(RankOf(R"({"type": "worker", "index": 2})", cluster) == 1);
  CHECK(RankOf(R"({"type": "worker", "index": 3})", cluster) == 2);
  CHECK(RankOf(R"({"type": "evaluator", "index": 0})", cluster) == 3);
  CHECK(RankOf(R"({"type": "worker", "index": 5})", R"({"worker": {"5": "b:2"}, "ps": ["a:1"]})") == 5);
  CHECK(LocalRank(std::nullopt) == 0);
}

}  // namespace
}  // namespace weir

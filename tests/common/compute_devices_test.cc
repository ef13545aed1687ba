#include "catch2/catch.hpp"
#include "common/config/written_text.h"

namespace weir {
namespace {

using Names = std::vector<std::string>;
using Catch::Contains;

TEST_CASE("A device, or a list of one kind") {
  CHECK(*ParseDevices("auto") == Names{"auto"});
  CHECK(*ParseDevices("cpu") == Names{"cpu"});
  CHECK(*ParseDevices("cpu,cpu") == Names{"cpu", "cpu"});
  CHECK(*ParseDevices("cuda:0") == Names{"cuda:0"});
  CHECK(*ParseDevices("cuda:1,cuda:0,cuda:1") == Names{"cuda:1", "cuda:0", "cuda:1"});
}

TEST_CASE("Anything else is refused with what is allowed") {
  for (const char* text :
       {"", "tpu", "cuda", "cuda:", "cuda:-1", "cuda:01", "cuda:9999", "CPU", "cpu,", "cpu cpu"}) {
    INFO(text);
    const auto status = ParseDevices(text).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(std::string(status.message()), Contains("is not known") && Contains("auto, cpu and cuda:N"));
  }
  CHECK_THAT(std::string(ParseDevices("cpu,cuda:0").status().message()), Contains("mixes kinds"));
  CHECK_THAT(std::string(ParseDevices("cuda:0,auto").status().message()), Contains("stands alone"));
  std::string many = "cpu";
  for (int i = 0; i < 64; ++i) many += ",cpu";
  CHECK_THAT(std::string(ParseDevices(many).status().message()), Contains("65 replicas, 64 is the most"));
}

}  // namespace
}  // namespace weir

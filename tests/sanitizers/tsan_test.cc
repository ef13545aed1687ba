#include <string>

#include "catch2/catch.hpp"
#include "common/system/subprocess.h"

// The settings of //bazel/sanitizers for ThreadSanitizer and gRPC must not hide races in gRPC's callbacks.
namespace weir {
namespace {

using Catch::Matchers::Contains;

#ifdef WEIR_TSAN
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

CommandResult Run(const std::string& kind) {
  Subprocess::Options options;
  options.args = {"tests/sanitizers/grpc_race", kind};
  auto result = RunCommand(std::move(options), std::chrono::seconds(60));
  REQUIRE(result.ok());
  return *std::move(result);
}

TEST_CASE("what is written before a call starts is there in its callback") {
  const CommandResult result = Run("none");
  CHECK(result.exit.ok());
  CHECK(result.output == "ran to its end\n");
}

TEST_CASE("a race in gRPC's callbacks is reported") {
  const std::string kind = GENERATE("between-callbacks", "after-the-start");
  const CommandResult result = Run(kind);
  CAPTURE(kind);
  if (kTsan) {
    CHECK(result.exit.code == 66);
    CHECK_THAT(result.output, Contains("data race") && Contains("shared_value"));
  } else {
    CHECK(result.exit.ok());
  }
}

}  // namespace
}  // namespace weir

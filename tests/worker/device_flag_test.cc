// --device and compute.precision as a user sees them: the worker as a process, with the whole job in it.
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "catch2/catch.hpp"
#include "common/cuda/cuda_device.h"
#include "common/program/exit_codes.h"
#include "common/system/subprocess.h"
#include "common/threads/mutex.h"
#include "tests/skip.h"

namespace weir {
namespace {

using Catch::Contains;

struct Ended {
  int status = 0;
  std::string output;
};

Ended Run(std::vector<std::string> args) {
  Ended ended;
  Mutex mutex;
  Subprocess::Options options;
  options.args = {"worker/worker", "--config=configs/digits.json", "--set", "train.epochs=1"};
  options.args.insert(options.args.end(), args.begin(), args.end());
  options.on_line = [&](absl::string_view line) {
    MutexLock lock(mutex);
    ended.output.append(line.data(), line.size()).append("\n");
  };
  auto process = Subprocess::Start(std::move(options));
  REQUIRE(process.ok());
  const auto exit = (*process)->Wait(std::chrono::steady_clock::now() + std::chrono::seconds(60));
  REQUIRE(exit.has_value());
  process->reset();
  ended.status = exit->status();
  return ended;
}

std::string HashOf(std::vector<std::string> args) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/summary.json";
  args.push_back("--summary=" + path);
  const Ended ended = Run(args);
  INFO(ended.output);
  REQUIRE(ended.status == kExitOk);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string key = "\"weights_sha256\":";
  const size_t at = text.str().find(key);
  REQUIRE(at != std::string::npos);
  const size_t begin = text.str().find('"', at + key.size()) + 1;
  return text.str().substr(begin, 64);
}

TEST_CASE("The CPU trains whether it is named, found, or a list") {
  const std::string hash = HashOf({"--device=cpu"});
  CHECK(HashOf({"--device=cpu", "--set", "compute.precision=float32"}) == hash);
  const std::string two = HashOf({"--device=cpu,cpu"});
  CHECK(two != hash);  // sums in another order
  CHECK(HashOf({"--device=cpu,cpu"}) == two);
}

TEST_CASE("Without a GPU auto takes the CPU and says so once") {
  if (cuda::UsableDevices().ok()) {
    SaySkipped("this host has a GPU");
    return;
  }
  const std::string why(cuda::UsableDevices().status().message());
  const Ended ended = Run({});
  CHECK(ended.status == kExitOk);
  CHECK_THAT(ended.output, Contains("computing on cpu (no GPU: " + why + ")"));
  CHECK(ended.output.find(why) == ended.output.rfind(why));

  const Ended tf32 = Run({"--set", "compute.precision=tf32"});
  CHECK(tf32.status == kExitConfig);
  CHECK_THAT(tf32.output, Contains("compute.precision is tf32") && Contains(why));
  const Ended named = Run({"--device=cuda:0"});
  CHECK(named.status == kExitConfig);
  CHECK_THAT(named.output, Contains("compute device 'cuda:0' cannot be used: ") &&
                               Contains(std::string(cuda::Probe().status().message())));
}

TEST_CASE("What cannot be is refused") {
  const Ended unknown = Run({"--device=tpu"});
  CHECK(unknown.status == kExitUsage);
  CHECK_THAT(unknown.output, Contains("the device 'tpu' is not known"));
  const Ended bf16 = Run({"--device=cpu", "--set", "compute.precision=bf16"});
  CHECK(bf16.status == kExitConfig);
  CHECK_THAT(bf16.output,
             Contains("compute.precision is bf16, but the device 'cpu' computes in float32 alone"));
  const Ended word = Run({"--set", "compute.precision=fp8"});
  CHECK(word.status == kExitConfig);
  CHECK_THAT(word.output, Contains("compute.precision") && Contains("bf16"));
}

}  // namespace
}  // namespace weir

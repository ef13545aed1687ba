#include "common/config/written_text.h"

#include <cstdlib>
#include <string>

#include "catch2/catch.hpp"

namespace weir {
namespace {

using Catch::Contains;

std::string Refusal(const std::string& path) {
  const auto checked = CheckedPath(path);
  CHECK_FALSE(checked.ok());
  CHECK(ExpandedPath(path).status() == checked.status());
  return std::string(checked.status().message());
}

TEST_CASE("A path is taken as people write it") {
  setenv("HOME", "/home/ann", 1);
  const struct {
    std::string written, checked, expanded;
  } cases[] = {
      {"", "", ""},
      {"/a/b", "/a/b", "/a/b"},
      {"a/~/b$", "a/~/b$", "a/~/b$"},
      {"cost$5", "cost$5", "cost$5"},
      {"./~ann", "./~ann", "./~ann"},
      {"a:b", "a:b", "a:b"},
      {"~", "~", "/home/ann"},
      {"~/runs/7", "~/runs/7", "/home/ann/runs/7"},
      {"file:///a/b", "/a/b", "/a/b"},
      {"file://localhost/a", "/a", "/a"},
      {"s3://bucket/runs", "s3://bucket/runs", "s3://bucket/runs"},
      {"dns:ps=weir-ps:2,worker=w:2", "dns:ps=weir-ps:2,worker=w:2", "dns:ps=weir-ps:2,worker=w:2"},
  };
  for (const auto& c : cases) {
    INFO(c.written);
    CHECK(CheckedPath(c.written).value_or("refused") == c.checked);
    CHECK(ExpandedPath(c.written).value_or("refused") == c.expanded);
  }
}

TEST_CASE("What only a shell replaces, and other schemes, are refused by name") {
  setenv("HOME", "/home/ann", 1);
  CHECK_THAT(Refusal("$HOME/runs"),
             Contains("\"$HOME/runs\" has $HOME in it") && Contains("write its value"));
  CHECK_THAT(Refusal("/data/${RUN}/x"), Contains("has ${RUN} in it"));
  CHECK_THAT(Refusal("/data/$(date)"), Contains("has $(date) in it"));
  CHECK_THAT(Refusal("/data/$"
                     "RUN_7-x"),
             Contains("has $RUN_7 in it"));
  CHECK_THAT(Refusal("s3://bucket/$RUN"), Contains("has $RUN in it"));
  CHECK_THAT(Refusal("file:///${HOME}"), Contains("has ${HOME} in it"));
  CHECK_THAT(Refusal("~bob/runs"), Contains("begins with ~bob") && Contains("./~bob"));
  for (const std::string scheme : {"gs", "hdfs", "S3", "abfs+x", "http"}) {
    CHECK_THAT(Refusal(scheme + "://bucket/runs"),
               Contains("begins with " + scheme + ":") && Contains("s3://BUCKET/PREFIX"));
  }
  CHECK_THAT(Refusal("s3:/bucket/runs"), Contains("begins with s3:"));
  CHECK_THAT(Refusal("file:/a"), Contains("begins with file:") && Contains("file:///PATH"));
  CHECK_THAT(Refusal("file://server/a"), Contains("names a host"));
  CHECK_THAT(Refusal("file://a/b"), Contains("names a host"));
  CHECK_THAT(Refusal("file:///a%20b"), Contains("%"));
}

TEST_CASE("Without HOME there is no home folder") {
  unsetenv("HOME");
  CHECK_THAT(std::string(ExpandedPath("~/x").status().message()), Contains("\"~/x\"") && Contains("HOME"));
  CHECK(CheckedPath("~/x").ok());
  CHECK(ExpandedPath("/x").ok());
}

// ---- devices

TEST_CASE("A device, or a list of one kind") {
  CHECK(*ParseDevices("auto") == std::vector<std::string>{"auto"});
  CHECK(*ParseDevices("cpu") == std::vector<std::string>{"cpu"});
  CHECK(*ParseDevices("cpu,cpu") == std::vector<std::string>{"cpu", "cpu"});
  CHECK(*ParseDevices("cuda:0") == std::vector<std::string>{"cuda:0"});
  CHECK(*ParseDevices("cuda:1,cuda:0,cuda:1") == std::vector<std::string>{"cuda:1", "cuda:0", "cuda:1"});
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

// Lists of hosts, where workers go, and the messages between `weir up` and its agents.
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "cli/hosts/host_list.h"
#include "cli/hosts/host_message.h"

namespace weir {
namespace {

using Catch::Contains;

std::string FileWith(const std::string& text) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/hosts";
  std::ofstream(path) << text;
  return path;
}

TEST_CASE("hosts come from a list or a file") {
  const auto list = ReadHosts("a,ann@b");
  REQUIRE(list.ok());
  REQUIRE(list->size() == 2);
  CHECK((*list)[1].name == "ann@b");
  CHECK(!(*list)[1].slots.has_value());
  CHECK(CountSlots(*list) == 2);
  CHECK(ReadHosts("a")->size() == 1);

  const auto file =
      ReadHosts(FileWith("# two\n\na slots=4 gpus=2  # fast\n  localhost address=10.0.0.7\tgpus=0\n"));
  REQUIRE(file.ok());
  REQUIRE(file->size() == 2);
  const Host &a = (*file)[0], &here = (*file)[1];
  CHECK((a.name == "a" && a.slots == 4 && a.gpus == 2 && a.address.empty() && !a.is_here()));
  CHECK((here.is_here() && here.address == "10.0.0.7" && here.gpus == 0 && !here.slots.has_value()));
  CHECK(CountSlots(*file) == 5);
}

TEST_CASE("a bad host is refused with its line and what is allowed") {
  const auto refused = [](const std::string& text) {
    return std::string(ReadHosts(text).status().message());
  };
  CHECK_THAT(refused("a,"), Contains("--hosts: '' does not begin with a host's name"));
  CHECK_THAT(refused("-oProxyCommand=x,b"), Contains("does not begin with a host's name"));
  CHECK_THAT(refused("a,b,a"), Contains("a is there twice; slots=N asks for more workers"));
  CHECK_THAT(refused(FileWith("a\nb slots=0\n")),
             Contains("hosts:2: 'slots=0': slots is a whole number from 1 to 256"));
  CHECK_THAT(refused(FileWith("a gpus=-1\n")),
             Contains("hosts:1: 'gpus=-1': gpus is a whole number from 0 to 256"));
  CHECK_THAT(refused(FileWith("a cpus=3\n")),
             Contains("'cpus=3': behind a host's name there may be slots=N"));
  CHECK_THAT(refused(FileWith("slots=3\n")),
             Contains("hosts:1: 'slots=3' does not begin with a host's name"));
  CHECK_THAT(refused(FileWith("# none\n")), Contains("there is no host in it"));
  CHECK_THAT(refused("./none"), Contains("./none"));
}

TEST_CASE("hosts take workers in turns while they have slots") {
  const auto where = [](const std::string& text, int workers) {
    return *PlaceWorkers(*ReadHosts(FileWith(text)), workers);
  };
  CHECK(where("a\nb\n", 5) == std::vector<int>{0, 0, 0, 1, 1});
  CHECK(where("a slots=1\nb\nc slots=2\n", 7) == std::vector<int>{0, 1, 1, 1, 1, 2, 2});
  CHECK(where("a\nb\n", 1) == std::vector<int>{0});
  const auto many = PlaceWorkers(*ReadHosts(FileWith("a slots=1\nb slots=2\n")), 4);
  CHECK_THAT(std::string(many.status().message()), Contains("4 workers, but the hosts have 3 slots"));
}

TEST_CASE("a message keeps its fields, and a line that is none is told apart") {
  const std::vector<std::string> fields = {"line", "", "tab\t, line\n, \\, \"quoted\", \xff, \xc3\xa9",
                                           "end"};
  std::string line = EncodeMessage(fields);
  REQUIRE(line.back() == '\n');
  line.pop_back();
  CHECK(line.find('\n') == std::string::npos);
  REQUIRE(DecodeMessage(line).has_value());
  CHECK(*DecodeMessage(line) == fields);
  CHECK(!DecodeMessage("Welcome to host b!").has_value());
  CHECK(!DecodeMessage("weir-host\tline\t\\x").has_value());
  // An agent's longest piece fits a line of Subprocess, whatever is in it.
  CHECK(EncodeMessage({"line", "evaluator:0", std::string(kLongestPiece, '\xff')}).size() < 65536);
}

}  // namespace
}  // namespace weir

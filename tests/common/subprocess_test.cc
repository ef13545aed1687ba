#include "common/system/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"

namespace weir {
namespace {

using std::chrono::seconds;

std::chrono::steady_clock::time_point In(seconds s) { return std::chrono::steady_clock::now() + s; }

Subprocess::Options Shell(const std::string& script) {
  Subprocess::Options options;
  options.args = {"sh", "-c", script};
  return options;
}

std::string Output(Subprocess::Options options) {
  const auto result = RunCommand(std::move(options), seconds(60));
  REQUIRE(result.ok());
  CHECK(result->exit.ok());
  return result->output;
}

std::string TempFile(const std::string& name) {
  const char* dir = getenv("TEST_TMPDIR");
  return std::string(dir != nullptr ? dir : "/tmp") + "/" + name;
}

TEST_CASE("exit codes and signals") {
  auto result = RunCommand(Shell("exit 78"), seconds(60));
  REQUIRE(result.ok());
  CHECK(result->exit.code == 78);
  CHECK(result->exit.status() == 78);
  CHECK(!result->exit.ok());
  CHECK(result->exit.ToString() == "exit code 78");

  result = RunCommand(Shell("kill -KILL $$"), seconds(60));
  REQUIRE(result.ok());
  CHECK(result->exit.signal == SIGKILL);
  CHECK(result->exit.status() == 137);
  CHECK(result->exit.ToString() == "signal 9 (Killed)");
}

TEST_CASE("lines of both streams arrive in order, a last one without a line feed too") {
  std::vector<std::string> lines;
  auto options = Shell("echo one; echo two >&2; echo; printf three");
  options.on_line = [&](absl::string_view line) { lines.emplace_back(line); };
  auto process = Subprocess::Start(options);
  REQUIRE(process.ok());
  CHECK((*process)->Wait().ok());
  CHECK(lines == std::vector<std::string>{"one", "two", "", "three"});
}

TEST_CASE("much output is read whole") {
  const std::string out = Output(Shell("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"));
  CHECK(std::count(out.begin(), out.end(), '\n') == 20000);
  CHECK(out.substr(out.size() - 11) == "line 19999\n");
}

TEST_CASE("a grandchild that keeps the output open does not hold up the end") {
  std::string grandchild;
  auto options = Shell("sleep 600 & echo $!");
  options.on_line = [&](absl::string_view line) { grandchild = std::string(line); };
  auto process = Subprocess::Start(options);
  REQUIRE(process.ok());
  CHECK((*process)->Wait(In(seconds(60))).has_value());
  kill(std::stoi(grandchild), SIGKILL);
}

TEST_CASE("output to a file is appended") {
  const std::string path = TempFile("out.txt");
  for (const char* word : {"first", "second"}) {
    auto options = Shell(std::string("echo ") + word);
    options.output_file = path;
    auto process = Subprocess::Start(options);
    REQUIRE(process.ok());
    CHECK((*process)->Wait().ok());
  }
  std::stringstream content;
  content << std::ifstream(path).rdbuf();
  CHECK(content.str() == "first\nsecond\n");
}

TEST_CASE("environment and folder") {
  setenv("WEIR_TEST_KEPT", "kept", 1);
  setenv("WEIR_TEST_GONE", "there", 1);
  auto options = Shell("echo $WEIR_TEST_KEPT ${WEIR_TEST_GONE-gone} $WEIR_TEST_NEW; pwd");
  options.environment["WEIR_TEST_NEW"] = "a b=c";
  options.remove_environment = {"WEIR_TEST_GONE"};
  options.working_directory = "/usr";
  CHECK(Output(options) == "kept gone a b=c\n/usr\n");
}

TEST_CASE("input comes from the descriptor that the options name, and is empty without one") {
  CHECK(Output(Shell("cat; echo end")) == "end\n");
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  Subprocess::Options options = Shell("cat");
  options.input = ends[0];
  REQUIRE(write(ends[1], "given", 5) == 5);
  close(ends[1]);
  CHECK(Output(options) == "given\n");
  // The parent's own is still open.
  CHECK(close(ends[0]) == 0);
}

TEST_CASE("a signal and a deadline") {
  auto options = Shell("trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done");
  std::promise<void> ready;
  options.on_line = [&](absl::string_view) { ready.set_value(); };
  auto process = Subprocess::Start(options);
  REQUIRE(process.ok());
  ready.get_future().get();
  CHECK(!(*process)->Wait(std::chrono::steady_clock::now()).has_value());
  (*process)->Signal(SIGTERM);
  const auto exit = (*process)->Wait(In(seconds(60)));
  REQUIRE(exit.has_value());
  CHECK(exit->code == 5);
  (*process)->Signal(SIGKILL);  // no effect after the exit
  CHECK((*process)->Wait().code == 5);
}

TEST_CASE("the end is announced once, before Wait returns") {
  std::atomic<int> calls{0};
  std::atomic<int> code{-1};
  auto options = Shell("exit 3");
  options.on_exit = [&](const ProcessExit& exit) {
    ++calls;
    code = exit.code;
  };
  auto process = Subprocess::Start(options);
  REQUIRE(process.ok());
  (*process)->Wait();
  CHECK(calls == 1);
  CHECK(code == 3);
}

TEST_CASE("what cannot start says why") {
  Subprocess::Options options;
  options.args = {"/no/such/program"};
  auto process = Subprocess::Start(options);
  CHECK(process.status().code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(process.status().message()), Catch::Contains("/no/such/program"));

  options.args = {"/etc/passwd"};
  CHECK(Subprocess::Start(options).status().code() == absl::StatusCode::kPermissionDenied);

  options = Shell("true");
  options.output_file = "/no/such/folder/out";
  CHECK_THAT(std::string(Subprocess::Start(options).status().message()),
             Catch::Contains("/no/such/folder/out"));

  options = Shell("true");
  options.working_directory = "/no/such/folder";
  CHECK_THAT(std::string(Subprocess::Start(options).status().message()), Catch::Contains("/no/such/folder"));

  CHECK(Subprocess::Start({}).status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("too slow a command is killed and its output shown") {
  const auto result = RunCommand(Shell("echo begun; exec sleep 600"), std::chrono::milliseconds(500));
  CHECK(result.status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_THAT(std::string(result.status().message()), Catch::Contains("500 ms"));
}

TEST_CASE("the object takes its process along, and leaves no zombie") {
  pid_t pid;
  {
    auto process = Subprocess::Start(Shell("exec sleep 600"));
    REQUIRE(process.ok());
    pid = (*process)->pid();
    CHECK(kill(pid, 0) == 0);
  }
  CHECK(kill(pid, 0) == -1);
  CHECK(errno == ESRCH);
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left
}

TEST_CASE("the child has none of the parent's files, the parent none of the child's") {
  const int leaky = open("/dev/null", O_RDONLY);
  const auto count = [] {
    std::filesystem::directory_iterator open_files("/proc/self/fd");
    return std::distance(begin(open_files), end(open_files));
  };
  const auto before = count();
  // 0, 1, 2, and the one that ls opens.
  CHECK(Output(Shell("ls /proc/self/fd | wc -l")) == "4\n");
  Subprocess::Options absent;
  absent.args = {"/no/such/program"};
  CHECK(!Subprocess::Start(absent).ok());
  CHECK(count() == before);
  close(leaky);
}

// Hidden; the next case runs it in a process of its own. Starts a child from a thread that ends, and prints
// the child's id.
TEST_CASE("parent", "[.parent]") {
  std::unique_ptr<Subprocess> child;
  std::thread([&] { child = std::move(Subprocess::Start(Shell("exec sleep 600")).value()); }).join();
  fprintf(stderr, "child %d\n", child->pid());
  child->Wait();
}

TEST_CASE("the child dies with its parent, whichever thread started it, and not before") {
  Subprocess::Options options;
  options.args = {"/proc/self/exe", "[parent]"};
  std::promise<std::string> line;
  options.on_line = [&, seen = false](absl::string_view text) mutable {
    if (!std::exchange(seen, true)) line.set_value(std::string(text));
  };
  auto parent = Subprocess::Start(options);
  REQUIRE(parent.ok());
  const std::string said = line.get_future().get();
  REQUIRE(said.substr(0, 6) == "child ");
  const pid_t child = std::stoi(said.substr(6));
  CHECK(kill(child, 0) == 0);
  (*parent)->Signal(SIGKILL);
  (*parent)->Wait();
  // Init reaps the orphan later; a zombie is dead.
  bool gone = false;
  for (const auto end = In(seconds(30)); !gone && std::chrono::steady_clock::now() < end;) {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string id, name, state;
    gone = !(stat >> id >> name >> state) || state == "Z" || state == "X";
  }
  CHECK(gone);
}

}  // namespace
}  // namespace weir

// The configs that come with Weir, and the commands and functions that read files.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "cli/commands/config_command.h"
#include "common/config/cluster_spec.h"
#include "common/config/job_config.h"

namespace weir {
namespace {

std::string Folder() {
  const char* folder = std::getenv("TEST_TMPDIR");
  return folder == nullptr ? "/tmp" : folder;
}

std::string ReadAll(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// Returns what `run` writes to a standard stream, given by its file descriptor.
template <typename Run>
std::string Capture(int fd, Run run) {
  const std::string path = absl::StrCat(Folder(), "/captured");
  std::fflush(nullptr);
  const int saved = dup(fd);
  FILE* file = std::fopen(path.c_str(), "w");
  dup2(fileno(file), fd);
  run();
  std::fflush(nullptr);
  dup2(saved, fd);
  close(saved);
  std::fclose(file);
  return ReadAll(path);
}

TEST_CASE("Each shipped job config is valid in every mode, and so is what it shows") {
  int configs = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    const std::string path = entry.path().string();
    if (!absl::EndsWith(path, ".json") || absl::StrContains(path, "cluster_")) continue;
    ++configs;
    INFO(path);
    for (const char* consistency : {R"({"mode": "sync", "parts": 4})",
                                    R"({"mode": "bounded", "staleness": 3})", R"({"mode": "async"})"}) {
      const auto config = LoadJobConfig(path, {absl::StrCat("consistency=", consistency)});
      INFO(config.status().ToString());
      REQUIRE(config.ok());
      const auto again = ParseJobConfig(ToJson(*config, true), "shown");
      INFO(again.status().ToString());
      REQUIRE(again.ok());
      CHECK(FirstDifference(*config, *again) == "");
    }
    // Flags alone can choose the mode.
    CHECK(LoadJobConfig(path, {R"(consistency={"mode": "bounded", "staleness": 0})"}).ok());
  }
  CHECK(configs >= 3);
}

TEST_CASE("Each shipped cluster spec is valid") {
  const std::string path = "configs/cluster_2ps_2workers.json";
  const auto spec = ParseClusterSpec(ReadAll(path), path);
  INFO(spec.status().ToString());
  REQUIRE(spec.ok());
  CHECK(spec->ps_addresses().size() == 2);
  CHECK(spec->num_workers() == 2u);
  CHECK(FromEnvironment(nullptr, path, "worker:1", {})->value().address == "127.0.0.1:2225");
}

TEST_CASE("Paths start at the config's folder") {
  const std::string folder = absl::StrCat(Folder(), "/jobs");
  std::filesystem::create_directories(folder);
  const std::string path = absl::StrCat(folder, "/csv.json");
  std::ofstream(path) << R"({"model": {"layers": [{"type": "dense", "units": 2}]},
    "data": {"format": "csv", "train": {"path": "../data/train.csv"}, "test": {"path": "/abs/test.csv"}}})";
  const auto config = LoadJobConfig(path);
  REQUIRE(config.ok());
  CHECK(config->data().train().path() == absl::StrCat(Folder(), "/data/train.csv"));
  CHECK(config->data().test().path() == "/abs/test.csv");
  CHECK_FALSE(config->has_checkpoint());
  const auto saves =
      LoadJobConfig(path, {"checkpoint={\"directory\": \"../runs/7\", \"init_from\": \"/abs/6\"}"});
  REQUIRE(saves.ok());
  CHECK(saves->checkpoint().directory() == absl::StrCat(Folder(), "/runs/7"));
  CHECK(saves->checkpoint().init_from() == "/abs/6");
  const auto objects = LoadJobConfig(path, {"checkpoint={\"directory\": \"s3://bucket/runs/7\"}"});
  REQUIRE(objects.ok());
  CHECK(objects->checkpoint().directory() == "s3://bucket/runs/7");
  const std::filesystem::path relative = std::filesystem::relative(path);
  CHECK(LoadJobConfig(relative.string())->data().train().path() == config->data().train().path());
}

TEST_CASE("Paths are taken as people write them") {
  setenv("HOME", "/home/ann", 1);
  const std::string path = absl::StrCat(Folder(), "/written.json");
  std::ofstream(path) << R"({"model": {"layers": [{"type": "dense", "units": 2}]},
    "data": {"format": "csv", "train": {"path": "~/train.csv"}, "test": {"path": "file:///abs/test.csv"}},
    "checkpoint": {"directory": "~", "init_from": "file:///abs/6"}})";
  const auto config = LoadJobConfig(path, {"data.classes=2"});
  INFO(config.status());
  REQUIRE(config.ok());
  CHECK(config->data().train().path() == "/home/ann/train.csv");
  CHECK(config->data().test().path() == "/abs/test.csv");
  CHECK(config->checkpoint().directory() == "/home/ann");
  CHECK(config->checkpoint().init_from() == "/abs/6");
  CHECK(absl::StrContains(LoadJobConfig(path, {"checkpoint.directory=$HOME/x"}).status().message(),
                          "checkpoint.directory: \"$HOME/x\" has $HOME in it"));
  unsetenv("HOME");
  CHECK(absl::StrContains(LoadJobConfig(path).status().message(),
                          path + ": data.train.path: \"~/train.csv\" begins with ~"));
  // A config that a program gives, and not a file.
  setenv("HOME", "/home/ann", 1);
  auto given = ParseJobConfig(R"({"checkpoint": {"directory": "~/x", "init_from": "y"}})", "the job");
  REQUIRE(given.ok());
  CHECK(given->checkpoint().directory() == "~/x");
  REQUIRE(MakePathsAbsolute("", &*given).ok());
  CHECK(given->checkpoint().directory() == "/home/ann/x");
  CHECK(given->checkpoint().init_from() == std::filesystem::absolute("y").string());
}

TEST_CASE("A file that cannot be read is named") {
  CHECK(LoadJobConfig("/nowhere/job.json").status().message() ==
        "/nowhere/job.json: cannot be read: No such file or directory");
  CHECK(LoadJobConfig("/nowhere/job.json").status().code() == absl::StatusCode::kNotFound);
  CHECK(LoadJobConfig(Folder()).status().message() == Folder() + ": cannot be read: Is a directory");
  const std::string path = absl::StrCat(Folder(), "/large.json");
  std::ofstream(path) << std::string((16 << 20) + 1, ' ');
  CHECK(absl::StrContains(LoadJobConfig(path).status().message(), "is larger than the 16 MiB"));
}

TEST_CASE("weir config check and show") {
  int code = -1;
  UpOptions digits;
  digits.config = "configs/digits.json";
  const Programs none = {absl::NotFoundError("no server here"), absl::NotFoundError("no worker here")};
  CHECK(Capture(STDOUT_FILENO, [&] { code = RunConfigCheck(digits, none); }) ==
        "configs/digits.json: ok (job \"digits\", 4 layers)\n"
        "  not checked: the data, and whether the model fits it (no worker here)\n");
  CHECK(code == 0);
  const std::string shown =
      Capture(STDOUT_FILENO, [&] { code = RunConfigShow("configs/digits.json", {"train.epochs=3"}, 1, {}); });
  CHECK(code == 0);
  CHECK(absl::StrContains(shown, "\"epochs\": 3,"));
  CHECK(ParseJobConfig(shown, "shown").ok());
  const std::string memory = Capture(STDERR_FILENO, [&] { RunConfigShow("configs/digits.json", {}, 1, {}); });
  CHECK(absl::StartsWith(memory, "memory of a server, W = bytes of its weights: "));
  CHECK(absl::EndsWith(
      memory, "\ncheckpoints: none (checkpoint.directory is not set); a lost server ends the job\n"));
  digits.overrides = {"seed=x"};
  const std::string error = Capture(STDERR_FILENO, [&] { code = RunConfigCheck(digits, none); });
  CHECK(error == "--set seed=x: seed: must be a whole number at least 0, got \"x\"\n");
  CHECK(code == 78);
  CHECK(Capture(STDOUT_FILENO, [&] { code = RunConfigShow("/nowhere.json", {}, 1, {}); }) == "");
  CHECK(code == 78);
}

}  // namespace
}  // namespace weir

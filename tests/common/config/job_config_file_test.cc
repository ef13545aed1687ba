// The configs that come with Weir, and the functions that read files.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
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

TEST_CASE("Each shipped job config is valid in every mode, and so is what it shows") {
  int configs = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    const std::string path = entry.path().string();
    if (!absl::EndsWith(path, ".json") || absl::StrContains(path, "cluster_")) continue;
    if (absl::EndsWith(path, ".schema.json")) continue;
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

}  // namespace
}  // namespace weir

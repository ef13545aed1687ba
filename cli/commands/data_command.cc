// `weir data clicks`: writes DIR/train.csv and DIR/test.csv, and prints what a model can reach.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/data/click_log.h"
#include "cli/report/format.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

struct DataClicksOptions {
  std::string directory;
  uint64_t rows = 100000;      // to train
  uint64_t test_rows = 20000;  // the rows after them
  ClickLogOptions log;
};

// "": written; else why not.
std::string Write(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? "" : absl::StrCat("cannot write ", path, ": ", std::strerror(errno));
}

int RunDataClicks(const DataClicksOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error) {
    return Refuse(kExitConfig, absl::StrCat("cannot make the folder ", Printable(options.directory), ": ",
                                            error.message()));
  }
  const ClickLog train = MakeClickLog(options.log, 0, options.rows);
  const ClickLog test = MakeClickLog(options.log, options.rows, options.test_rows);
  for (const auto& [name, log] : {std::pair("train.csv", &train), std::pair("test.csv", &test)}) {
    const std::string path = absl::StrCat(options.directory, "/", name);
    if (const std::string problem = Write(path, log->csv); !problem.empty()) {
      return Refuse(kExitStorage, Printable(problem));
    }
    std::printf("%s: %s rows, %s clicked\n", Printable(path).c_str(),
                FormatCount(log == &train ? options.rows : options.test_rows).c_str(),
                FormatPercent(log->truth.clicks).c_str());
  }
  std::printf("of the true probabilities, on test.csv: log loss %.4f, AUC %s\n", test.truth.log_loss,
              test.truth.auc.has_value() ? FormatLoss(*test.truth.auc).c_str() : "-");
  std::printf("of the same probability for everybody: log loss %.4f, AUC 0.5\n",
              test.truth.constant_log_loss);
  return kExitOk;
}

constexpr const char* kDataExamples = R"(Examples:
  weir data clicks clicks
  weir data clicks clicks --rows=1000000 --users=100000 --items=20000 --seed=7)";

}  // namespace

void AddDataCommands(Commands& commands) {
  CLI::App* group = commands.AddGroup("data", "Makes data to train on", kDataExamples);
  const auto options = std::make_shared<DataClicksOptions>();
  CLI::App* command = group->add_subcommand(
      "clicks", "Writes a synthetic click log, and says which log loss and AUC a model can reach on it");
  command->add_option("directory", options->directory, "The folder for train.csv and test.csv")
      ->type_name("DIR")
      ->required();
  const auto add_count = [&](const char* flag, auto* count, const char* what, uint64_t most) {
    command->add_option(flag, *count, what)->check(CLI::Range(uint64_t{1}, most))->capture_default_str();
  };
  constexpr uint64_t kMostRows = 100000000, kMostKeys = 10000000;
  add_count("--rows", &options->rows, "Rows of train.csv", kMostRows);
  add_count("--test_rows", &options->test_rows, "Rows of test.csv, which follow those", kMostRows);
  command->add_option("--seed", options->log.seed, "Another seed makes another truth and other rows")
      ->capture_default_str();
  add_count("--users", &options->log.users, "Users", kMostKeys);
  add_count("--items", &options->log.items, "Items", kMostKeys);
  add_count("--tags", &options->log.tags, "Tags; a row has up to 4", kMostKeys);
  command->add_option("--exponent", options->log.exponent, "Of Zipf's law for all keys")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  commands.OnRun(command, [options] { return RunDataClicks(*options); });
}

}  // namespace weir

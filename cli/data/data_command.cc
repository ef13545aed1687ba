#include "cli/data/data_command.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "cli/report/format.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

// "": written; else why not.
std::string Write(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? "" : absl::StrCat("cannot write ", path, ": ", std::strerror(errno));
}

int Refuse(int exit_code, const std::string& message) {
  std::fprintf(stderr, "error: %s\n", Printable(message).c_str());
  return exit_code;
}

}  // namespace

int RunDataClicks(const DataClicksOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error) {
    return Refuse(kExitConfig,
                  absl::StrCat("cannot make the folder ", options.directory, ": ", error.message()));
  }
  const ClickLog train = MakeClickLog(options.log, 0, options.rows);
  const ClickLog test = MakeClickLog(options.log, options.rows, options.test_rows);
  for (const auto& [name, log] : {std::pair("train.csv", &train), std::pair("test.csv", &test)}) {
    const std::string path = absl::StrCat(options.directory, "/", name);
    if (const std::string problem = Write(path, log->csv); !problem.empty()) {
      return Refuse(kExitStorage, problem);
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

}  // namespace weir

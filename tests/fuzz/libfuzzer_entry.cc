// What libFuzzer calls. With `--write_seeds=DIR` as its only argument the program writes the target's seeds
// to that folder, and its words to DIR.dict, instead of fuzzing.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {
namespace {

void WriteFile(const std::string& path, absl::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (file.flush()) return;
  fprintf(stderr, "cannot write %s\n", path.c_str());
  exit(1);
}

void WriteSeeds(const std::string& folder) {
  int number = 0;
  for (const std::string& seed : Seeds()) WriteFile(absl::StrCat(folder, "/seed-", number++), seed);
  std::string words;
  for (const std::string& word : Words()) {
    absl::StrAppend(&words, "\"");
    for (const char c : word) absl::StrAppend(&words, "\\x", absl::BytesToHexString({&c, 1}));
    absl::StrAppend(&words, "\"\n");
  }
  WriteFile(folder + ".dict", words);
}

}  // namespace
}  // namespace weir

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  absl::string_view folder = *argc == 2 ? (*argv)[1] : "";
  if (absl::ConsumePrefix(&folder, "--write_seeds=")) {
    weir::WriteSeeds(std::string(folder));
    exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  weir::ReadInput({reinterpret_cast<const char*>(data), size});
  return 0;
}

// The test that a fuzz target is without libFuzzer: REPLAY CORPUS_FOLDER. It reads the target's seeds, which
// the reader must take, the files of the corpus, and mutations of all of these, which follow from a fixed
// seed.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {
namespace {

// Each is read once, so that the whole takes about a second, also under sanitizers.
constexpr int kMutations = 3000;
constexpr uint32_t kMostChanges = 4;
// Beyond it an input that grew is cut. Bytes.
constexpr size_t kMostBytes = 1 << 16;

// The input that is being read, for OnCrash().
absl::string_view current;

// Leaves the input in a file and names it. Only calls that a signal handler may make.
void OnCrash(int signal) {
  static constexpr char kFile[] = "crashing-input";
  static constexpr char kText[] =
      "the input is in the file crashing-input of the folder where the test ran\n";
  const int file = open(kFile, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file >= 0 && write(file, current.data(), current.size()) == static_cast<ssize_t>(current.size())) {
    if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(1);
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

bool Read(absl::string_view input) {
  current = input;
  return ReadInput(input);
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> inputs) : inputs_(std::move(inputs)), words_(Words()) {}

  std::string Next() {
    std::string input = Any(inputs_);
    for (uint32_t changes = 1 + Below(kMostChanges); changes > 0; --changes) Change(&input);
    if (input.size() > kMostBytes) input.resize(kMostBytes);
    return input;
  }

 private:
  uint32_t Below(size_t bound) { return random_.NextBelow(static_cast<uint32_t>(bound)); }
  const std::string& Any(const std::vector<std::string>& from) { return from[Below(from.size())]; }

  void Change(std::string* input) {
    static const std::vector<std::string> kNumbers = {std::string(4, '\0'),
                                                      std::string(8, '\xff'),
                                                      "\xff\xff\xff\x7f",
                                                      std::string("\0\0\0\0\0\0\0\x10", 8),
                                                      "18446744073709551616",
                                                      "-1",
                                                      "1e999"};
    const size_t at = Below(input->size() + 1), left = input->size() - at;
    const size_t length = left == 0 ? 0 : Below(std::min<size_t>(left, 64) + 1);
    switch (Below(7)) {
      case 0:
        if (left > 0) (*input)[at] = static_cast<char>((*input)[at] ^ (1 << Below(8)));
        return;
      case 1:
        if (left > 0) (*input)[at] = static_cast<char>(Below(256));
        return;
      case 2:
        input->erase(at, length);
        return;
      case 3:
        input->insert(at, input->substr(at, length));
        return;
      case 4:
        input->resize(at);
        return;
      case 5:
        input->replace(at, length, words_.empty() ? Any(kNumbers) : Any(words_));
        return;
      default: {
        const std::string& number = Any(kNumbers);
        input->replace(at, std::min(left, number.size()), number);
      }
    }
  }

  const std::vector<std::string> inputs_;
  const std::vector<std::string> words_;
  RandomStream random_{RandomKey(1, "fuzz"), 0};
};

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> paths, contents;
  if (std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    contents.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return contents;
}

int Replay(const std::string& corpus) {
  std::vector<std::string> inputs = Seeds();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (Read(inputs[i])) continue;
    fprintf(stderr, "seed %zu is not taken\n", i);
    return 1;
  }
  const size_t seeds = inputs.size();
  for (std::string& input : FilesIn(corpus)) inputs.push_back(std::move(input));
  for (size_t i = seeds; i < inputs.size(); ++i) Read(inputs[i]);
  int taken = 0;
  Mutator mutator(inputs);
  for (int i = 0; i < kMutations; ++i) {
    const std::string input = mutator.Next();
    taken += Read(input);
  }
  current = {};
  printf("read %zu seeds, %zu files of the corpus and %d mutations, of which %d were taken\n", seeds,
         inputs.size() - seeds, kMutations, taken);
  return 0;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
    return 64;
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, weir::OnCrash);
  return weir::Replay(argv[1]);
}

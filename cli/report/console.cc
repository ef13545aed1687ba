#include "cli/report/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/system/unique_fd.h"

namespace weir {
namespace {

constexpr absl::string_view kEraseLine = "\r\x1b[K";
constexpr absl::string_view kReset = "\x1b[0m";
// Cyan, green, blue, magenta, and their bright variants; red and yellow are for errors and warnings.
constexpr int kTaskColors[] = {36, 32, 34, 35, 96, 92, 94, 95};

int ColorCode(Console::Color color) {
  if (color == Console::Color::kRed) return 31;
  if (color == Console::Color::kYellow) return 33;
  const size_t task = static_cast<size_t>(color) - static_cast<size_t>(Console::Color::kTask0);
  return kTaskColors[task % std::size(kTaskColors)];
}

}  // namespace

Console::Options Console::StandardError() {
  Options options;
  // Where the reader is gone, the job goes on.
  options.write = [](absl::string_view text) { WriteAll(STDERR_FILENO, text); };
  const char* term = std::getenv("TERM");
  options.terminal = isatty(STDERR_FILENO) != 0 && term != nullptr && absl::string_view(term) != "dumb";
  const char* no_color = std::getenv("NO_COLOR");
  options.color = options.terminal && (no_color == nullptr || *no_color == '\0');
  options.width = [] {
    winsize size = {};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
  };
  return options;
}

void Console::Line(absl::string_view prefix, Color color, absl::string_view text) {
  MutexLock lock(mutex_);
  Erase();
  if (options_.color && color != Color::kNone && !prefix.empty()) {
    options_.write(absl::StrCat("\x1b[", ColorCode(color), "m", prefix, kReset, text, "\n"));
  } else {
    options_.write(absl::StrCat(prefix, text, "\n"));
  }
  Draw();
}

void Console::SetStatus(absl::string_view text) {
  MutexLock lock(mutex_);
  if (!options_.terminal) {
    const absl::Time now = options_.clock->Now();
    if (next_plain_ == absl::InfinitePast()) next_plain_ = now + options_.plain_interval;
    if (text.empty() || now < next_plain_) return;
    next_plain_ = now + options_.plain_interval;
    options_.write(absl::StrCat(text, "\n"));
    return;
  }
  // The last column stays free: writing there would wrap the line on some terminals.
  const int width = options_.width ? options_.width() : 0;
  if (width > 1) text = text.substr(0, width - 1);
  if (text == status_) return;
  Erase();
  status_ = std::string(text);
  Draw();
}

void Console::Erase() {
  if (options_.terminal && !status_.empty()) options_.write(kEraseLine);
}

void Console::Draw() {
  if (options_.terminal && !status_.empty()) options_.write(status_);
}

}  // namespace weir

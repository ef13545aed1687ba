#include "cli/report/console.h"

#include <string>

#include "catch2/catch.hpp"

namespace weir {
namespace {

struct Screen {
  std::string text;
  ManualClock clock;

  Console::Options Options(bool terminal) {
    Console::Options options;
    options.write = [this](absl::string_view piece) { text.append(piece.data(), piece.size()); };
    options.terminal = terminal;
    options.color = terminal;
    options.width = [] { return 10; };
    options.plain_interval = absl::Seconds(3);
    options.clock = &clock;
    return options;
  }
};

TEST_CASE("on a terminal the status stays below the lines, cut to the width") {
  Screen screen;
  Console console(screen.Options(true));
  console.SetStatus("step 1 of many");
  CHECK(screen.text == "step 1 of");
  screen.text.clear();
  console.SetStatus("step 1 of more");  // equals the shown text
  CHECK(screen.text.empty());
  console.Line("[a] ", Console::Color::kRed, "hello");
  CHECK(screen.text == "\r\x1b[K\x1b[31m[a] \x1b[0mhello\nstep 1 of");
  screen.text.clear();
  console.SetStatus("");
  CHECK(screen.text == "\r\x1b[K");
  screen.text.clear();
  console.Line("bye");
  CHECK(screen.text == "bye\n");
}

TEST_CASE("elsewhere the status is a line now and then, without colour") {
  Screen screen;
  Console console(screen.Options(false));
  console.SetStatus("step 1 of many");
  screen.clock.Advance(absl::Seconds(2));
  console.SetStatus("step 2 of many");
  console.Line("[a] ", Console::Color::kRed, "hello");
  CHECK(screen.text == "[a] hello\n");
  screen.text.clear();
  screen.clock.Advance(absl::Seconds(1));
  console.SetStatus("step 3 of many");
  console.SetStatus("step 4 of many");
  console.SetStatus("");
  CHECK(screen.text == "step 3 of many\n");
  screen.text.clear();
  screen.clock.Advance(absl::Seconds(3));
  console.SetStatus("step 5 of many");
  CHECK(screen.text == "step 5 of many\n");
}

}  // namespace
}  // namespace weir

#include "cli/report/format.h"

#include <limits>

#include "catch2/catch.hpp"

namespace weir {
namespace {

TEST_CASE("durations") {
  CHECK(FormatSeconds(0) == "0 ms");
  CHECK(FormatSeconds(0.0000304) == "30 us");
  CHECK(FormatSeconds(0.0009996) == "1 ms");
  CHECK(FormatSeconds(0.0504) == "50 ms");
  CHECK(FormatSeconds(0.9996) == "1.00 s");
  CHECK(FormatSeconds(9.994) == "9.99 s");
  CHECK(FormatSeconds(9.996) == "10.0 s");
  CHECK(FormatSeconds(59.94) == "59.9 s");
  CHECK(FormatSeconds(59.96) == "1 min 00 s");
  CHECK(FormatSeconds(200.4) == "3 min 20 s");
  CHECK(FormatSeconds(3599.6) == "1 h 00 min");
  CHECK(FormatSeconds(7500) == "2 h 05 min");
  CHECK(FormatSeconds(-1) == "-");
  CHECK(FormatSeconds(std::numeric_limits<double>::quiet_NaN()) == "-");
  CHECK(FormatSeconds(std::numeric_limits<double>::infinity()) == "-");
}

TEST_CASE("counts") {
  CHECK(FormatCount(0) == "0");
  CHECK(FormatCount(999) == "999");
  CHECK(FormatCount(1000) == "1,000");
  CHECK(FormatCount(1234567) == "1,234,567");
  CHECK(FormatCount(std::numeric_limits<uint64_t>::max()) == "18,446,744,073,709,551,615");
}

TEST_CASE("rates and bytes") {
  CHECK(FormatRate(0) == "0");
  CHECK(FormatRate(312.4) == "312");
  CHECK(FormatRate(999.4) == "999");
  CHECK(FormatRate(999.6) == "1.00k");
  CHECK(FormatRate(45200) == "45.2k");
  CHECK(FormatRate(999600) == "1.00M");
  CHECK(FormatRate(1.234e6) == "1.23M");
  CHECK(FormatRate(-1) == "-");
  CHECK(FormatBytes(512) == "512 B");
  CHECK(FormatBytes(33100000) == "33.1 MB");
  CHECK(FormatBytes(2000000000000000) == "2000 TB");
}

TEST_CASE("shares and losses") {
  CHECK(FormatPercent(0.98321) == "98.32%");
  CHECK(FormatPercent(1) == "100.00%");
  CHECK(FormatPercent(-1) == "-");
  CHECK(FormatLoss(0) == "0.0000");
  CHECK(FormatLoss(2.302585) == "2.3026");
  CHECK(FormatLoss(0.0000123) == "1.23e-05");
  CHECK(FormatLoss(123456) == "1.23e+05");
  CHECK(FormatLoss(std::numeric_limits<double>::quiet_NaN()) == "nan");
}

TEST_CASE("tables") {
  Table table({"mode", "time", "note"});
  table.AlignLeft(2);
  table.AddRow({"sync", "4.21 s", "first"});
  table.AddRow({"bounded(3)", "12.0 s"});
  CHECK(table.ToString() ==
        "mode          time  note\n"
        "----------  ------  -----\n"
        "sync        4.21 s  first\n"
        "bounded(3)  12.0 s\n");
}

TEST_CASE("control characters are shown, not sent") {
  CHECK(Printable("a\x1b[31m\tb\n\x7f") == "a\\x1b[31m\tb\\x0a\\x7f");
}

}  // namespace
}  // namespace weir

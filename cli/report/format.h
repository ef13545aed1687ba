#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class Message;
}

// Numbers and tables as people read them, and messages as programs do. Pure functions.
namespace weir {

// "30 us", "950 ms", "4.21 s", "12.3 s", "3 min 20 s", "2 h 05 min"; "-" if it is not a finite number >= 0.
std::string FormatSeconds(double seconds);
// "1,234,567".
std::string FormatCount(uint64_t count);
// "1 server", "2 servers": `one` with an s unless the count is 1.
std::string Counted(uint64_t count, absl::string_view one);
// "312", "4.56k", "45.2k", "1.23M"; "-" if it is not a finite number >= 0.
std::string FormatRate(double per_second);
// "512 B", "33.1 MB" (decimal).
std::string FormatBytes(uint64_t bytes);
// "98.32%" for a share in [0, 1]; "-" outside of it.
std::string FormatPercent(double share);
// "0.1234", "1.23e-05"; "nan", "inf" as they are: a loss may become either.
std::string FormatLoss(double loss);

// A table whose columns are as wide as their widest cells. The first column is aligned left; the others are
// aligned right, unless AlignLeft() names them.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  // Requires: as many cells as the header has.
  void AddRow(std::vector<std::string> cells);
  void AlignLeft(size_t column);
  // Lines with line feeds: the header, a rule, the rows.
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> left_ = {0};
};

// The printable form of text from outside: each control character but a tab is shown as \xNN, so that it
// cannot steer the terminal.
std::string Printable(absl::string_view text);

// Returns a message as JSON, with its fields by their names and a line feed at the end. Unlike WriteProto(),
// also writes fields that are zero or empty, so that a program finds the same fields in every message. A
// value that is not set, or not finite, is null.
std::string MessageJson(const google::protobuf::Message& message);

}  // namespace weir

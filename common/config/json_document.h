#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weir {

// Where a value was written.
struct JsonPlace {
  std::shared_ptr<const std::string> source;  // a file's name, "TF_CONFIG", "--set a.b=1"
  int line = 0;                               // from 1; 0: the source has no lines worth naming
  int column = 0;                             // from 1, in characters

  // "job.json:3:17", or the source alone.
  std::string ToString() const;
};

struct JsonMember;

// A JSON value that knows where it stands. A plain value: copies are deep and independent, and a tree that no
// thread writes to may be read from any thread. Numbers keep what JSON says exactly; a number that fits no
// 64-bit integer is a kDouble.
struct JsonValue {
  enum class Kind { kNull, kBool, kNegative, kUnsigned, kDouble, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  JsonPlace place;
  bool boolean = false;             // kBool
  int64_t negative = 0;             // kNegative: an integer written with a minus sign
  uint64_t natural = 0;             // kUnsigned: any other integer
  double real = 0;                  // kDouble; always finite
  std::string text;                 // kString: the content, valid UTF-8. Numbers: as written
  std::vector<JsonValue> elements;  // kArray
  std::vector<JsonMember> members;  // kObject, in the order of the text; keys differ

  bool is_integer() const { return kind == Kind::kNegative || kind == Kind::kUnsigned; }
  bool is_number() const { return is_integer() || kind == Kind::kDouble; }
  double AsDouble() const;

  // nullptr if there is none.
  const JsonMember* Find(absl::string_view key) const;
  JsonMember* Find(absl::string_view key);

  // For messages: 1.5, "abc" (shortened where it is long), a list, an object.
  std::string Describe() const;
};

struct JsonMember {
  std::string key;
  JsonPlace place;  // of the key
  JsonValue value;
};

// RFC 8259 plus // and /* */ comments, and nothing else: no trailing commas, no NaN. A repeated key is
// refused, and so is nesting beyond 64 levels. InvalidArgument with "source:line:column: what".
absl::StatusOr<JsonValue> ParseJson(absl::string_view text, absl::string_view source);

// `text` as a JSON string, quotes included.
std::string JsonQuote(absl::string_view text);

// The shortest text that reads back as the same number.
std::string JsonNumber(double value);
std::string JsonNumber(float value);

}  // namespace weir

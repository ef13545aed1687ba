#include "common/config/json_document.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"

namespace weir {
namespace {

JsonValue Parse(absl::string_view text) {
  absl::StatusOr<JsonValue> value = ParseJson(text, "f");
  INFO(value.status().ToString());
  REQUIRE(value.ok());
  return *std::move(value);
}

std::string Error(absl::string_view text) {
  absl::StatusOr<JsonValue> value = ParseJson(text, "f");
  return value.ok() ? "accepted" : std::string(value.status().message());
}

TEST_CASE("Every value and key knows its place") {
  const JsonValue root = Parse(
      "\xEF\xBB\xBF// a, \"comment\": {\n"
      "{\"a\" : [1, -2 ,/* , */\"x\\\"y,\", null],\n"
      "\t\"b\":{\"c\":1e3}, \"ä\": true}");
  CHECK(root.place.ToString() == "f:2:1");
  const JsonMember* a = root.Find("a");
  REQUIRE(a != nullptr);
  CHECK(a->place.ToString() == "f:2:2");
  CHECK(a->value.place.ToString() == "f:2:8");
  REQUIRE(a->value.elements.size() == 4);
  CHECK(a->value.elements[0].place.ToString() == "f:2:9");
  CHECK(a->value.elements[1].place.ToString() == "f:2:12");
  CHECK(a->value.elements[2].place.ToString() == "f:2:23");
  CHECK(a->value.elements[2].text == "x\"y,");
  CHECK(a->value.elements[3].place.ToString() == "f:2:32");
  const JsonMember* c = root.Find("b")->value.Find("c");
  CHECK(root.Find("b")->place.ToString() == "f:3:2");
  CHECK(c->place.ToString() == "f:3:7");
  CHECK(c->value.place.ToString() == "f:3:11");
  CHECK(root.Find("ä")->value.place.ToString() == "f:3:22");  // columns are characters, not bytes
  CHECK(root.Find("nothing") == nullptr);
}

TEST_CASE("A comment ends where the parser says") {
  CHECK(Parse("// one\r\n 7").place.ToString() == "f:2:2");
  CHECK(Parse("/*/ * **/ 7").place.ToString() == "f:1:11");
  CHECK(Parse("// one\r 7").natural == 7);
  CHECK(Parse("7 // at the end").natural == 7);
}

TEST_CASE("Numbers are exact") {
  const JsonValue big = Parse("18446744073709551615");
  CHECK(big.kind == JsonValue::Kind::kUnsigned);
  CHECK(big.natural == std::numeric_limits<uint64_t>::max());
  const JsonValue small = Parse("-9223372036854775808");
  CHECK(small.kind == JsonValue::Kind::kNegative);
  CHECK(small.negative == std::numeric_limits<int64_t>::min());
  const JsonValue too_big = Parse("18446744073709551616");
  CHECK(too_big.kind == JsonValue::Kind::kDouble);
  CHECK(too_big.Describe() == "18446744073709551616");
  CHECK(Parse("1.0").kind == JsonValue::Kind::kDouble);
  CHECK(Parse("0.1").real == 0.1);
  CHECK(Parse("-3").AsDouble() == -3.0);
}

TEST_CASE("What is not JSON is refused with its place") {
  struct Case {
    std::string text;
    std::string expected;  // the error starts with this
  };
  const std::vector<Case> cases = {
      {"", "f:1:1: unexpected end of input"},
      {"  \n ", "f:2:2: unexpected end of input"},
      {"{\"a\": 1,}", "f:1:9: a comma is not allowed before the closing bracket"},
      {"[1,\n]", "f:2:1: a comma is not allowed before the closing bracket"},
      {"{\"a\": 1\n \"b\": 2}", "f:2:2: unexpected string literal; expected '}'; near \"b\""},
      {"{\"a\" 1}", "f:1:6: unexpected number literal; expected ':'; near 1"},
      {"{a: 1}", "f:1:2: invalid literal; near a"},
      {"[NaN]", "f:1:2: invalid literal; near NaN"},
      {"[1e999]", "f:1:2: number overflow"},
      {"[01]", "f:1:3: unexpected number literal; expected ']'; near 1"},
      {"[truefalse]", "f:1:6: unexpected false literal; expected ']'"},
      {"[1.5.5]", "f:1:5: invalid literal; near .5"},
      {"[+1]", "f:1:2: invalid literal"},
      {"{\"a\": \"b\nc\"}", "f:1:7: invalid string: control character U+000A"},
      {"{\"a\": \"b", "f:1:7: invalid string: missing closing quote"},
      {"[\"\xff\"]", "f:1:2: invalid string: ill-formed UTF-8 byte; near"},
      {"[\"\\ud800\"]", "f:1:2: invalid string: surrogate"},
      {"/* never closed", "f:1:1: invalid comment"},
      {"# no", "f:1:1: invalid literal"},
      {"{} {}", "f:1:4: unexpected '{'; expected end of input"},
      {"[1", "f:1:3: unexpected end of input"},
      {"{\"a\": 1,\n \"b\": {\"a\": 2},\n \"a\": 3}", "f:3:2: key \"a\" is already there, at f:1:2"},
      {"{\"a\": 1, \"\\u0061\": 2}", "f:1:10: key \"a\" is already there, at f:1:2"},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    const std::string error = Error(c.text);
    INFO(error);
    CHECK(absl::StartsWith(error, c.expected));
  }
  CHECK(ParseJson("[", "f").status().code() == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("Nesting is limited") {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(Error(nested(64)) == "accepted");
  CHECK(Error(nested(65)) == "f:1:65: nested too deep; at most 64 levels are allowed");
  CHECK(absl::StrContains(Error(std::string(100000, '[')), "nested too deep"));
}

TEST_CASE("Messages stay short and valid") {
  CHECK(Parse("\"a\\u0007\\n\"").Describe() == "\"a\\u0007\\n\"");
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "ä";
  const std::string shown = Parse(absl::StrCat("\"b", umlauts, "\"")).Describe();
  CHECK(shown.size() < 70);
  CHECK(Parse(JsonQuote("a\"\\\t\x01z")).text == "a\"\\\t\x01z");
  CHECK(JsonNumber(0.1f) == "0.1");
  CHECK(JsonNumber(1048576.0) == "1048576");
}

// Checks that the text really has each value's token at the value's place.
void CheckPlaces(const JsonValue& value, const std::vector<std::string>& lines, int* wrong) {
  const auto at = [&lines](const JsonPlace& place) -> char {
    if (place.line < 1 || place.line > static_cast<int>(lines.size())) return 0;
    const std::string& line = lines[place.line - 1];
    return place.column < 1 || place.column > static_cast<int>(line.size()) ? 0 : line[place.column - 1];
  };
  const char first = at(value.place);
  switch (value.kind) {
    case JsonValue::Kind::kObject:
      *wrong += first != '{';
      break;
    case JsonValue::Kind::kArray:
      *wrong += first != '[';
      break;
    case JsonValue::Kind::kString:
      *wrong += first != '"';
      break;
    case JsonValue::Kind::kNull:
      *wrong += first != 'n';
      break;
    case JsonValue::Kind::kBool:
      *wrong += first != (value.boolean ? 't' : 'f');
      break;
    default:
      *wrong += first != value.text[0];
  }
  for (const JsonValue& element : value.elements) CheckPlaces(element, lines, wrong);
  for (const JsonMember& member : value.members) {
    *wrong += at(member.place) != '"';
    CheckPlaces(member.value, lines, wrong);
  }
}

TEST_CASE("Mutated documents are parsed or refused, with right places") {
  const std::string seed_text =
      "// c\n{\"a\": [1, -2.5e3, true, null, \"x\\u00e9\\\\\"], /* b */ \"b\": {\"c\": {}, \"d\": "
      "[]},\n\"e\": 18446744073709551615}";
  const std::string alphabet = "{}[]\",:/*\\ \n\r\tntf0129.eE+-ua\x01\x7f\xc3\xa9\xff";
  std::mt19937_64 random(20240607);
  const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
  int parsed = 0;
  int refused = 0;
  int wrong = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string text = seed_text;
    for (size_t edits = 1 + below(4); edits > 0; --edits) {
      const size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = alphabet[below(alphabet.size())];
          break;
        case 1:
          text.insert(at, 1, alphabet[below(alphabet.size())]);
          break;
        case 2:
          text.erase(at, 1 + below(5));
          break;
        case 3:
          text.insert(at, seed_text.substr(below(seed_text.size()), below(20)));
          break;
      }
      if (text.empty()) text = " ";
    }
    const absl::StatusOr<JsonValue> value = ParseJson(text, "f");
    if (!value.ok()) {
      ++refused;
      wrong += !absl::StartsWith(value.status().message(), "f:");
      continue;
    }
    ++parsed;
    bool ascii = true;
    for (const char c : text) ascii = ascii && static_cast<unsigned char>(c) < 0x80;
    if (!ascii) continue;  // the check counts bytes
    std::vector<std::string> lines(1);
    for (const char c : text) {
      if (c == '\n') {
        lines.emplace_back();
      } else {
        lines.back() += c;
      }
    }
    CheckPlaces(*value, lines, &wrong);
  }
  CHECK(wrong == 0);
  CHECK(parsed > 1000);
  CHECK(refused > 1000);
}

TEST_CASE("Garbage is refused") {
  std::mt19937_64 random(7);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text(random() % 40, 'x');
    for (char& c : text) c = static_cast<char>(random());
    accepted += ParseJson(text, "f").ok();
  }
  CHECK(accepted < 1000);
}

}  // namespace
}  // namespace weir

#include "common/config/json_document.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxShown = 60;  // bytes of a string in a message

// Follows the parser through the text. nlohmann reports tokens, not where they start, so for each event this
// cursor skips what may lie between two tokens and then the token. The parser decides what is legal.
class Cursor {
 public:
  explicit Cursor(absl::string_view text) : text_(text) {
    // A byte order mark, which the parser skips too.
    if (absl::StartsWith(text_, "\xEF\xBB\xBF")) at_ = 3;
  }

  int line() const { return line_; }
  int column() const { return column_; }
  absl::string_view rest() const { return text_.substr(at_); }
  bool passed_comma() const { return passed_comma_; }

  void SkipToToken() {
    passed_comma_ = false;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == ',') passed_comma_ = true;
      if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ',' || c == ':') {
        Advance(1);
      } else if (absl::StartsWith(rest(), "//")) {
        // The parser ends a comment at any of these.
        const size_t end = rest().find_first_of(absl::string_view("\n\r\0", 3));
        Advance(end == absl::string_view::npos ? rest().size() : end + 1);
      } else if (absl::StartsWith(rest(), "/*")) {
        const size_t end = text_.find("*/", at_ + 2);
        if (end == absl::string_view::npos) return;
        Advance(end + 2 - at_);
      } else {
        return;
      }
    }
  }

  // Skips a token that the parser has accepted.
  absl::string_view SkipToken() {
    const size_t start = at_;
    Advance(TokenLength());
    return text_.substr(start, at_ - start);
  }

  // The text at the cursor, for a message about it: a string, or everything up to a delimiter.
  absl::string_view Excerpt() const {
    const size_t length = absl::StartsWith(rest(), "\"")
                              ? TokenLength()
                              : std::max<size_t>(1, rest().find_first_of(" \t\r\n,:{}[]\"/"));
    return rest().substr(0, std::min(length, kMaxShown));
  }

 private:
  size_t TokenLength() const {
    const absl::string_view token = rest();
    size_t end = 0;
    const auto skip_digits = [&] {
      while (end < token.size() && absl::ascii_isdigit(static_cast<unsigned char>(token[end]))) ++end;
    };
    switch (token.empty() ? '\0' : token[0]) {
      case '\0':
        return 0;
      case 't':
      case 'n':
        return std::min<size_t>(4, token.size());
      case 'f':
        return std::min<size_t>(5, token.size());
      case '"':
        for (end = 1; end < token.size() && token[end] != '"'; ++end) {
          if (token[end] == '\\') ++end;
        }
        return std::min(end + 1, token.size());
      case '{':
      case '}':
      case '[':
      case ']':
        return 1;
      default:
        break;
    }
    // A number. "01" is two numbers, because a leading 0 ends a number.
    if (token[end] == '-') ++end;
    if (absl::StartsWith(token.substr(end), "0")) {
      ++end;
    } else {
      skip_digits();
    }
    if (absl::StartsWith(token.substr(end), ".")) {
      ++end;
      skip_digits();
    }
    if (absl::StartsWithIgnoreCase(token.substr(end), "e")) {
      ++end;
      if (absl::StartsWith(token.substr(end), "+") || absl::StartsWith(token.substr(end), "-")) ++end;
      skip_digits();
    }
    return end;
  }

  void Advance(size_t bytes) {
    for (const size_t end = at_ + bytes; at_ < end; ++at_) {
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '\n') {
        ++line_;
        column_ = 1;
      } else if ((c & 0xC0) != 0x80) {  // not a byte inside a UTF-8 character
        ++column_;
      }
    }
  }

  absl::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  int column_ = 1;
  bool passed_comma_ = false;
};

// Takes nlohmann's SAX events, which fix the signatures.
class TreeBuilder {
 public:
  TreeBuilder(absl::string_view text, std::shared_ptr<const std::string> source)
      : cursor_(text), source_(std::move(source)) {}

  absl::StatusOr<JsonValue> Finish(bool parsed) && {
    if (!error_.ok()) return error_;
    if (!parsed) return absl::InternalError("the JSON parser gave up without a reason");
    return std::move(root_);
  }

  bool null() {
    return AddScalar(JsonValue::Kind::kNull, [](JsonValue*) {});
  }
  bool boolean(bool b) {
    return AddScalar(JsonValue::Kind::kBool, [b](JsonValue* v) { v->boolean = b; });
  }
  bool number_integer(int64_t n) {
    return AddScalar(JsonValue::Kind::kNegative, [n](JsonValue* v) { v->negative = n; });
  }
  bool number_unsigned(uint64_t n) {
    return AddScalar(JsonValue::Kind::kUnsigned, [n](JsonValue* v) { v->natural = n; });
  }
  bool number_float(double d, const std::string&) {
    return AddScalar(JsonValue::Kind::kDouble, [d](JsonValue* v) { v->real = d; });
  }
  bool string(std::string& s) {
    return AddScalar(JsonValue::Kind::kString, [&s](JsonValue* v) { v->text = std::move(s); });
  }
  bool binary(std::vector<uint8_t>&) { return false; }  // never in text
  bool start_object(size_t) { return Open(JsonValue::Kind::kObject); }
  bool start_array(size_t) { return Open(JsonValue::Kind::kArray); }
  bool end_object() { return Close(); }
  bool end_array() { return Close(); }

  bool key(std::string& key) {
    cursor_.SkipToToken();
    JsonPlace place = Here();
    cursor_.SkipToken();
    JsonValue* object = open_.back().value;
    const auto [first, inserted] = open_.back().keys.emplace(key, object->members.size());
    if (!inserted) {
      return Fail(place, absl::StrCat("key ", JsonQuote(key), " is already there, at ",
                                      object->members[first->second].place.ToString()));
    }
    object->members.push_back({std::move(key), std::move(place), {}});
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& error) {
    cursor_.SkipToToken();
    const JsonPlace place = Here();
    // "[json.exception...] parse error at line 1, column 2: syntax error while parsing value - REASON; last
    // read: '...'"
    absl::string_view reason = error.what();
    if (const size_t dash = reason.find(" - "); dash != absl::string_view::npos) {
      reason.remove_prefix(dash + 3);
    } else if (const size_t bracket = reason.find("] "); bracket != absl::string_view::npos) {
      reason.remove_prefix(bracket + 2);
    }
    reason = reason.substr(0, reason.find("; last read: "));
    if (cursor_.passed_comma() &&
        (absl::StartsWith(cursor_.rest(), "}") || absl::StartsWith(cursor_.rest(), "]"))) {
      reason = "a comma is not allowed before the closing bracket";
    }
    const absl::string_view token = cursor_.Excerpt();
    // The token may be broken UTF-8; a message never is. What is plain stays as it was written.
    const std::string shown =
        absl::StrReplaceAll(absl::CHexEscape(token), {{R"(\\)", R"(\)"}, {R"(\")", R"(")"}, {R"(\')", "'"}});
    return Fail(place, absl::StrCat(reason, token.empty() ? "" : "; near ", shown));
  }

 private:
  struct OpenValue {
    JsonValue* value;  // stays put: its parent gets no further element before it is closed
    absl::flat_hash_map<std::string, size_t> keys;
  };

  JsonPlace Here() const { return {source_, cursor_.line(), cursor_.column()}; }

  bool Fail(const JsonPlace& place, absl::string_view what) {
    error_ = absl::InvalidArgumentError(absl::StrCat(place.ToString(), ": ", what));
    return false;
  }

  JsonValue* NewValue(JsonValue::Kind kind) {
    JsonValue* value = &root_;
    if (!open_.empty()) {
      JsonValue* parent = open_.back().value;
      value = parent->kind == JsonValue::Kind::kObject ? &parent->members.back().value
                                                       : &parent->elements.emplace_back();
    }
    cursor_.SkipToToken();
    value->kind = kind;
    value->place = Here();
    return value;
  }

  template <typename Fill>
  bool AddScalar(JsonValue::Kind kind, Fill fill) {
    JsonValue* value = NewValue(kind);
    const absl::string_view token = cursor_.SkipToken();
    if (value->is_number()) value->text = std::string(token);
    fill(value);
    return true;
  }

  bool Open(JsonValue::Kind kind) {
    JsonValue* value = NewValue(kind);
    if (open_.size() == kMaxDepth) {
      return Fail(value->place, absl::StrCat("nested too deep; at most ", kMaxDepth, " levels are allowed"));
    }
    cursor_.SkipToken();
    open_.push_back({value, {}});
    return true;
  }

  bool Close() {
    cursor_.SkipToToken();
    cursor_.SkipToken();
    open_.pop_back();
    return true;
  }

  Cursor cursor_;
  std::shared_ptr<const std::string> source_;
  JsonValue root_;
  std::vector<OpenValue> open_;
  absl::Status error_;
};

template <typename Number>
std::string ShortestText(Number value) {
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof(buffer), value).ptr);
}

}  // namespace

std::string JsonPlace::ToString() const {
  const absl::string_view name = source == nullptr ? absl::string_view() : absl::string_view(*source);
  return line == 0 ? std::string(name) : absl::StrCat(name, ":", line, ":", column);
}

double JsonValue::AsDouble() const {
  switch (kind) {
    case Kind::kNegative:
      return static_cast<double>(negative);
    case Kind::kUnsigned:
      return static_cast<double>(natural);
    case Kind::kDouble:
    case Kind::kNull:
    case Kind::kBool:
    case Kind::kString:
    case Kind::kArray:
    case Kind::kObject:
      break;
  }
  return real;
}

const JsonMember* JsonValue::Find(absl::string_view key) const {
  for (const JsonMember& member : members) {
    if (member.key == key) return &member;
  }
  return nullptr;
}

JsonMember* JsonValue::Find(absl::string_view key) {
  return const_cast<JsonMember*>(std::as_const(*this).Find(key));
}

std::string JsonValue::Describe() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return boolean ? "true" : "false";
    case Kind::kNegative:
    case Kind::kUnsigned:
    case Kind::kDouble:
      return text.size() <= kMaxShown ? text : text.substr(0, kMaxShown) + "...";
    case Kind::kArray:
      return "a list";
    case Kind::kObject:
      return "an object";
    case Kind::kString:
      break;
  }
  if (text.size() <= kMaxShown) return JsonQuote(text);
  size_t end = kMaxShown;
  // An override from the command line need not be UTF-8.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return JsonQuote(text.substr(0, end)) + "...";
}

absl::StatusOr<JsonValue> ParseJson(absl::string_view text, absl::string_view source) {
  TreeBuilder builder(text, std::make_shared<const std::string>(source));
  const bool parsed = nlohmann::json::sax_parse(text.begin(), text.end(), &builder,
                                                nlohmann::json::input_format_t::json, /*strict=*/true,
                                                /*ignore_comments=*/true);
  return std::move(builder).Finish(parsed);
}

std::string JsonQuote(absl::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          absl::StrAppendFormat(&out, "\\u%04x", c);
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

std::string JsonNumber(double value) { return ShortestText(value); }
std::string JsonNumber(float value) { return ShortestText(value); }

}  // namespace weir

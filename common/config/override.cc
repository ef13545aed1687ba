#include "common/config/override.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weir {
namespace {

// "a[0].b" -> {"a", "0", "b"}; empty if it is no path.
std::vector<std::string> SplitPath(absl::string_view path) {
  std::vector<std::string> steps;
  for (absl::string_view part : absl::StrSplit(path, '.')) {
    std::vector<absl::string_view> pieces = absl::StrSplit(part, '[');
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i > 0 && !absl::ConsumeSuffix(&pieces[i], "]")) return {};
      if (pieces[i].empty()) return {};
      steps.emplace_back(pieces[i]);
    }
  }
  return steps;
}

// All places inside `value` become `place`: a position in an override's text would mean nothing to its
// reader.
void SetPlaces(const JsonPlace& place, JsonValue* value) {
  value->place = place;
  for (JsonValue& element : value->elements) SetPlaces(place, &element);
  for (JsonMember& member : value->members) {
    member.place = place;
    SetPlaces(place, &member.value);
  }
}

JsonValue ParseOverrideValue(absl::string_view text, const JsonPlace& place) {
  JsonValue value;
  if (absl::StatusOr<JsonValue> parsed = ParseJson(text, ""); parsed.ok()) {
    value = *std::move(parsed);
  } else {
    value.kind = JsonValue::Kind::kString;
    value.text = std::string(text);
  }
  SetPlaces(place, &value);
  return value;
}

// Goes one step down from `parent`, for writing. Makes a missing member.
absl::StatusOr<JsonValue*> Descend(const std::string& step, const JsonPlace& place, JsonValue* parent) {
  if (parent->kind == JsonValue::Kind::kArray) {
    uint32_t index;
    if (!absl::SimpleAtoi(step, &index) || index >= parent->elements.size()) {
      return absl::InvalidArgumentError(absl::StrCat("\"", step, "\" is no element of the list, which has ",
                                                     parent->elements.size(), " elements, counted from 0"));
    }
    return &parent->elements[index];
  }
  if (parent->kind == JsonValue::Kind::kNull) {  // made by the step before
    parent->kind = JsonValue::Kind::kObject;
    parent->place = place;
  }
  if (parent->kind != JsonValue::Kind::kObject) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", step, "\" is looked for in ", parent->Describe(), ", which has no fields"));
  }
  if (JsonMember* member = parent->Find(step)) return &member->value;
  parent->members.push_back({step, place, {}});
  return &parent->members.back().value;
}

}  // namespace

absl::Status ApplyOverride(absl::string_view assignment, JsonValue* root) {
  const JsonPlace place{std::make_shared<const std::string>(absl::StrCat("--set ", assignment)), 0, 0};
  const auto refuse = [&place](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(place.ToString(), ": ", what));
  };
  const size_t equals = assignment.find('=');
  const std::vector<std::string> path = SplitPath(assignment.substr(0, equals));
  if (equals == absl::string_view::npos || path.empty()) {
    return refuse("must be PATH=VALUE, such as optimizer.learning_rate=0.1 or model.layers[0].units=64");
  }
  JsonValue value = ParseOverrideValue(assignment.substr(equals + 1), place);
  JsonValue* target = root;
  JsonValue* parent = nullptr;
  for (const std::string& step : path) {
    parent = target;
    absl::StatusOr<JsonValue*> next = Descend(step, place, parent);
    if (!next.ok()) return refuse(next.status().message());
    target = *next;
  }
  if (value.kind != JsonValue::Kind::kNull) {
    *target = std::move(value);
  } else if (parent->kind == JsonValue::Kind::kObject) {
    parent->members.erase(std::find_if(parent->members.begin(), parent->members.end(),
                                       [&path](const JsonMember& m) { return m.key == path.back(); }));
  } else {
    return refuse("null takes a field out, but not an element of a list");
  }
  return absl::OkStatus();
}

}  // namespace weir

#include "tests/history/history_log.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace weir {
namespace {

HistoryEvent ToEvent(const nlohmann::json& line) {
  HistoryEvent event;
  event.is_push = line.at("op") == "push";
  event.is_rows = line.at("op") == "rows";
  if (!event.is_push && !event.is_rows && line.at("op") != "pull") {
    throw std::invalid_argument("op is none of push, pull and rows");
  }
  line.at("worker").get_to(event.worker);
  line.at("worker_incarnation").get_to(event.worker_incarnation);
  line.at("shard").get_to(event.shard);
  line.at("clock").get_to(event.clock);
  line.at("version").get_to(event.version);
  line.at("incarnation").get_to(event.incarnation);
  if (event.is_push) {
    line.at("outcome").get_to(event.outcome);
    line.at("part").get_to(event.part);
    line.at("batch").get_to(event.batch);
    line.at("staleness").get_to(event.staleness);
  } else if (event.is_rows) {
    for (const nlohmann::json& row : line.at("rows")) {
      event.rows.push_back({row.at(0), row.at(1), row.at(2), row.at(3)});
    }
  } else {
    event.outcome = line.value("outcome", "OK");
    event.pin = line.value("pin", uint64_t{0});
    line.at("clocks").get_to(event.clocks);
  }
  return event;
}

}  // namespace

absl::Status ReadHistory(const std::string& name, const std::string& text, bool cut,
                         std::vector<HistoryEvent>* events) {
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string where = absl::StrCat(name, ":", ++number);
    if (end == std::string::npos) {
      if (cut) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(where, ": the last line is broken off"));
    }
    try {
      events->push_back(ToEvent(nlohmann::json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                                      text.begin() + static_cast<std::ptrdiff_t>(end))));
    } catch (const std::exception& error) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": ", error.what()));
    }
    events->back().where = where;
    begin = end + 1;
  }
  return absl::OkStatus();
}

}  // namespace weir

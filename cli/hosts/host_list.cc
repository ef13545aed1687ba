#include "cli/hosts/host_list.h"

#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "cli/report/format.h"
#include "common/base/status_macros.h"
#include "common/config/written_text.h"

namespace weir {
namespace {

constexpr int kMostSlots = 256;  // as --workers

absl::Status Refuse(absl::string_view where, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(where, ": ", what));
}

absl::Status ReadField(absl::string_view where, absl::string_view field, Host* host) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(field, absl::MaxSplits('=', 1));
  const auto& [key, value] = parts;
  if (key == "address" && !value.empty()) {
    host->address = std::string(value);
    return absl::OkStatus();
  }
  std::optional<int>* const count = key == "slots" ? &host->slots : key == "gpus" ? &host->gpus : nullptr;
  const int least = key == "slots" ? 1 : 0;
  int number = 0;
  if (count == nullptr) {
    return Refuse(where,
                  absl::StrCat("'", Printable(field),
                               "': behind a host's name there may be slots=N, gpus=N and address=ADDRESS"));
  }
  if (!absl::SimpleAtoi(value, &number) || number < least || number > kMostSlots) {
    return Refuse(where, absl::StrCat("'", Printable(field), "': ", key, " is a whole number from ", least,
                                      " to ", kMostSlots));
  }
  *count = number;
  return absl::OkStatus();
}

absl::Status AddHost(absl::string_view where, absl::string_view line, std::vector<Host>* hosts) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
  Host host;
  host.name = words.empty() ? "" : std::string(words[0]);
  // ssh would take the name for a flag, or slots=4 for a host.
  if (host.name.empty() || host.name[0] == '-' || absl::StrContains(host.name, '=')) {
    return Refuse(where, absl::StrCat("'", Printable(line), "' does not begin with a host's name"));
  }
  for (const Host& other : *hosts) {
    if (other.name == host.name) {
      return Refuse(where,
                    absl::StrCat(Printable(host.name), " is there twice; slots=N asks for more workers"));
    }
  }
  for (size_t i = 1; i < words.size(); ++i) WEIR_RETURN_IF_ERROR(ReadField(where, words[i], &host));
  hosts->push_back(std::move(host));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Host>> ReadHosts(const std::string& text) {
  std::vector<Host> hosts;
  std::error_code error;
  if (absl::StrContains(text, ',') ||
      !(absl::StrContains(text, '/') || std::filesystem::exists(text, error))) {
    for (const absl::string_view name : absl::StrSplit(text, ',')) {
      WEIR_RETURN_IF_ERROR(AddHost("--hosts", name, &hosts));
    }
    return hosts;
  }
  WEIR_ASSIGN_OR_RETURN(const std::string file, ReadTextFile(text));
  int number = 0;
  for (absl::string_view line : absl::StrSplit(file, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (!line.empty()) WEIR_RETURN_IF_ERROR(AddHost(absl::StrCat(text, ":", number), line, &hosts));
  }
  if (hosts.empty()) return Refuse(text, "there is no host in it; each line names one: a slots=4");
  return hosts;
}

int CountSlots(const std::vector<Host>& hosts) {
  int slots = 0;
  for (const Host& host : hosts) slots += host.slots.value_or(1);
  return slots;
}

absl::StatusOr<std::vector<int>> PlaceWorkers(const std::vector<Host>& hosts, int workers) {
  std::vector<int> counts(hosts.size(), 0);
  int placed = 0, before = -1;
  for (; placed < workers && placed != before;) {
    before = placed;
    for (size_t i = 0; i < hosts.size() && placed < workers; ++i) {
      if (counts[i] >= hosts[i].slots.value_or(workers)) continue;
      ++counts[i];
      ++placed;
    }
  }
  if (placed < workers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--hosts: ", workers, " workers, but the hosts have ", placed,
        " slots; give a host more (slots=N), or ask for fewer workers (--workers=", placed, ")"));
  }
  std::vector<int> where;
  for (size_t i = 0; i < hosts.size(); ++i) where.insert(where.end(), counts[i], static_cast<int>(i));
  return where;
}

}  // namespace weir

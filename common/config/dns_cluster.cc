#include "common/config/dns_cluster.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/config/task.h"
#include "common/config/written_text.h"

namespace weir {
namespace {

constexpr absl::string_view kScheme = "dns:";
constexpr absl::string_view kPort = "2222";
constexpr absl::string_view kForm = "JOB=NAME:COUNT or JOB=NAME:COUNT:PORT, such as ps=weir-ps:2";
// Of a part of a DNS name, and of the whole.
constexpr size_t kLongestLabel = 63;
constexpr size_t kLongestName = 253;

class Parser {
 public:
  Parser(absl::string_view text, absl::string_view source)
      : text_(text), source_(std::make_shared<const std::string>(source)) {}

  absl::StatusOr<std::vector<DnsJob>> Parse() const {
    std::vector<DnsJob> jobs;
    for (const absl::string_view entry : absl::StrSplit(text_.substr(kScheme.size()), ',')) {
      WEIR_ASSIGN_OR_RETURN(DnsJob job, ParseEntry(entry));
      for (const DnsJob& earlier : jobs) {
        if (earlier.job != job.job) continue;
        return Refuse(entry,
                      absl::StrCat("the job ", job.job, " is already there, at ", earlier.place.ToString()));
      }
      jobs.push_back(std::move(job));
    }
    return jobs;
  }

 private:
  // `part` is a part of the text.
  JsonPlace PlaceOf(absl::string_view part) const {
    return {source_, 1, static_cast<int>(part.data() - text_.data()) + 1};
  }
  absl::Status Refuse(absl::string_view part, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(PlaceOf(part).ToString(), ": ", what));
  }

  absl::StatusOr<DnsJob> ParseEntry(absl::string_view entry) const {
    const size_t equals = entry.find('=');
    if (equals == absl::string_view::npos) {
      return Refuse(entry, absl::StrCat("must be ", kForm, "; got ", JsonQuote(entry)));
    }
    const absl::string_view job = entry.substr(0, equals);
    const std::vector<absl::string_view> parts = absl::StrSplit(entry.substr(equals + 1), ':');
    DnsJob result;
    result.job = CanonicalJob(job);
    result.place = PlaceOf(job);
    result.name_place = PlaceOf(parts[0]);
    if (result.job.empty()) {
      return Refuse(job, absl::StrCat("must be a job, one of ", kTaskTypes, "; got ", JsonQuote(job),
                                      DidYouMean(job, {"ps", "worker", "chief", "evaluator"})));
    }
    if (parts.size() < 2 || parts.size() > 3) {
      return Refuse(parts[0], absl::StrCat(job, ": must be ", kForm, "; got ", JsonQuote(entry)));
    }
    WEIR_ASSIGN_OR_RETURN(const std::string pattern, ParseName(job, parts[0]));
    WEIR_ASSIGN_OR_RETURN(const uint32_t count, ParseCount(result.job, parts[1]));
    const absl::string_view port = parts.size() == 3 ? parts[2] : kPort;
    for (uint32_t i = 0; i < count; ++i) {
      absl::StatusOr<Address> address =
          ParseAddress(absl::StrCat(absl::StrReplaceAll(pattern, {{"*", absl::StrCat(i)}}), ":", port));
      if (!address.ok()) return Refuse(parts.back(), absl::StrCat(job, ": ", address.status().message()));
      if (address->port == 0) {
        return Refuse(parts.back(), absl::StrCat(job, ": the port must be in 1..65535, got ", port));
      }
      result.addresses.push_back(*std::move(address));
    }
    return result;
  }

  // A host's name with one "*" for the index.
  absl::StatusOr<std::string> ParseName(absl::string_view job, absl::string_view name) const {
    std::string pattern(name);
    if (!absl::StrContains(name, '*')) {
      pattern = absl::StrCat(name.substr(0, name.find('.')), "-*.", name);
    }
    const auto refuse = [&](absl::string_view why) {
      return Refuse(name, absl::StrCat(job, ": the name ", JsonQuote(name), " ", why));
    };
    if (std::count(pattern.begin(), pattern.end(), '*') > 1) {
      return refuse("has more than one *, which stands for the index");
    }
    // The longest index.
    const std::string longest = absl::StrReplaceAll(pattern, {{"*", absl::StrCat(kMostTasks - 1)}});
    if (longest.size() > kLongestName) {
      return refuse(
          absl::StrCat("gives hosts of ", longest.size(), " characters; a host has at most ", kLongestName));
    }
    const auto good = [](char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-'; };
    for (const absl::string_view label : absl::StrSplit(longest, '.')) {
      if (label.empty() || label.size() > kLongestLabel || label.front() == '-' || label.back() == '-' ||
          !std::all_of(label.begin(), label.end(), good)) {
        return refuse(
            absl::StrCat("must be a service's name in DNS: parts of lower-case letters, digits and inner "
                         "hyphens, at most ",
                         kLongestLabel, " with the index, and dots between them"));
      }
    }
    return pattern;
  }

  absl::StatusOr<uint32_t> ParseCount(absl::string_view job, absl::string_view text) const {
    uint32_t count = 0;
    const uint32_t most = job == "chief" ? 1 : kMostTasks;
    if (ParseIndex(text, &count) && count >= 1 && count <= most) return count;
    return Refuse(text, absl::StrCat(job, ": the count must be ",
                                     most == 1 ? "1, since there is one chief" : absl::StrCat("in 1..", most),
                                     "; got ", JsonQuote(text)));
  }

  const absl::string_view text_;
  const std::shared_ptr<const std::string> source_;
};

}  // namespace

bool IsDnsCluster(absl::string_view text) { return absl::StartsWith(text, kScheme); }

absl::StatusOr<std::vector<DnsJob>> ParseDnsCluster(absl::string_view text, absl::string_view source) {
  return Parser(text, source).Parse();
}

}  // namespace weir

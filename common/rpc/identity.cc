#include "common/rpc/identity.h"

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weir {
namespace {

constexpr char kScheme[] = "spiffe://";
constexpr char kDomain[] = ".weir";
constexpr size_t kMostOfJob = 63;

absl::string_view NameOf(Role role) {
  switch (role) {
    case Role::kWorker:
      return "worker";
    case Role::kServer:
      return "ps";
    case Role::kReader:
      return "reader";
    case Role::kAdmin:
      return "admin";
  }
  return "";
}

bool HasIndex(Role role) { return role == Role::kWorker || role == Role::kServer; }

std::string Named(const Identity& identity, absl::string_view separator) {
  const std::string name(NameOf(identity.role));
  return HasIndex(identity.role) ? absl::StrCat(name, separator, identity.index) : name;
}

// `index` is nullptr if the name has none.
std::optional<Identity> Make(absl::string_view job, absl::string_view role, const absl::string_view* index) {
  Identity identity;
  identity.job = std::string(job);
  for (const Role candidate : {Role::kWorker, Role::kServer, Role::kReader, Role::kAdmin}) {
    if (role != NameOf(candidate)) continue;
    if (HasIndex(candidate) != (index != nullptr) || !CheckJobName(job).ok()) return std::nullopt;
    identity.role = candidate;
    if (index == nullptr) return identity;
    // One index has one spelling: no sign, no leading zero.
    if (!absl::SimpleAtoi(*index, &identity.index) || absl::StrCat(identity.index) != *index) {
      return std::nullopt;
    }
    return identity;
  }
  return std::nullopt;
}

std::optional<Identity> FromUri(absl::string_view uri) {
  if (!absl::ConsumePrefix(&uri, kScheme)) return std::nullopt;
  const std::vector<absl::string_view> parts = absl::StrSplit(uri, '/');
  if (parts.size() < 2 || parts.size() > 3) return std::nullopt;
  return Make(parts[0], parts[1], parts.size() == 3 ? &parts[2] : nullptr);
}

std::optional<Identity> FromDns(const std::string& dns) {
  const std::string lower = absl::AsciiStrToLower(dns);
  absl::string_view name = lower;
  if (!absl::ConsumeSuffix(&name, kDomain)) return std::nullopt;
  const std::vector<absl::string_view> labels = absl::StrSplit(name, '.');
  if (labels.size() != 2) return std::nullopt;
  const size_t dash = labels[0].find('-');
  if (dash == absl::string_view::npos) return Make(labels[1], labels[0], nullptr);
  const absl::string_view index = labels[0].substr(dash + 1);
  return Make(labels[1], labels[0].substr(0, dash), &index);
}

}  // namespace

std::string Identity::ToUri() const { return absl::StrCat(kScheme, job, "/", Named(*this, "/")); }
std::string Identity::ToDns() const { return absl::StrCat(Named(*this, "-"), ".", job, kDomain); }

absl::StatusOr<Identity> IdentityOf(const std::vector<std::string>& uris,
                                    const std::vector<std::string>& dns_names) {
  std::optional<Identity> found;
  const auto take = [&](const std::optional<Identity>& next) -> absl::Status {
    if (next.has_value() && found.has_value() && !(*next == *found)) {
      return absl::InvalidArgumentError(
          absl::StrCat("names two identities, ", found->ToUri(), " and ", next->ToUri()));
    }
    if (next.has_value()) found = next;
    return absl::OkStatus();
  };
  for (const std::string& uri : uris) {
    const std::optional<Identity> identity = FromUri(uri);
    if (!identity.has_value() && absl::StartsWithIgnoreCase(uri, "spiffe:")) {
      return absl::InvalidArgumentError(
          absl::StrCat("names ", absl::CHexEscape(uri),
                       ", which is none of spiffe://JOB/worker/INDEX, .../ps/INDEX, .../reader, .../admin"));
    }
    if (const absl::Status status = take(identity); !status.ok()) return status;
  }
  for (const std::string& name : dns_names) {
    if (const absl::Status status = take(FromDns(name)); !status.ok()) return status;
  }
  if (found.has_value()) return *found;
  return absl::NotFoundError(
      "names no role; it needs a SAN such as URI spiffe://JOB/worker/0 or DNS worker-0.JOB.weir");
}

absl::Status CheckJobName(absl::string_view job) {
  const bool fits = !job.empty() && job.size() <= kMostOfJob && job.front() != '-' && job.back() != '-' &&
                    std::all_of(job.begin(), job.end(), [](unsigned char c) {
                      return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
                    });
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(job),
                                                 "\" is no name for a job in certificates: 1 to ", kMostOfJob,
                                                 " of a-z, 0-9 and \"-\", the first and last no \"-\""));
}

}  // namespace weir

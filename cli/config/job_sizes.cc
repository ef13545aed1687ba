#include "cli/config/job_sizes.h"

#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/local_cluster/installation.h"
#include "common/base/status_macros.h"
#include "common/config/json_document.h"
#include "common/program/exit_codes.h"
#include "common/system/subprocess.h"

namespace weir {
namespace {

// The beginning of a file may be on a slow network disk.
constexpr std::chrono::seconds kLimit(60);

std::optional<int64_t> Number(const JsonValue& sizes, absl::string_view key) {
  const JsonMember* const member = sizes.Find(key);
  if (member == nullptr || member->value.kind != JsonValue::Kind::kUnsigned) return std::nullopt;
  return static_cast<int64_t>(member->value.natural);
}

}  // namespace

absl::StatusOr<JobSizes> FindJobSizes(const std::string& path, const std::vector<std::string>& overrides) {
  WEIR_ASSIGN_OR_RETURN(const std::string worker, FindProgram("worker", "worker"));
  Subprocess::Options options;
  options.args = {worker, "--sizes", absl::StrCat("--config=", path)};
  for (const std::string& override : overrides) {
    options.args.insert(options.args.end(), {"--set", override});
  }
  WEIR_ASSIGN_OR_RETURN(const CommandResult result, RunCommand(std::move(options), kLimit));
  const absl::string_view output = absl::StripAsciiWhitespace(result.output);
  if (result.exit.status() == kExitConfig) return absl::InvalidArgumentError(output);
  if (!result.exit.ok()) {
    return absl::InternalError(absl::StrCat(worker, " --sizes: ", result.exit.ToString(), ": ", output));
  }
  WEIR_ASSIGN_OR_RETURN(const JsonValue root, ParseJson(output, absl::StrCat(worker, " --sizes")));
  JobSizes sizes;
  sizes.parameters = Number(root, "parameters");
  sizes.worker_bytes = Number(root, "worker_bytes");
  if (const JsonMember* unknown = root.Find("unknown")) sizes.unknown = unknown->value.text;
  return sizes;
}

}  // namespace weir

#include "cli/report/config_text.h"

#include <algorithm>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/report/format.h"
#include "common/config/server_memory.h"
#include "common/protocol/mode_traits.h"

namespace weir {
namespace {

constexpr double kMiB = 1 << 20;

}  // namespace

std::string DescribeServerMemory(const v1::JobConfig& config) {
  // 0: as many as the cluster spec lists.
  const uint32_t workers = config.cluster().workers();
  const ServerMemory memory = ServerMemoryOf(config, workers);

  std::string text =
      absl::StrCat("memory of a server, W = bytes of its weights: ", memory.held, " W (weights and ",
                   Counted(memory.slots, "slot"), memory.streamed ? ", twice: streamed" : "", ")");
  const auto at_most = [&](double n, const char* unit, const char* what) {
    if (n > 0) absl::StrAppend(&text, " + at most ", n, " ", unit, " (", what, ")");
  };
  if (TraitsOf(config).commits_steps) {
    absl::StrAppend(&text, " + ", memory.step > 0 ? absl::StrCat(memory.step, " W") : "W for each worker",
                    " (the parts of a step)");
  } else if (workers == 0) {
    absl::StrAppend(&text, " + at most W for each ", memory.streamed ? "further " : "",
                    "worker (gradients that are arriving)");
  } else {
    at_most(memory.arriving, "W", "gradients that are arriving");
  }
  at_most(memory.old_versions, "W", "old versions that workers and readers hold");
  // Without a number of workers there may be several.
  at_most(ServerMemoryOf(config, workers == 0 ? 2 : workers).overtaken, "W",
          "what was made of overtaken pushes");
  at_most(memory.saved, "W", "a version while it is saved");
  const double rows = TableMemoryOf(config, 1).most;
  if (rows > 0) {
    absl::StrAppend(&text, " + at most ", absl::StrFormat("%.1f", rows / kMiB),
                    " MiB / servers (rows of tables with max_rows)");
  }
  if (absl::c_any_of(config.tables(), [](const v1::TableConfig& table) { return table.max_rows() == 0; })) {
    absl::StrAppend(&text, " + rows of tables without max_rows, however many");
  }
  if (absl::c_any_of(config.tables(), [](const v1::TableConfig& table) {
        return table.admit_after() > 0 && table.expire_after_steps() == 0;
      })) {
    absl::StrAppend(&text,
                    " + counts of keys that are not admitted in tables without expire_after_steps, "
                    "however many");
  }
  const double chunks = static_cast<double>(ServerMemoryOf(config, std::max(workers, 1u)).chunk_bytes);
  absl::StrAppend(&text, " + ", chunks / kMiB, " MiB", workers > 0 ? "" : " for each worker",
                  " (chunks on their way)");
  at_most(static_cast<double>(memory.storage_bytes) / kMiB, "MiB", "requests to object storage");
  return text;
}

std::string DescribeServerBytes(const v1::JobConfig& config, uint32_t servers, uint32_t workers,
                                int64_t parameters) {
  const uint64_t bytes = ServerBytes(config, workers, parameters, servers);
  return absl::StrCat(
      "that is at most ", bytes, " bytes (", absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / kMiB),
      ") with ", Counted(static_cast<uint64_t>(parameters), "parameter"), ", ", Counted(servers, "server"),
      " and ", Counted(workers, "worker"), ", and the program itself");
}

std::string DescribeCheckpoints(const v1::JobConfig& config) {
  const v1::CheckpointConfig& checkpoint = config.checkpoint();
  if (!checkpoint.has_directory()) {
    return "checkpoints: none (checkpoint.directory is not set); a lost server ends the job";
  }
  std::vector<std::string> when;
  if (checkpoint.every_steps() > 0)
    when.push_back(absl::StrCat("every ", checkpoint.every_steps(), " steps"));
  if (checkpoint.every_seconds() > 0) {
    when.push_back(absl::StrCat("every ", checkpoint.every_seconds(), " s"));
  }
  if (when.empty()) when.push_back("at intervals that follow from what one costs");
  return absl::StrCat("checkpoints: ", absl::StrJoin(when, " and "), " and at the job's end, in ",
                      checkpoint.directory(), ", the newest ", checkpoint.keep(), " kept",
                      config.server().durability() == v1::ServerConfig::DURABILITY_LOG
                          ? "; a log of each push beside them"
                          : "");
}

}  // namespace weir

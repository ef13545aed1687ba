#include "cli/config/server_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/config/server_memory.h"
#include "common/protocol/mode_traits.h"

namespace weir {
namespace {

constexpr double kMiB = 1 << 20;

std::string Count(uint64_t n, const char* what) { return absl::StrCat(n, " ", what, n == 1 ? "" : "s"); }

std::string Times(double n, const char* unit) { return absl::StrCat(n, " ", unit); }

}  // namespace

std::string DescribeServerMemory(const v1::JobConfig& config) {
  // 0: as many as the cluster spec lists.
  const uint32_t workers = config.cluster().workers();
  const ServerMemory memory = ServerMemoryOf(config, workers);

  std::string text = "memory of a server, W = bytes of its weights: ";
  absl::StrAppend(&text, Times(memory.held, "W"), " (weights and ", Count(memory.slots, "slot"),
                  memory.streamed ? ", twice: streamed" : "", ")");
  if (TraitsOf(config).commits_steps) {
    absl::StrAppend(&text, " + ", memory.step > 0 ? Times(memory.step, "W") : "W for each worker",
                    " (the parts of a step)");
  } else if (workers == 0) {
    absl::StrAppend(&text, " + at most W for each ", memory.streamed ? "further " : "",
                    "worker (gradients that are arriving)");
  } else if (memory.arriving > 0) {
    absl::StrAppend(&text, " + at most ", Times(memory.arriving, "W"), " (gradients that are arriving)");
  }
  absl::StrAppend(&text, " + at most ", Times(memory.old_versions, "W"),
                  " (old versions that workers and readers hold)");
  // Without a number of workers there may be several.
  const double overtaken = ServerMemoryOf(config, workers == 0 ? 2 : workers).overtaken;
  if (overtaken > 0) {
    absl::StrAppend(&text, " + at most ", Times(overtaken, "W"), " (what was made of overtaken pushes)");
  }
  if (memory.saved > 0) {
    absl::StrAppend(&text, " + at most ", Times(memory.saved, "W"), " (a version while it is saved)");
  }
  const double rows = TableMemoryOf(config, 1).most;
  if (rows > 0) {
    absl::StrAppend(&text, " + at most ", absl::StrFormat("%.1f", rows / kMiB),
                    " MiB / servers (rows of tables with max_rows)");
  }
  if (std::any_of(config.tables().begin(), config.tables().end(),
                  [](const v1::TableConfig& table) { return table.max_rows() == 0; })) {
    absl::StrAppend(&text, " + rows of tables without max_rows, however many");
  }
  if (std::any_of(config.tables().begin(), config.tables().end(), [](const v1::TableConfig& table) {
        return table.admit_after() > 0 && table.expire_after_steps() == 0;
      })) {
    absl::StrAppend(&text,
                    " + counts of keys that are not admitted in tables without expire_after_steps, "
                    "however many");
  }
  const double chunks = static_cast<double>(ServerMemoryOf(config, std::max(workers, 1u)).chunk_bytes);
  absl::StrAppend(&text, " + ", Times(chunks / kMiB, "MiB"), workers > 0 ? "" : " for each worker",
                  " (chunks on their way)");
  if (memory.storage_bytes > 0) {
    absl::StrAppend(&text, " + at most ", Times(static_cast<double>(memory.storage_bytes) / kMiB, "MiB"),
                    " (requests to object storage)");
  }
  return text;
}

std::string DescribeServerBytes(const v1::JobConfig& config, uint32_t servers, uint32_t workers,
                                int64_t parameters) {
  const uint64_t bytes = ServerBytes(config, workers, parameters, servers);
  return absl::StrCat("that is at most ", bytes, " bytes (",
                      absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / kMiB), ") with ",
                      Count(static_cast<uint64_t>(parameters), "parameter"), ", ", Count(servers, "server"),
                      " and ", Count(workers, "worker"), ", and the program itself");
}

}  // namespace weir

#include "cli/config/server_memory.h"

#include "absl/strings/str_cat.h"
#include "common/config/optimizer_slots.h"
#include "common/config/server_memory.h"
#include "common/protocol/mode_traits.h"

namespace weir {
namespace {

std::string Count(uint64_t n, const char* what) { return absl::StrCat(n, " ", what, n == 1 ? "" : "s"); }

std::string Times(double n, const char* unit) { return absl::StrCat(n, " ", unit); }

}  // namespace

std::string DescribeServerMemory(const v1::JobConfig& config) {
  const bool sync = TraitsOf(config).commits_steps;
  const bool streamed = AppliesStreamed(config);
  const size_t slots = OptimizerSlots(config.optimizer().type()).size();
  // 0: as many as the cluster spec lists.
  const uint32_t workers = config.cluster().workers();
  const uint32_t parts = config.consistency().has_parts() ? config.consistency().parts() : workers;

  std::string text = "memory of a server, W = bytes of its weights: ";
  const std::string held = absl::StrCat("weights and ", Count(slots, "slot"));
  absl::StrAppend(&text, Times((streamed ? 2 : 1) * (1 + slots), "W"), " (", held,
                  streamed ? ", twice: streamed" : "", ")");

  if (sync) {
    absl::StrAppend(&text, " + ", parts > 0 ? Times(parts, "W") : "W for each worker",
                    " (the parts of a step)");
  } else if (workers == 0) {
    absl::StrAppend(&text, " + at most W for each ", streamed ? "further " : "",
                    "worker (gradients that are arriving)");
  } else if (workers > 1 || !streamed) {
    absl::StrAppend(&text, " + at most ", Times(workers - (streamed ? 1 : 0), "W"),
                    " (gradients that are arriving)");
  }
  absl::StrAppend(&text, " + at most 4 W (old versions that workers and readers hold)");
  if (streamed && workers != 1) absl::StrAppend(&text, " + at most 2 W (what was made of overtaken pushes)");
  if (config.checkpoint().has_directory()) {
    absl::StrAppend(&text, " + at most ", Times(1 + slots, "W"), " (a version while it is saved)");
  }

  const double chunks_mib = config.wire().chunks_in_flight() * config.wire().chunk_kib() / 1024.0;
  absl::StrAppend(&text, " + ", Times(chunks_mib * (workers > 0 ? workers : 1), "MiB"),
                  workers > 0 ? "" : " for each worker", " (chunks on their way)");
  return text;
}

}  // namespace weir

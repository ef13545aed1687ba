#include "common/config/server_memory.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/config/optimizer_slots.h"
#include "common/protocol/mode_traits.h"

namespace weir {
namespace {

std::string GiB(double bytes) { return absl::StrFormat("%.1f GiB", bytes / (1 << 30)); }

}  // namespace

bool AppliesStreamed(const v1::JobConfig& config) {
  return TraitsOf(config).applies_alone && config.server().apply() == v1::ServerConfig::APPLY_STREAMED &&
         config.server().durability() != v1::ServerConfig::DURABILITY_LOG;
}

absl::Status CheckServerMemory(const v1::JobConfig& config, uint32_t workers, int64_t elements,
                               uint64_t servers, uint64_t memory_bytes) {
  if (memory_bytes == 0) return absl::OkStatus();
  const bool sync = TraitsOf(config).commits_steps;
  const bool streamed = AppliesStreamed(config);
  const auto slots = static_cast<double>(OptimizerSlots(config.optimizer().type()).size());
  const uint32_t parts = config.consistency().has_parts() ? config.consistency().parts() : workers;
  // In double, because the declared bytes may need more than 64 bits.
  const double weights = 4.0 * static_cast<double>(elements) / static_cast<double>(servers);
  const double held = (streamed ? 2 : 1) * (1 + slots);
  const double gradients = sync ? parts : streamed ? 0 : 1;
  if ((held + gradients) * weights <= static_cast<double>(memory_bytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the model has ", elements, " elements, W = ", GiB(weights), " on each of ", servers,
      " servers; a server needs at least ", GiB((held + gradients) * weights), " = ", held,
      " W (weights and ", slots, " slots", streamed ? ", twice: streamed" : "", ")",
      gradients > 0 ? absl::StrCat(" + ", gradients, sync ? " W (the parts of a step)" : " W (a gradient)")
                    : "",
      ", and its machine has ", GiB(static_cast<double>(memory_bytes)), ". Take more servers"));
}

}  // namespace weir

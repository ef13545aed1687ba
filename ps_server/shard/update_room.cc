#include "ps_server/shard/update_room.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/protocol/limits.h"
#include "common/protocol/mode_traits.h"
#include "common/telemetry/logging.h"

namespace weir {

void UpdateRoom::Begin(const v1::Install& install) {
  limit_ = MemoryLimitOf(*options_.config, options_.memory_bytes);
  model_bytes_ = ServerMemoryOf(*options_.config, install.workers()).least() * sizeof(float) *
                 static_cast<double>(options_.now->store()->model().elements()) / install.num_shards();
}

void UpdateRoom::End() {
  pins_.clear();
  short_ = false;
}

bool UpdateRoom::MakeForWeights() {
  if (options_.now->store()->readers().MayPublish()) return true;
  if (options_.on_short) options_.on_short();
  RevokeLate();
  return options_.now->store()->readers().MayPublish();
}

double UpdateRoom::BytesLeft() const {
  return std::max(0.0, limit_.bytes - model_bytes_ - static_cast<double>(table_bytes_));
}

std::string UpdateRoom::DescribeBytesLeft() const {
  return absl::StrCat(MemoryText(BytesLeft()), " are left for them: ", limit_.ToString(),
                      ", of which the model takes ", MemoryText(model_bytes_), " and the tables take ",
                      MemoryText(static_cast<double>(table_bytes_)));
}

bool UpdateRoom::RowsFit() const {
  return options_.now->tables() == nullptr || !limited() ||
         static_cast<double>(options_.now->tables()->former_bytes()) <=
             std::max(0.0, BytesLeft() - static_cast<double>(options_.now->staged().row_bytes()));
}

bool UpdateRoom::MakeForRows() {
  while (!pins_.empty() && !RowsFit()) {
    const auto oldest = std::min_element(pins_.begin(), pins_.end(), [](const auto& a, const auto& b) {
      return a.second.tables->version() < b.second.tables->version();
    });
    // Pins delay no update. But a checkpoint keeps the former rows of its version and of later ones anyway,
    // so ending such a pin frees nothing.
    if (oldest->second.tables->version() >= options_.rows_kept().value_or(UINT64_MAX)) break;
    LogWarning("pin ", oldest->first, " of version ", oldest->second.version->count,
               " ends, since former rows are kept for it. ", DescribeBytesLeft());
    pins_.erase(oldest);
  }
  return RowsFit();
}

void UpdateRoom::RevokeLate() {
  const std::vector<VersionReaders::Held> written_off = options_.now->store()->readers().RevokeLate();
  if (written_off.empty()) return;
  for (const VersionReaders::Held& held : written_off) {
    LogWarning("pushes no longer wait for the readers of ", Describe(held));
  }
  *options_.versions_written_off += written_off.size();
  for (auto it = pins_.begin(); it != pins_.end();) {
    it = it->second.version->revoked ? pins_.erase(it) : std::next(it);
  }
  if (options_.on_revoke) options_.on_revoke();
}

absl::Status UpdateRoom::CheckStepRows(const v1::PushRequest& header, const PushArrivals& arrivals) const {
  if (TablesCountParts(*options_.config) || !limited() || header.rows().empty()) {
    return absl::OkStatus();
  }
  // Copies of this part from other workers do not count, because the step takes only one copy.
  uint64_t bytes = BytesOfRows(options_.config->tables(), header) + options_.now->staged().row_bytes();
  for (const auto& [part, of_part] : arrivals.RowBytesOf(header.clock())) {
    if (part != header.part() && !options_.now->staged().Has(part)) bytes += of_part;
  }
  if (static_cast<double>(bytes) <= BytesLeft()) return absl::OkStatus();
  return LimitReached(
      Limit::kRowBytes, absl::StatusCode::kResourceExhausted,
      absl::StrCat("the rows of step ", header.clock(), " take ", MemoryText(static_cast<double>(bytes)),
                   " with those of part ", header.part(), ". ", DescribeBytesLeft(),
                   ". Raise the limit, take more servers, or smaller batches"));
}

const UpdateRoom::Pin& UpdateRoom::Hold(const v1::PinVersion& pin) {
  Pin& entry = pins_[pin.pin()];
  if (entry.version == nullptr) {
    entry.version = options_.now->store()->Lend({0, absl::nullopt, pin.pin()});
    if (options_.now->tables() != nullptr) entry.tables = options_.now->tables()->Pin();
  }
  entry.deadline = options_.clock->Now() + absl::Seconds(pin.lease_seconds());
  return entry;
}

const UpdateRoom::Pin* UpdateRoom::Find(uint64_t pin) const {
  const auto found = pins_.find(pin);
  return found == pins_.end() ? nullptr : &found->second;
}

void UpdateRoom::EndPins() {
  const absl::Time now = options_.clock->Now();
  for (auto it = pins_.begin(); it != pins_.end();) {
    it = it->second.deadline <= now ? pins_.erase(it) : std::next(it);
  }
}

std::string UpdateRoom::Describe(const VersionReaders::Held& held) const {
  std::vector<std::string> names;
  for (const Holder& holder : held.holders) {
    std::string& name = names.emplace_back();
    if (holder.pin != 0) {
      name = absl::StrCat("pin ", holder.pin);
    } else if (holder.worker.has_value()) {
      name = options_.now->members().TaskOf(*holder.worker);
    }
    if (holder.session != 0) absl::StrAppend(&name, name.empty() ? "" : " ", "on stream ", holder.session);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::string since = "the newest";
  if (held.superseded.has_value()) {
    since =
        absl::StrFormat("old for %.1f s", absl::ToDoubleSeconds(options_.clock->Now() - *held.superseded));
  }
  return absl::StrCat("version ", held.count, " (", since, "): ", absl::StrJoin(names, ", "));
}

std::string UpdateRoom::Holders() const {
  if (options_.now->store()->readers().MayPublish() && !RowsFit()) return RowHolders();
  std::vector<std::string> versions;
  for (const VersionReaders::Held& held : options_.now->store()->readers().held()) {
    if (!held.dead) versions.push_back(Describe(held));
  }
  return absl::StrCat("memory of weights, which readers hold: ", absl::StrJoin(versions, "; "));
}

std::string UpdateRoom::RowHolders() const {
  return absl::StrCat(
      "memory of rows: ", MemoryText(static_cast<double>(options_.now->tables()->former_bytes())),
      " of former rows are kept for a checkpoint that is being written. ", DescribeBytesLeft());
}

std::vector<std::string> UpdateRoom::Tasks() const {
  std::vector<std::string> tasks;
  for (const VersionReaders::Held& held : options_.now->store()->readers().held()) {
    for (const Holder& holder : held.holders) {
      if (held.dead || !holder.worker.has_value() || holder.pin != 0) continue;
      std::string task = options_.now->members().TaskOf(*holder.worker);
      if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) tasks.push_back(std::move(task));
    }
  }
  return tasks;
}

}  // namespace weir

#include "ps_server/shard/row_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weir {

RowBudget::RowBudget(const v1::JobConfig& config, uint32_t workers, int64_t elements, uint64_t servers,
                     uint64_t machine_bytes)
    : limit_(MemoryLimitOf(config, machine_bytes)),
      model_(ServerMemoryOf(config, workers).least() * sizeof(float) * static_cast<double>(elements) /
             static_cast<double>(servers)) {}

double RowBudget::Left(uint64_t tables) const {
  return std::max(0.0, limit_.bytes - model_ - static_cast<double>(tables));
}

std::string RowBudget::Describe(uint64_t tables) const {
  return absl::StrCat(MemoryText(Left(tables)), " are left for them: ", limit_.ToString(),
                      ", of which the model takes ", MemoryText(model_), " and the tables take ",
                      MemoryText(static_cast<double>(tables)));
}

uint64_t BytesOfRows(const v1::JobConfig& config, const v1::PushRequest& push) {
  uint64_t bytes = 0;
  for (const v1::Rows& rows : push.rows()) {
    const uint64_t dim = config.tables(static_cast<int>(rows.table())).dim();
    bytes += rows.keys() * (sizeof(uint64_t) + dim * sizeof(float));
  }
  return bytes;
}

}  // namespace weir

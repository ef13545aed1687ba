#include "ps_server/shard/rows/shard_tables.h"

#include <atomic>
#include <new>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace weir {

RowMemory::RowMemory(SlabSource shared) {
  const auto made = std::make_shared<std::atomic<uint64_t>>(0);  // bytes
  for (int k = 0; k < kSizes; ++k) {
    pools_.push_back(std::make_unique<FloatPool<Made>>(
        (kSmallest << k) / sizeof(float), [made, shared](size_t values) -> Made {
          const uint64_t bytes = values * sizeof(float);
          if (made->fetch_add(bytes) + bytes <= kMostShared) {
            if (std::shared_ptr<float> memory = shared(values); memory != nullptr) return memory;
          }
          made->fetch_sub(bytes);
          return absl::ResourceExhaustedError("as many buffers as there may be");
        }));
  }
}

std::shared_ptr<float> RowMemory::Take(size_t values) {
  const uint64_t bytes = values * sizeof(float);
  for (int k = 0; k < kSizes && bytes >= kLeastShared; ++k) {
    if (bytes > kSmallest << k) continue;
    // If there may be no more buffers of this size, take one of the next size.
    if (Made memory = pools_[static_cast<size_t>(k)]->Take(); memory.ok()) return *std::move(memory);
  }
  return {new (std::nothrow) float[values], std::default_delete<float[]>()};
}

Initializer InitializerOf(const v1::TableInit& init) {
  const auto kind = [&] {
    switch (init.type()) {
      case v1::TableInit::KIND_UNIFORM:
        return Initializer::Kind::kUniform;
      case v1::TableInit::KIND_CONSTANT:
        return Initializer::Kind::kConstant;
      case v1::TableInit::KIND_NORMAL:
      case v1::TableInit::KIND_UNSPECIFIED:
        break;
    }
    return Initializer::Kind::kNormal;
  };
  return {kind(), init.value()};
}

absl::StatusOr<std::shared_ptr<ShardTables>> ShardTables::Create(const Options& options) {
  std::vector<Entry> tables;
  for (const v1::TableConfig& config : options.tables) {
    Table::Options table;
    table.name = config.name();
    table.dim = config.dim();
    table.seed = options.seed;
    table.shard = options.shard;
    table.num_shards = options.num_shards;
    table.init = InitializerOf(config.init());
    table.optimizer = config.optimizer();
    table.admit_after = config.admit_after();
    table.expire_after_steps = config.expire_after_steps();
    table.max_rows = config.max_rows();
    table.kernels = options.kernels;
    table.threads = options.threads;
    WEIR_ASSIGN_OR_RETURN(LearningRateSchedule schedule,
                          LearningRateSchedule::Create(config.optimizer().learning_rate(),
                                                       config.optimizer().schedule(), options.total_steps));
    tables.push_back({schedule, std::make_unique<Table>(std::move(table))});
  }
  return std::shared_ptr<ShardTables>(new ShardTables(options, std::move(tables)));
}

absl::Status ShardTables::CheckKeys(const PushedRows& rows) const {
  for (const PushedRows::OfTable& of : rows.tables) {
    WEIR_RETURN_IF_ERROR(table(of.keys.table).CheckKeys(of.keys.span()));
  }
  return absl::OkStatus();
}

absl::Status ShardTables::Update(absl::Span<const WeightedRows> parts, double factor) {
  std::vector<Table::Part> of_table(parts.size());
  std::vector<size_t> next(parts.size());  // by part: its first entry that no table has taken yet
  for (size_t i = 0; i < size(); ++i) {
    for (size_t p = 0; p < parts.size(); ++p) {
      // If a part has no rows of this table, it still has its weight in the mean.
      of_table[p] = {{}, nullptr, parts[p].weight};
      if (parts[p].rows == nullptr) continue;
      const std::vector<PushedRows::OfTable>& tables = parts[p].rows->tables;
      if (next[p] == tables.size() || tables[next[p]].keys.table != i) continue;
      const PushedRows::OfTable& rows = tables[next[p]++];
      of_table[p].keys = rows.keys.span();
      of_table[p].gradients = rows.gradients.get();
    }
    const double rate = tables_[i].schedule.Rate(static_cast<double>(table(i).version()) / pushes_per_step_);
    WEIR_RETURN_IF_ERROR(table(i).Update(of_table, rate, factor));
  }
  return absl::OkStatus();
}

uint64_t ShardTables::former_bytes() const {
  uint64_t bytes = 0;
  for (const Entry& entry : tables_) bytes += entry.table->former_bytes();
  return bytes;
}

ShardTables::Changes ShardTables::Saved(uint64_t step, std::optional<uint64_t> follows) {
  Changes changes(size());
  if (!notes_changes_) return changes;
  const bool known = follows.has_value() && follows == saved_;
  for (size_t i = 0; i < size(); ++i) {
    std::optional<Table::Changes> noted = table(i).NoteChanges();
    if (known) changes[i] = std::move(noted);
  }
  saved_ = step;
  return changes;
}

ShardTables::Pinned::Pinned(std::shared_ptr<ShardTables> tables)
    : tables_(std::move(tables)), version_(tables_->version()) {
  for (size_t i = 0; i < tables_->size(); ++i) tables_->table(i).Pin();
}

ShardTables::Pinned::~Pinned() {
  for (size_t i = 0; i < tables_->size(); ++i) tables_->table(i).Unpin(version_).IgnoreError();
}

std::unique_ptr<ShardTables::Pinned> ShardTables::Pin() {
  return absl::WrapUnique(new Pinned(shared_from_this()));
}

absl::StatusOr<std::shared_ptr<const ReadRows>> ShardTables::Read(const RowKeys& keys, RowMemory& memory,
                                                                  const Pinned* at) const {
  size_t values = 0;
  for (const TableKeys& of : keys) values += of.count * table(of.table).dim();
  auto rows = std::make_shared<ReadRows>();
  rows->values = memory.Take(values);
  if (rows->values == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the rows that the pull asks for, ", values, " values"));
  }
  float* out = rows->values.get();
  for (const TableKeys& of : keys) {
    const Table& from = table(of.table);
    WEIR_RETURN_IF_ERROR(at == nullptr ? from.Read(of.span(), out)
                                       : from.ReadAt(at->version(), of.span(), out));
    out += of.count * from.dim();
  }
  return rows;
}

}  // namespace weir

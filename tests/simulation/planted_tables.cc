// Bugs of the servers' end of embedding tables: which rows there are, what a step makes of them, and what a
// checkpoint keeps. Tables have no seams of their own, so each bug enters where its effect is the same: in
// what a shard is told, in what it is sent, or in its files.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/table_reader.h"
#include "common/checkpoint/table_writer.h"
#include "tests/common/forwarding_client.h"
#include "tests/simulation/planted_bugs.h"

namespace weir {
namespace {

// ---- what shards are sent

// A client that adds rows to its pushes.
class MoreRows : public ForwardingClient {
 public:
  using ForwardingClient::ForwardingClient;

  Future<ExchangeResult> Exchange(ExchangeOrder order) override {
    if (order.pull.has_value()) {
      for (const RowsToRead& rows : order.pull->rows) read_.insert(rows.keys.begin(), rows.keys.end());
    }
    if (!order.push.has_value()) return ForwardingClient::Exchange(std::move(order));
    keys_.clear();
    values_.clear();
    if (!order.push->rows.empty()) {
      const RowGradients& rows = order.push->rows[0];
      keys_.assign(rows.keys.begin(), rows.keys.end());
      values_.assign(rows.values.begin(), rows.values.end());
    }
    Add(order.push->work);
    order.push->rows.clear();
    if (!keys_.empty()) order.push->rows.push_back({0, keys_, values_});
    return ForwardingClient::Exchange(std::move(order));
  }

 protected:
  virtual void Add(const Work& work) = 0;

  std::set<uint64_t> read_;
  std::vector<uint64_t> keys_;
  std::vector<float> values_;
};

template <typename Wrong>
void Instead(Site* site) {
  site->seams.client = [site](Client* client) { return std::make_unique<Wrong>(site, client); };
}

// A key that was read gets a row, as if it had been pushed with a gradient of zeros.
class ReadsCreate final : public MoreRows {
 public:
  ReadsCreate(Site*, Client* to) : MoreRows(to) {}

 private:
  void Add(const Work&) override {
    for (uint64_t key : read_) {
      if (std::find(keys_.begin(), keys_.end(), key) != keys_.end()) continue;
      keys_.push_back(key);
      values_.insert(values_.end(), Ledger::kDim, 0.0f);
    }
    read_.clear();
  }
};

// The rows of some pushes count again, as those of a push that comes twice.
class Twice final : public MoreRows {
 public:
  Twice(Site*, Client* to) : MoreRows(to) {}

 private:
  void Add(const Work& work) override {
    if (work.batch % 4 != 1) return;
    const std::vector<uint64_t> keys = keys_;
    const std::vector<float> values = values_;
    keys_.insert(keys_.end(), keys.begin(), keys.end());
    values_.insert(values_.end(), values.begin(), values.end());
  }
};

// The rows of a push whose dense values are refused take effect, with the worker's next push.
class RefusedCount final : public MoreRows {
 public:
  RefusedCount(Site* site, Client* to) : MoreRows(to), site_(site) {}

 private:
  void Add(const Work& work) override {
    if (site_->ledger.poisoned(work.batch)) {
      refused_.push_back(work.batch);
      return;
    }
    for (uint64_t batch : std::exchange(refused_, {})) {
      const Ledger::RowsOfBatch rows = site_->ledger.RowGradients(batch);
      keys_.insert(keys_.end(), rows.keys.begin(), rows.keys.end());
      values_.insert(values_.end(), rows.gradients.begin(), rows.gradients.end());
    }
  }

  Site* const site_;
  std::vector<uint64_t> refused_;
};

// ---- what shards are told

// Changes the job's config as each shard has it.
void ChangeConfig(Site* site, std::function<void(uint32_t shard, v1::JobConfig*)> change) {
  site->seams.config = std::move(change);
  // The shard is told that the coordinator's config is the same.
  site->seams.control = [site](uint32_t shard, const v1::ControlMessage& message) {
    v1::ControlMessage changed = message;
    if (message.has_install()) {
      v1::JobConfig config = site->plan.config;
      site->seams.config(shard, &config);
      changed.mutable_install()->set_job_config(config.SerializeAsString());
    }
    return std::vector<v1::ControlMessage>{changed};
  };
}

std::function<void(Site*)> InConfig(std::function<void(const Site&, uint32_t, v1::TableConfig*)> change) {
  return [change](Site* site) {
    ChangeConfig(site, [site, change](uint32_t shard, v1::JobConfig* config) {
      change(*site, shard, config->mutable_tables(0));
    });
  };
}

// A quota for all rows of a shard together, which this table is far from, where each bucket has its own.
void QuotaOfShard(const Site&, uint32_t, v1::TableConfig* table) { table->set_max_rows(0); }

// Ages are counted as if a shard made its share of the versions.
void AgesOfShard(const Site& site, uint32_t, v1::TableConfig* table) {
  table->set_expire_after_steps(table->expire_after_steps() * site.plan.shards());
}

// Rows that take effect before their step expire as if a step were one version.
void AgesInSteps(const Site& site, uint32_t, v1::TableConfig* table) {
  table->set_expire_after_steps(table->expire_after_steps() * site.plan.ledger.parts);
}

// Each shard counts its own part of the pushes that a key needs.
void AdmittedByShard(const Site&, uint32_t shard, v1::TableConfig* table) {
  if (table->admit_after() > 0 && shard == 0) table->set_admit_after(table->admit_after() - 1);
}

// A step's rows are summed in a different order from that of its parts.
void AnyOrder(Site* site) {
  site->seams.control = [](uint32_t, const v1::ControlMessage& message) {
    v1::ControlMessage changed = message;
    if (message.has_commit()) {
      auto* const parts = changed.mutable_commit()->mutable_parts();
      std::reverse(parts->begin(), parts->end());
    }
    return std::vector<v1::ControlMessage>{changed};
  };
}

// ---- what a checkpoint keeps

// What a table's file holds.
struct Content {
  TableEntries rows, counters;
  // Of a delta: what it has besides, and the rows of the shard.
  bool delta = false;
  TableEntries removed_rows, removed_counters;
  uint64_t total_rows = 0;
};

// Rewrites the tables of each checkpoint before it is complete, with the right checksums.
class ChangedTables : public JobStore {
 public:
  ChangedTables(Site* site, std::unique_ptr<JobStore> inner) : site_(site), inner_(std::move(inner)) {}
  const Opened& opened() const override { return inner_->opened(); }
  void Reserve(const Numbers& up_to, Done done) override { inner_->Reserve(up_to, std::move(done)); }
  std::string FolderOf(uint64_t step) const override { return inner_->FolderOf(step); }
  void Begin(uint64_t step, Done done) override { inner_->Begin(step, std::move(done)); }
  void Commit(v1::CheckpointManifest manifest, Done done) override {
    for (v1::CheckpointFile& file : *manifest.mutable_files()) {
      // A file that cannot be rewritten stays as it is, or its checkpoint fails.
      if (file.tables_size() > 0) Rewrite(manifest, &file).IgnoreError();
    }
    inner_->Commit(std::move(manifest), std::move(done));
  }
  void PassOver(uint64_t step, const std::string& why, Found done) override {
    inner_->PassOver(step, why, std::move(done));
  }
  void Discard(uint64_t step) override { inner_->Discard(step); }

 protected:
  // `content`: of this shard's part of the checkpoint.
  virtual void Change(const v1::CheckpointManifest& manifest, uint32_t shard, Content* content) = 0;

 private:
  absl::Status Rewrite(const v1::CheckpointManifest& manifest, v1::CheckpointFile* file) {
    FileSystem& fs = *site_->files;
    const std::string folder = FolderOf(manifest.step());
    Content content;
    {
      WEIR_ASSIGN_OR_RETURN(TableReader reader, TableReader::Open(fs, folder, *file, file->tables(0),
                                                                  TableReader::Columns::kAll));
      // The ledger's tables are far below a chunk.
      WEIR_RETURN_IF_ERROR(reader.Next(TableSection::kRows, content.rows).status());
      WEIR_RETURN_IF_ERROR(reader.Next(TableSection::kCounters, content.counters).status());
      WEIR_RETURN_IF_ERROR(reader.Next(TableSection::kRemovedRows, content.removed_rows).status());
      WEIR_RETURN_IF_ERROR(reader.Next(TableSection::kRemovedCounters, content.removed_counters).status());
    }
    const v1::CheckpointTable& written = file->tables(0);
    content.delta = written.has_delta_since();
    content.total_rows = written.total_rows();
    Change(manifest, file->shard(), &content);
    const TableEntries &rows = content.rows, &counters = content.counters;
    v1::CheckpointTable table;
    *table.mutable_table() = written.table();
    table.set_rows(rows.keys.size());
    table.set_counters(counters.keys.size());
    table.set_chunk_bytes(written.chunk_bytes());
    table.set_version(written.version());
    if (content.delta) {
      table.set_delta_since(written.delta_since());
      table.set_removed_rows(content.removed_rows.keys.size());
      table.set_removed_counters(content.removed_counters.keys.size());
      table.set_total_rows(content.total_rows);
      table.set_total_counters(written.total_counters());
    }
    WEIR_RETURN_IF_ERROR(fs.Remove(absl::StrCat(folder, "/", written.name())));
    WEIR_ASSIGN_OR_RETURN(
        const std::unique_ptr<TableWriter> writer,
        TableWriter::Create(fs, site_->plan.config.checkpoint().directory(), manifest.step(),
                            {file->shard(), manifest.num_shards(), file->version().incarnation()}, 0, table));
    for (size_t i = 0; i < rows.keys.size(); ++i) {
      const absl::Span<const float> values = rows.values;
      writer->AddRow(rows.keys[i], rows.updated[i], values.subspan(i * Ledger::kDim, Ledger::kDim));
    }
    for (size_t i = 0; i < counters.keys.size(); ++i) {
      writer->AddCounter(counters.keys[i], counters.updated[i], static_cast<uint32_t>(counters.pushes[i]));
    }
    for (uint64_t key : content.removed_rows.keys) writer->AddRemoved(TableSection::kRemovedRows, key);
    for (uint64_t key : content.removed_counters.keys)
      writer->AddRemoved(TableSection::kRemovedCounters, key);
    WEIR_ASSIGN_OR_RETURN(*file->mutable_tables(0), writer->Finish(writer->Write()));
    return absl::OkStatus();
  }

  Site* const site_;
  const std::unique_ptr<JobStore> inner_;
};

template <typename Wrong>
void InCheckpoints(Site* site) {
  // Files with all rows.
  ChangeConfig(site,
               [](uint32_t, v1::JobConfig* config) { config->mutable_checkpoint()->set_table_deltas(0); });
  site->seams.store = [site](std::unique_ptr<JobStore> inner) {
    return std::make_unique<Wrong>(site, std::move(inner));
  };
}

class NoCounts final : public ChangedTables {
 public:
  using ChangedTables::ChangedTables;

 private:
  void Change(const v1::CheckpointManifest&, uint32_t, Content* content) override { content->counters = {}; }
};

// What is restored is as old as the newest that is restored.
class NoAges final : public ChangedTables {
 public:
  using ChangedTables::ChangedTables;

 private:
  void Change(const v1::CheckpointManifest&, uint32_t, Content* content) override {
    std::vector<uint64_t>& updated = content->rows.updated;
    if (updated.empty()) return;
    std::fill(updated.begin(), updated.end(), *std::max_element(updated.begin(), updated.end()));
  }
};

// The rows of a checkpoint are those of the one before it.
class FormerRows final : public ChangedTables {
 public:
  using ChangedTables::ChangedTables;

 private:
  void Change(const v1::CheckpointManifest&, uint32_t shard, Content* content) override {
    const Content now = *content;
    if (const auto former = former_.find(shard); former != former_.end()) content->rows = former->second.rows;
    former_[shard] = now;
  }

  std::map<uint32_t, Content> former_;
};

// A delta has no keys of rows that have gone, and counts the rows of its shard as if these were there.
class NoTombstones final : public ChangedTables {
 public:
  // What a checkpoint and its chain have, by step and shard.
  using Rows = std::map<std::pair<uint64_t, uint32_t>, std::set<uint64_t>>;
  // `rows`: of all coordinators.
  NoTombstones(Site* site, std::unique_ptr<JobStore> inner, std::shared_ptr<Rows> rows)
      : ChangedTables(site, std::move(inner)), rows_(std::move(rows)) {}

 private:
  void Change(const v1::CheckpointManifest& manifest, uint32_t shard, Content* content) override {
    std::set<uint64_t> rows;
    // The store has yet to name the others of the chain.
    if (content->delta) rows = (*rows_)[{manifest.chain(0).step(), shard}];
    rows.insert(content->rows.keys.begin(), content->rows.keys.end());
    content->removed_rows = {};
    content->total_rows = rows.size();
    (*rows_)[{manifest.step(), shard}] = std::move(rows);
  }

  const std::shared_ptr<Rows> rows_;
};

void WithoutTombstones(Site* site) {
  auto rows = std::make_shared<NoTombstones::Rows>();
  site->seams.store = [site, rows](std::unique_ptr<JobStore> inner) {
    return std::make_unique<NoTombstones>(site, std::move(inner), rows);
  };
}

}  // namespace

std::vector<PlantedBug> PlantedInTables() {
  return InJobsWithTable({
      {"row made by a read",
       "a key that is read gets a row, or a count",
       {Invariant::kRows},
       Instead<ReadsCreate>},
      {"rows of a push applied twice",
       "the rows of a push that comes twice count twice",
       {Invariant::kRows},
       Instead<Twice>},
      {"rows of a refused push", "they take effect anyway", {Invariant::kRows}, Instead<RefusedCount>},
      {"quota by shard",
       "a quota is held for a shard's rows together, not for each bucket's",
       {Invariant::kRows},
       InConfig(QuotaOfShard)},
      {"expiry by shard",
       "when a row expires depends on the number of shards",
       {Invariant::kRows},
       InConfig(AgesOfShard)},
      {"early rows expire by steps",
       "rows that are there before their step are as old as their steps, not as the parts since",
       {Invariant::kRows},
       InConfig(AgesInSteps),
       HasEarlyRows},
      {"admission by shard",
       "how many pushes admit a key depends on its shard",
       {Invariant::kRows},
       InConfig(AdmittedByShard)},
      {"rows summed in any order",
       "a step's rows are not summed in the order of its parts",
       {Invariant::kRows},
       AnyOrder},
      {"counts not restored",
       "the counts of keys that are not admitted are not in a checkpoint",
       {Invariant::kRows},
       InCheckpoints<NoCounts>},
      {"ages not restored",
       "a checkpoint does not know when a row was last updated",
       {Invariant::kRows},
       InCheckpoints<NoAges>},
      {"rows of another checkpoint",
       "a checkpoint has the rows of an earlier version than its weights",
       {Invariant::kRestored},
       InCheckpoints<FormerRows>},
      {"delta without tombstones",
       "a checkpoint of changes does not say which rows have gone",
       {Invariant::kRestored},
       WithoutTombstones},
  });
}

}  // namespace weir

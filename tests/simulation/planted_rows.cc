// Bugs of the rows of embedding tables, on their way to the shards and back, and of those that take effect
// before their step.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "tests/common/forwarding_client.h"
#include "tests/simulation/planted_bugs.h"
#include "tests/simulation/sim_server.h"

namespace weir {
namespace {

// A client that changes the rows that it pushes.
class ChangedRows : public ForwardingClient {
 public:
  using ForwardingClient::ForwardingClient;

  Future<ExchangeResult> Exchange(ExchangeOrder order) override {
    if (!order.push.has_value() || order.push->rows.empty())
      return ForwardingClient::Exchange(std::move(order));
    const RowGradients& rows = order.push->rows[0];
    keys_.assign(rows.keys.begin(), rows.keys.end());
    values_.assign(rows.values.begin(), rows.values.end());
    Change(order.push->work);
    order.push->rows.clear();
    if (!keys_.empty()) order.push->rows.push_back({0, keys_, values_});
    return ForwardingClient::Exchange(std::move(order));
  }

 protected:
  virtual void Change(const Work& work) = 0;

  std::vector<uint64_t> keys_;
  std::vector<float> values_;
};

template <typename Wrong>
void Instead(Site* site) {
  site->seams.client = [](Client* client) { return std::make_unique<Wrong>(client); };
}

// Of a key that occurs several times the last gradient counts.
class LastWins final : public ChangedRows {
 public:
  using ChangedRows::ChangedRows;

 private:
  void Change(const Work&) override {
    std::map<uint64_t, std::vector<float>> last;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto row = values_.begin() + static_cast<int64_t>(i * Ledger::kDim);
      last[keys_[i]].assign(row, row + Ledger::kDim);
    }
    keys_.clear();
    values_.clear();
    for (const auto& [key, row] : last) {
      keys_.push_back(key);
      values_.insert(values_.end(), row.begin(), row.end());
    }
  }
};

// A batch's rows go with the next push.
class RowsLate final : public ChangedRows {
 public:
  using ChangedRows::ChangedRows;

 private:
  void Change(const Work&) override {
    std::swap(keys_, kept_keys_);
    std::swap(values_, kept_values_);
  }

  std::vector<uint64_t> kept_keys_;
  std::vector<float> kept_values_;
};

// Every fourth batch loses a row.
class RowLost final : public ChangedRows {
 public:
  using ChangedRows::ChangedRows;

 private:
  void Change(const Work& work) override {
    if (work.batch % 4 != 1) return;
    const uint64_t lost = keys_.back();
    while (!keys_.empty() && keys_.back() == lost) {
      keys_.pop_back();
      values_.resize(values_.size() - Ledger::kDim);
    }
  }
};

// A gradient goes to a different key from the batch's.
class WrongKey final : public ChangedRows {
 public:
  using ChangedRows::ChangedRows;

 private:
  void Change(const Work& work) override {
    if (work.batch % 4 == 1) std::swap(keys_.front(), keys_.back());
  }
};

// A checkpoint does not say which parts of the open step have their rows in the tables. The first that should
// is needed at once: a server is lost.
class PartsForgotten final : public JobStore {
 public:
  PartsForgotten(Site* site, std::shared_ptr<bool> struck, std::unique_ptr<JobStore> inner)
      : site_(site), struck_(std::move(struck)), inner_(std::move(inner)) {}
  const Opened& opened() const override { return inner_->opened(); }
  void Reserve(const Numbers& up_to, Done done) override { inner_->Reserve(up_to, std::move(done)); }
  std::string FolderOf(uint64_t step) const override { return inner_->FolderOf(step); }
  void Begin(uint64_t step, Done done) override { inner_->Begin(step, std::move(done)); }
  void Commit(v1::CheckpointManifest manifest, Done done) override {
    bool forgets = false;
    for (v1::CheckpointFile& file : *manifest.mutable_files()) {
      // A file that cannot be rewritten stays as it is, or its checkpoint fails.
      forgets |= Rewrite(absl::StrCat(FolderOf(manifest.step()), "/", file.name()), &file).value_or(false);
    }
    inner_->Commit(std::move(manifest), [site = site_, struck = struck_, forgets,
                                         done = std::move(done)](const absl::Status& status) {
      done(status);
      if (!forgets || !status.ok() || std::exchange(*struck, true)) return;
      site->world.After(absl::Milliseconds(1), [site] {
        SimServer& server = *site->servers.back();
        if (!server.running()) return;
        server.Kill();
        server.StartAfter(absl::Milliseconds(20));
      });
    });
  }
  void PassOver(uint64_t step, const std::string& why, Found done) override {
    inner_->PassOver(step, why, std::move(done));
  }
  void Discard(uint64_t step) override { inner_->Discard(step); }

 private:
  // True: the file said so, and says it no more.
  absl::StatusOr<bool> Rewrite(const std::string& path, v1::CheckpointFile* file) {
    FileSystem& fs = *site_->files;
    WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> before, fs.Open(path));
    std::string bytes(before->size(), 0);
    WEIR_RETURN_IF_ERROR(before->Read(0, absl::MakeSpan(&bytes[0], bytes.size())));
    const std::string field = "applied_rows", unknown = "applied_rowz";
    const size_t at = bytes.find(field);
    if (at == std::string::npos || at > file->header_bytes()) return false;
    bytes.replace(at, field.size(), unknown);
    WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> after,
                          fs.Create(path, FileSystem::Existing::kReplace));
    WEIR_RETURN_IF_ERROR(after->Append(bytes));
    WEIR_RETURN_IF_ERROR(after->Sync());
    WEIR_RETURN_IF_ERROR(after->Close());
    file->set_header_crc32c(Crc32c(absl::string_view(bytes).substr(0, file->header_bytes())));
    file->set_crc32c(Crc32c(bytes));
    return true;
  }

  Site* const site_;
  const std::shared_ptr<bool> struck_;
  const std::unique_ptr<JobStore> inner_;
};

void ForgetParts(Site* site) {
  site->seams.store = [site, struck = std::make_shared<bool>()](std::unique_ptr<JobStore> inner) {
    return std::make_unique<PartsForgotten>(site, struck, std::move(inner));
  };
}

// Rows of an answer before stand in this one: the answer's rows are of several versions.
void MixedVersions(Site* site) {
  const auto before = std::make_shared<std::map<std::pair<uint64_t, uint32_t>, std::string>>();
  site->seams.rows = [before](uint64_t stream, uint32_t shard, const v1::ExchangeReply&, std::string* rows) {
    std::string& old = (*before)[{stream, shard}];
    const std::string now = *rows;
    if (old.size() == rows->size()) rows->replace(rows->size() / 2, std::string::npos, old, rows->size() / 2);
    old = now;
  };
}

// A pin's rows are read as they are, not as they were.
void NewestUnderPin(Site* site) {
  const auto newest = std::make_shared<std::map<uint32_t, std::string>>();
  site->seams.rows = [site, newest](uint64_t, uint32_t shard, const v1::ExchangeReply&, std::string* rows) {
    // What a worker read last, on the same shard, is newer than a pin, or as new.
    std::string& last = (*newest)[shard];
    if (!site->plan.readers.empty() && last.size() == rows->size() && site->world.Chance(0.1)) {
      *rows = last;
    } else {
      last = *rows;
    }
  };
}

}  // namespace

std::vector<PlantedBug> PlantedInRows() {
  return InJobsWithTable({
      {"rows: the last one wins",
       "of a key that a batch has twice only the last gradient is pushed",
       {Invariant::kRows},
       Instead<LastWins>},
      {"rows one push late",
       "a batch's rows are pushed with the next batch",
       {Invariant::kRows},
       Instead<RowsLate>},
      {"row lost", "a row's gradient is left out of a push", {Invariant::kRows}, Instead<RowLost>},
      {"row of another key", "a row's gradient goes to another key", {Invariant::kRows}, Instead<WrongKey>},
      {"early rows not saved",
       "a checkpoint does not know the parts whose rows are there before their step",
       {Invariant::kRows},
       ForgetParts,
       HasEarlyRows},
      {"rows of two versions",
       "the rows of one answer are of several versions",
       {Invariant::kTorn},
       MixedVersions},
      {"newest rows under a pin",
       "a pinned version's rows are read as updates have left them",
       {Invariant::kTorn},
       NewestUnderPin},
  });
}

}  // namespace weir

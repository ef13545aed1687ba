// The disk operations of a simulated server, and how they hang.
#include <algorithm>
#include <utility>

#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/model/partition.h"
#include "common/model/wire_model.h"
#include "tests/simulation/sim_server.h"

namespace weir {

void SimServer::Work(bool of_store, std::function<void()> work, std::function<void()> over) {
  if (!disk_hang_.has_value() || (disk_hang_->of_store && !of_store)) {
    work();
    if (over) over();
    return;
  }
  GoOn(std::make_shared<HangingWork>(std::move(work)), over);
}

void SimServer::GoOn(const std::shared_ptr<HangingWork>& work, const std::function<void()>& over) {
  at_work_ = work;
  const bool done = work->Go();
  at_work_ = nullptr;
  if (done) {
    if (over) over();
    return;
  }
  hanging_.push_back(work);
  site_->world.After(node_, hang_, [this, work, over] {
    hanging_.erase(std::find(hanging_.begin(), hanging_.end(), work));
    site_->world.Trace("disk goes on", {index_});
    GoOn(work, over);
  });
}

void SimServer::OnDiskStep() {
  if (at_work_ == nullptr || !disk_hang_.has_value() || --disk_hang_->steps > 0) return;
  const DiskHang hang = *std::exchange(disk_hang_, std::nullopt);
  ++site_->faults[hang.of_store ? "store hangs within an operation" : "disk hangs within an operation"];
  site_->world.Trace("disk hangs", {index_});
  hang_ = hang.duration;
  if (hang.begun) hang.begun();
  at_work_->Hang();
}

void SimServer::StoreWork(std::function<void()> work) {
  if (std::exchange(store_works_, true)) return store_work_.push_back(std::move(work));
  Work(/*of_store=*/true, std::move(work), [this] {
    store_works_ = false;
    if (store_work_.empty()) return;
    const std::function<void()> next = std::move(store_work_.front());
    store_work_.pop_front();
    StoreWork(next);
  });
}

void SimServer::CutWorkShort() {
  if (hanging_.empty()) return;
  dying_ = true;
  site_->world.Silence(node_);
  disk_hang_.reset();
  SimServer* const before = std::exchange(site_->disk_user, this);
  for (const auto& work : std::exchange(hanging_, {})) work->Go();
  site_->disk_user = before;
}

bool SimServer::DiesHere() {
  if (dying_) return true;
  if (disk_operations_left_ == 0 || --disk_operations_left_ > 0) return false;
  dying_ = true;
  site_->world.Silence(node_);
  return true;
}

Weights SimServer::SavedWeights() const {
  const auto latest = LatestComplete(site_->disk, site_->plan.config.checkpoint().directory());
  if (!latest.ok() || !IsEndOf(site_->plan.config, latest->manifest)) return nullptr;
  const auto reader = CheckpointReader::Open(site_->disk, latest->folder);
  const auto model = FromProto(latest->manifest.model());
  if (!reader.ok() || !model.ok()) return nullptr;
  if (index_ >= site_->plan.shards()) return std::make_shared<const std::vector<float>>();
  const Partition partition(model->elements(), site_->plan.shards());
  std::vector<float> weights(static_cast<size_t>(partition.shard_elements(index_)));
  if (!reader->LoadWeights(*model, index_, site_->plan.shards(), absl::MakeSpan(weights)).ok())
    return nullptr;
  return std::make_shared<const std::vector<float>>(std::move(weights));
}

}  // namespace weir

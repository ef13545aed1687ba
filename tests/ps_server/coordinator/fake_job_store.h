#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ps_server/coordinator/checkpoints/job_store.h"

namespace weir {

// A disk for a coordinator's store. It works at once, or on the test's command, while a real disk works on a
// thread of its own. The coordinator's incarnations share it.
struct FakeDisk : std::enable_shared_from_this<FakeDisk> {
  static constexpr uint64_t kBlock = 100;

  // The data that the disk holds.
  uint64_t coordinator_incarnation = 0;
  JobStore::Numbers limits;
  std::optional<v1::CheckpointManifest> newest;
  v1::JobIdentity job;

  // Injected errors.
  absl::Status begin_status, commit_status, reserve_status;
  // The result of PassOver(): this checkpoint, or this error.
  absl::StatusOr<v1::CheckpointManifest> before = absl::DataLossError("none is whole");
  std::vector<uint64_t> passed_over;
  // If set, operations answer only in Answer().
  bool holds = false;
  std::vector<std::function<void()>> held;
  int commits = 0, reservations = 0;
  std::vector<uint64_t> discarded;

  void Answer() {
    for (const auto& answer : std::exchange(held, {})) answer();
  }

  std::unique_ptr<JobStore> Open() {
    class Store final : public JobStore {
     public:
      explicit Store(std::shared_ptr<FakeDisk> disk) : disk_(std::move(disk)) {
        opened_.coordinator_incarnation = ++disk_->coordinator_incarnation;
        opened_.used = disk_->limits;
        disk_->limits.epoch += kBlock;
        disk_->limits.incarnation += kBlock;
        opened_.reserved = disk_->limits;
        opened_.newest = disk_->newest;
        opened_.job = disk_->job;
      }
      ~Store() override { disk_->Answer(); }
      const Opened& opened() const override { return opened_; }
      void Reserve(const Numbers& up_to, Done done) override {
        Do([disk = disk_, up_to, done = std::move(done)] {
          if (disk->reserve_status.ok()) {
            ++disk->reservations;
            disk->limits = up_to;
          }
          done(disk->reserve_status);
        });
      }
      std::string FolderOf(uint64_t step) const override { return absl::StrCat("/runs/7/step-", step); }
      void Begin(uint64_t, Done done) override {
        Do([disk = disk_, done = std::move(done)] { done(disk->begin_status); });
      }
      void Commit(v1::CheckpointManifest manifest, Done done) override {
        Do([disk = disk_, manifest = std::move(manifest), done = std::move(done)] {
          if (disk->commit_status.ok()) {
            disk->newest = manifest;
            ++disk->commits;
          }
          done(disk->commit_status);
        });
      }
      void PassOver(uint64_t step, const std::string&, Found done) override {
        Do([disk = disk_, step, done = std::move(done)] {
          disk->passed_over.push_back(step);
          if (disk->before.ok()) disk->newest = *disk->before;
          done(disk->before);
        });
      }
      void Discard(uint64_t step) override { disk_->discarded.push_back(step); }

     private:
      void Do(std::function<void()> what) {
        disk_->held.push_back(std::move(what));
        if (!disk_->holds) disk_->Answer();
      }
      const std::shared_ptr<FakeDisk> disk_;
      Opened opened_;
    };
    return std::make_unique<Store>(shared_from_this());
  }
};

}  // namespace weir

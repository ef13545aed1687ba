#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/system/clock.h"
#include "ps_server/coordinator/checkpoints/checkpoints.h"
#include "ps_server/coordinator/job/job.h"
#include "tests/ps_server/coordinator/fake_job_store.h"

namespace weir {

// The context of a job for a part of the coordinator that is tested alone.
struct JobFixture {
  explicit JobFixture(const v1::JobConfig& of = {}) : config(of) {
    config.mutable_cluster()->set_lease_seconds(10);
    config.mutable_cluster()->set_grace_seconds(1);
    config.mutable_checkpoint()->set_save_wait_seconds(30);
  }

  v1::JobConfig config;
  ManualClock clock;
  bool over = false;
  // The arguments of the calls of JobContext::fail and JobContext::replaced.
  std::vector<absl::Status> failures;
  std::string replaced;
  JobContext job{config,
                 /*workers=*/1,
                 &clock,
                 [](const std::function<void()>& function) { function(); },
                 [this] { return over; },
                 [this](const absl::Status& failure) {
                   failures.push_back(failure);
                   over = true;
                 },
                 [this](const std::string& why) { replaced = why; }};
};

// The checkpoints of a job with one shard, on a fake disk.
struct CheckpointsFixture : JobFixture {
  using JobFixture::JobFixture;
  Checkpoints::Options Options() {
    Checkpoints::Options options;
    options.snapshot = [this] {
      Checkpoints::Snapshot snapshot;
      snapshot.step = step;
      snapshot.num_shards = 1;
      return snapshot;
    };
    options.broadcast = [this](const v1::ControlMessage& message) {
      if (!message.has_checkpoint()) return;
      written.set_step(message.checkpoint().step());
      written.set_attempt(message.checkpoint().attempt());
    };
    options.changed = [] {};
    return options;
  }
  // The shard has written the file that it was told to write.
  void Write() {
    written.mutable_record()->set_num_shards(1);
    checkpoints.OnWritten(0, written);
  }

  // The step of the next checkpoint.
  uint64_t step = 0;
  std::shared_ptr<FakeDisk> disk = std::make_shared<FakeDisk>();
  v1::CheckpointWritten written;
  Checkpoints checkpoints{job, disk->Open(), Options()};
};

}  // namespace weir

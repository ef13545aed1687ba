#pragma once

#include <functional>
#include <memory>

#include "common/system/clock.h"
#include "ps_server/coordinator/checkpoints.h"
#include "tests/ps_server/coordinator/fake_job_store.h"

namespace weir {

// The checkpoints of a job with one shard, on a fake disk.
struct CheckpointsFixture {
  Checkpoints::Options Options() {
    Checkpoints::Options options;
    options.store = disk->Open();
    options.clock = &clock;
    options.post = [](const std::function<void()>& function) { function(); };
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
  // The shard answers what it was told to write.
  void Write() {
    written.mutable_record()->set_num_shards(1);
    checkpoints.OnWritten(0, written);
  }

  ManualClock clock;
  // Of the next checkpoint.
  uint64_t step = 0;
  std::shared_ptr<FakeDisk> disk = std::make_shared<FakeDisk>();
  v1::CheckpointWritten written;
  Checkpoints checkpoints{Options()};
};

}  // namespace weir

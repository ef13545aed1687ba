// Bugs of what a shard makes of stale pushes (consistency.staleness_policy).
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "tests/common/forwarding_file_system.h"
#include "tests/simulation/planted_bugs.h"

namespace weir {
namespace {

// From the opening of a log until a file is made, a shard replays the log.
thread_local bool replaying = false;

class NotesReplays final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    replaying = absl::EndsWith(path, ".log");
    return inner_->Open(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path, Existing existing) override {
    replaying = false;
    return inner_->Create(path, existing);
  }
};

void ScaledAgain(Site* site) {
  static const Kernels kernels = [] {
    Kernels changed = kPlainKernels;
    changed.scale = [](float* out, float factor, const void* in, size_t n) {
      return kPlainKernels.scale(out, replaying ? factor * factor : factor, in, n);
    };
    return changed;
  }();
  replaying = false;
  site->seams.kernels = &kernels;
  site->seams.files = std::make_shared<NotesReplays>(&site->disk);
  site->files = site->seams.files.get();
}

// A shard counts the batches that it has dropped as not done.
void DroppedNotDone(Site* site) {
  site->seams.report = [](uint32_t, v1::ShardReport* report) {
    if (!report->has_stats()) return;
    v1::ShardStats& stats = *report->mutable_stats();
    stats.set_batches_settled(stats.batches_settled() -
                              std::min(stats.batches_settled(), stats.pushes_dropped()));
  };
}

bool ScalesWithLog(const Plan& plan) { return plan.scales() && plan.logs(); }
bool Drops(const Plan& plan) { return plan.staleness_limit().has_value(); }

}  // namespace

std::vector<PlantedBug> PlantedInStaleness() {
  return {
      {"scaled again by the log",
       "a gradient is scaled once more when the log is replayed",
       {Invariant::kRestored},
       ScaledAgain,
       ScalesWithLog},
      {"dropped batch not done",
       "the batch of a push that is too stale counts as still to be done",
       {Invariant::kProgress, Invariant::kDeclared, Invariant::kComplete},
       DroppedNotDone,
       Drops},
  };
}

}  // namespace weir

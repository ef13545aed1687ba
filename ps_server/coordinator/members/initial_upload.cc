#include "ps_server/coordinator/members/initial_upload.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// The time between two tries to save the values.
constexpr absl::Duration kAgain = absl::Seconds(1);

}  // namespace

void InitialUpload::Ask(const std::map<uint32_t, MemberTable::Worker>& workers) {
  if (phase_ != Phase::kUploading || workers.empty()) return;
  const bool stays = std::any_of(workers.begin(), workers.end(),
                                 [this](const auto& entry) { return entry.second.incarnation == uploader_; });
  if (stays) return;
  uploader_ = workers.begin()->second.incarnation;
  staged_.clear();
}

void InitialUpload::Start(Phase phase) {
  phase_ = phase;
  uploader_ = 0;
  staged_.clear();
  next_save_ = absl::InfiniteFuture();
  trouble_.clear();
}

void InitialUpload::OnStaged(uint32_t shard, uint64_t uploader, size_t shards) {
  if (phase_ != Phase::kUploading || uploader != uploader_) return;
  staged_.insert(shard);
  if (staged_.size() < shards) return;
  phase_ = Phase::kSaving;
  // No worker could make the values again after the first step. So they are saved before it.
  checkpoints_.enabled() ? Save() : OnSaved();
}

void InitialUpload::Tick() {
  if (saving() && job_.now() >= next_save_ && !checkpoints_.busy()) Save();
}

void InitialUpload::Save() {
  next_save_ = absl::InfiniteFuture();
  checkpoints_.Request(
      /*of_now=*/true, [this, of = uploader_](const absl::StatusOr<v1::CheckpointReply>& reply) {
        if (job_.over() || !saving() || uploader_ != of) return;
        if (reply.ok()) return OnSaved();
        LogWarning("the initial values cannot be saved yet: ", reply.status().message());
        next_save_ = job_.now() + kAgain;
        trouble_ = std::string(reply.status().message());
      });
}

void InitialUpload::OnSaved() {
  phase_ = Phase::kThere;
  there_(uploader_ != 0);
}

std::string InitialUpload::WaitingFor(const std::string& task) const {
  if (!saving()) {
    return absl::StrCat("the initial values, which ", task.empty() ? "a worker" : task, " uploads");
  }
  return absl::StrCat("the initial values to be saved", trouble_.empty() ? "" : " (", trouble_,
                      trouble_.empty() ? "" : ")");
}

}  // namespace weir

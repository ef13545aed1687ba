#include "ps_server/coordinator/initial_upload.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weir {

void InitialUpload::Ask(const std::map<uint32_t, MemberTable::Worker>& workers) {
  if (phase_ != Phase::kUploading || workers.empty()) return;
  const bool stays = std::any_of(workers.begin(), workers.end(),
                                 [this](const auto& entry) { return entry.second.incarnation == uploader_; });
  if (stays) return;
  uploader_ = workers.begin()->second.incarnation;
  staged_.clear();
}

bool InitialUpload::OnStaged(uint32_t shard, uint64_t uploader, size_t shards) {
  if (phase_ != Phase::kUploading || uploader != uploader_) return false;
  staged_.insert(shard);
  if (staged_.size() < shards) return false;
  phase_ = Phase::kSaving;
  return true;
}

std::string InitialUpload::WaitingFor(const std::string& task) const {
  if (!saving()) {
    return absl::StrCat("the initial values, which ", task.empty() ? "a worker" : task, " uploads");
  }
  return absl::StrCat("the initial values to be saved", trouble_.empty() ? "" : " (", trouble_,
                      trouble_.empty() ? "" : ")");
}

}  // namespace weir

#include "ps_server/coordinator/shards/initial_values.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// The time between two tries to save the values.
constexpr absl::Duration kAgain = absl::Seconds(1);

}  // namespace

void InstallSource::Describe(v1::Install* install) const {
  if (checkpoints_.any()) {
    install->mutable_restore()->set_step(checkpoints_.newest()->step());
  } else if (init_from_.has_value()) {
    install->mutable_restore()->set_step(*init_from_);
    install->mutable_restore()->set_init_from(true);
    install->mutable_restore()->set_weights_only(true);
  }
}

void InstallSource::OnDamaged(const std::string& server, const std::string& why) {
  // This server has seen the damage that a different one has reported.
  if (searching()) return options_.changed();
  const bool own = checkpoints_.any();
  const std::string what = own ? checkpoints_.newest_folder()
                               : absl::StrCat("checkpoint ", *init_from_, " of checkpoint.init_from");
  LogError(server, " cannot load ", what, ": ", why,
           "; ps:0 reads that checkpoint, and looks for a whole one before it");
  const auto found = [this, what, why = absl::StrCat(server, ": ", why)](const absl::Status& status) {
    OnPassedOver(what, why, status);
  };
  search_ = Search::kUnderWay;
  if (own) return checkpoints_.PassOver(why, found);
  if (!options_.init_from_before) return found(absl::DataLossError("there is no other one"));
  options_.init_from_before(*init_from_, [this, found](const absl::StatusOr<uint64_t>& step) {
    job_.post([this, found, step] {
      if (step.ok()) init_from_ = *step;
      found(step.status());
    });
  });
}

void InstallSource::OnPassedOver(const std::string& what, const std::string& why, const absl::Status& found) {
  if (job_.over()) return;
  search_ = Search::kNone;
  if (absl::IsFailedPrecondition(found) && !std::exchange(doubted_, true)) {
    LogWarning(found.message(), "; it is loaded again");
    return options_.changed();
  }
  if (absl::IsFailedPrecondition(found)) {
    return options_.fail(
        Misfit(absl::StrCat(why, "; but ", found.message(), ": that server sees other files than ps:0, ",
                            "or its disk or memory is at fault")));
  }
  if (absl::IsUnavailable(found)) return options_.fail(LostPeer(found.message()));
  if (!found.ok()) {
    return options_.fail(
        Misfit(absl::StrCat("no whole checkpoint is there to go on from: ", why, "; ", found.message())));
  }
  search_ = Search::kFound;
  LogWarning("passed over ", what, ", which is damaged (", why, "): the job ",
             checkpoints_.any() ? absl::StrCat("goes on from ", checkpoints_.newest_folder(),
                                               "; what came after it is done again, or is lost")
                                : absl::StrCat("starts with the weights of checkpoint ", *init_from_));
  options_.changed();
}

void InstallSource::Take() {
  search_ = Search::kNone;
  doubted_ = false;
}

void InitialUpload::Ask(const v1::Membership& members) {
  if (phase_ != Phase::kUploading || members.members().empty()) return;
  const bool stays =
      std::any_of(members.members().begin(), members.members().end(),
                  [this](const v1::Member& member) { return member.incarnation() == uploader_; });
  if (stays) return;
  uploader_ = members.members(0).incarnation();
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

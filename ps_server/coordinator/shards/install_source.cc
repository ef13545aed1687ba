#include "ps_server/coordinator/shards/install_source.h"

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"

namespace weir {

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

}  // namespace weir

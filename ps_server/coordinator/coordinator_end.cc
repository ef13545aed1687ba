// The part of Coordinator that ends the job: drained, done or failed.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {
namespace {

absl::Status NothingLeft() {
  return absl::OutOfRangeError("the job's examples are done; there is nothing left to do");
}

}  // namespace

void Coordinator::StartDraining() {
  if (state_ != v1::RUNNING) return;
  state_ = v1::DRAINING;
  meter_.OnEnd(now());
  LogInfo("all ", size_.examples, " examples are done");
  last_save_.ForgetTrouble();
  if (checkpoints_ != nullptr) {
    SaveLast();
  } else {
    OnSaved();
  }
  Changed();
  ServeRanges();
  MaybeFinish();
}

void Coordinator::SaveLast() {
  last_save_.OnTry(now());
  checkpoints_->Request(/*of_now=*/true, [this](const absl::StatusOr<v1::CheckpointReply>& reply) {
    if (state_ != v1::DRAINING || last_save_.saved()) return;
    if (reply.ok()) {
      OnSaved();
      return MaybeFinish();
    }
    // Other code waits for a shard that is away (TickShards()).
    if (!shards_.AllInstalled()) return last_save_.ForgetTrouble();
    CannotSaveLast(std::string(reply.status().message()));
  });
}

void Coordinator::TickLastSave() {
  if (last_save_.saved()) return;
  if (!checkpoints_->busy()) {
    if (last_save_.Due(now())) SaveLast();
    return;
  }
  if (const std::string hangs = checkpoints_->StoreHangs(); !hangs.empty()) return CannotSaveLast(hangs);
  // Shards still write what came to nothing: the trouble goes on.
  if (last_save_.trouble().has_value() && !checkpoints_->unsettled()) {
    return CannotSaveLast(std::string(last_save_.trouble()->why));
  }
  if (const std::string what = checkpoints_->WaitingFor(); !what.empty() && complaints_.Due(now())) {
    LogInfo("all ", size_.examples, " examples are done; waiting for ", what);
  }
}

void Coordinator::CannotSaveLast(const std::string& why) {
  const bool first = !last_save_.trouble().has_value();
  last_save_.OnFailed(now(), why);
  const double limit = options_.config.checkpoint().save_wait_seconds();
  const absl::Duration left = last_save_.trouble()->since + absl::Seconds(limit) - now();
  const std::string done = absl::StrCat("all ", size_.examples, " examples are done, but ");
  if (left <= absl::ZeroDuration()) {
    return FailJob(StorageFailure(absl::StrCat(
        done, "they could not be saved within checkpoint.save_wait_seconds = ", limit, ": ", why,
        checkpoints_->newest().has_value()
            ? absl::StrCat("; once there is room, the job goes on from ", checkpoints_->newest_folder())
            : "")));
  }
  if (first) {
    complaints_.Begin(now());
  } else if (!complaints_.Due(now())) {
    return;
  }
  LogWarning(done, "the job cannot be saved yet: ", why, "; it is tried again for another ",
             absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
             " (checkpoint.save_wait_seconds = ", limit, "), make room meanwhile");
}

void Coordinator::OnSaved() {
  if (last_save_.trouble().has_value()) LogInfo("the job is saved: there is room again");
  last_save_.OnSaved(now());
  TellNothingLeft();
}

absl::Status Coordinator::NothingLeftFor(const v1::JoinRequest& request) {
  // Nobody has checked what the request says.
  if (end_.ends_again()) shards_.OnNamed(std::min(request.ps_addresses_size(), kMaxServers));
  // A refused instance's Join is a late repeat, whose process does not hear the answer.
  if (request.role() == v1::WORKER && request.rank() < options_.workers &&
      !departures_.Refuses(request.instance())) {
    farewell_.OnTold(request.rank(), request.instance());
  }
  return NothingLeft();
}

void Coordinator::TellNothingLeft() {
  if (state_ != v1::DRAINING || !last_save_.saved() || AwaitsEvaluation()) return;
  for (auto it = members_.waiting().begin(); it != members_.waiting().end();) {
    if (!it->worker()) {
      ++it;
      continue;
    }
    it->done(NothingLeftFor(it->request));
    it = members_.waiting().erase(it);
  }
}

bool Coordinator::DoneBefore() const {
  return has_checkpoint() && IsEndOf(options_.config, *checkpoints_->newest());
}

void Coordinator::EndAgain() {
  const v1::CoordinatorState& job = checkpoints_->newest()->job();
  if (job.total_batches() < size_.batches) {
    evaluations_.StoppedBefore();
    Shorten(job.total_examples(), job.total_batches());
  }
  LogInfo("all ", size_.examples, " examples were done before; the result is ",
          checkpoints_->newest_folder());
  end_.EndAgain();
  last_save_.SavedBefore();
  state_ = v1::DRAINING;
  TrainingStarts();
  meter_.EndAtStart();
  shards_.Open();
}

void Coordinator::MaybeFinish() {
  if (state_ != v1::DRAINING || shards_.final_ping_sent() || !members_.workers().empty() ||
      !members_.readers().empty())
    return;
  if (!last_save_.saved() || end_.drained() || AwaitsEvaluation()) return;
  if (const std::vector<std::string> others = MayCome(); !others.empty()) {
    if (end_.SayWaiting()) {
      LogInfo("the job is done; waiting for ", absl::StrJoin(others, ", "),
              " to be told so, for a lease at most");
    }
    return;
  }
  if (end_.ends_again()) return End();
  shards_.SendFinalPing(options_.config.tables_size());
}

std::vector<std::string> Coordinator::MayCome() const {
  return farewell_.MayCome(now(), last_save_.saved_at(), [this](uint32_t rank) { return WorkerName(rank); });
}

void Coordinator::End() {
  if (over()) return;
  state_ = v1::DONE;
  // A server that is cut off waits as long for ps:0.
  TellServers(absl::Seconds(options_.config.cluster().server_wait_seconds()));
  Changed();
  AnswerParked(NothingLeft(), absl::FailedPreconditionError("the job is done"));
  EndOnceAllKnow();
}

void Coordinator::TellServers(absl::Duration limit) {
  v1::ControlMessage message;
  SetFailure(end_.failure(), message.mutable_shutdown());
  farewell_.OnServersTold(shards_.TellEnd(std::move(message)), now() + limit);
}

void Coordinator::HandleServerGone(uint32_t index, const absl::Status& status) {
  // A server that has confirmed the end, and ended, may break its connection before that arrives. Then nobody
  // is there to be called again.
  const bool gone = absl::IsUnavailable(status) && !shards_[index].connected;
  if (status.ok() || gone) {
    farewell_.OnServerKnows(index);
    return EndOnceAllKnow();
  }
  shards_.Drop(index);
  if (farewell_.untold_servers().count(index) == 0 || farewell_.AllKnow(now())) return;
  // The next tick calls it again.
  LogInfo("the link to ", shards_.name(index), " broke as the job ended: ", status.message());
  farewell_.OnServerBroke(now());
}

void Coordinator::FailJob(const absl::Status& failure, bool asked) {
  if (over()) {
    if (asked) farewell_.WaitNoLonger();
    return EndOnceAllKnow();
  }
  state_ = v1::FAILED;
  end_.Fail(failure);
  meter_.OnEnd(now());
  if (asked || KindOf(failure) == v1::FAILURE_DRAINED) {
    LogInfo("the job ends: ", failure.message());
  } else {
    LogError(failure.message());
  }
  // A requested end waits for nobody.
  TellServers(asked ? absl::ZeroDuration() : Farewell::kTellFailure);
  Changed();
  AnswerParked(end_.ForJoin(), failure);
  if (!asked) farewell_.OnFailure(members_.Connected(), now());
  EndOnceAllKnow();
}

void Coordinator::OnMemberGone(uint64_t incarnation) {
  farewell_.OnLeft(incarnation);
  EndOnceAllKnow();
}

void Coordinator::EndOnceAllKnow() {
  if (over() && farewell_.AllKnow(now())) SayEnd();
}

void Coordinator::SayEnd() {
  if (!end_.SayEnd()) return;
  if (state_ == v1::DONE && !farewell_.untold_servers().empty()) {
    std::vector<std::string> names;
    for (const uint32_t index : farewell_.untold_servers()) names.push_back(shards_.name(index));
    LogWarning("the job is done, but ", absl::StrJoin(names, ", "), " may not know that: no answer within ",
               "cluster.server_wait_seconds = ", options_.config.cluster().server_wait_seconds());
  }
  options_.on_end(MakeStatus(), end_.failure());
}

void Coordinator::StepAside(const std::string& why) {
  if (over()) return;
  state_ = v1::FAILED;
  end_.Fail(Replaced(why));
  meter_.OnEnd(now());
  LogError(end_.failure().message());
  // The callers may find the other coordinator where they called this one.
  AnswerParked(end_.ForCall(), end_.ForCall());
  SayEnd();
}

void Coordinator::FailUnlessReplaced(const absl::Status& failure) {
  if (checkpoints_ == nullptr) return FailJob(failure);
  // A coordinator that fails is started again, and would take the job back.
  if (!end_.Suspect(failure, now() + kConfirmed)) return;
  checkpoints_->Reserve(numbers_.reserved(), [this](const absl::Status& ours) {
    if (over()) return;
    return absl::IsAborted(ours) ? StepAside(std::string(ours.message())) : FailJob(end_.suspected());
  });
}

void Coordinator::AnswerParked(const absl::Status& joins, const absl::Status& others) {
  for (WaitingJoin& join : members_.waiting()) join.done(joins);
  members_.waiting().clear();
  for (auto& [rank, member] : members_.workers()) {
    if (member.join.has_value()) std::exchange(member.join, std::nullopt)->done(joins);
    if (member.next_range) std::exchange(member.next_range, nullptr)(others);
  }
  shards_.RefuseAnnounces(absl::UnavailableError(others.message()));
  pins_.DropAll(others, now());
  last_save_.Refuse(others);
}

// ---- drained

void Coordinator::HandleDrain(const std::string& reason) {
  if (over() || end_.drained()) return;
  if (checkpoints_ == nullptr) return FailJob(LostPeer(reason));
  end_.Drain(reason);
  const auto end = [this] {
    FailJob(Drained(absl::StrCat(end_.drain_reason(), "; started again, the job goes on from ",
                                 checkpoints_->newest_folder())));
  };
  if (state_ != v1::RUNNING && state_ != v1::DRAINING) {
    // What is not in the newest checkpoint is lost already, or was never there.
    return checkpoints_->newest().has_value() ? end() : FailJob(LostPeer(reason));
  }
  // From here on nothing is acknowledged that would not be saved.
  LogInfo("saving the job, since ", reason);
  FenceAll(absl::StrCat("the job is being saved and ends, since ", reason));
  checkpoints_->Request(/*of_now=*/true, [this, end](const absl::StatusOr<v1::CheckpointReply>& reply) {
    if (over()) return;
    if (reply.ok()) return end();
    FailJob(
        LostPeer(absl::StrCat(end_.drain_reason(), "; it could not be saved: ", reply.status().message())));
  });
}

}  // namespace weir

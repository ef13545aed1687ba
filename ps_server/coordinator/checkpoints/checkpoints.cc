#include "ps_server/coordinator/checkpoints/checkpoints.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// Limits of the intervals between checkpoints.
constexpr absl::Duration kMeanTimeBetweenLosses = absl::Minutes(1);
constexpr absl::Duration kShortestInterval = absl::Seconds(1), kLongestInterval = absl::Minutes(1);
constexpr double kLargestShare = 0.1;
// The pause after a checkpoint that failed.
constexpr absl::Duration kRetry = absl::Seconds(5);

// The longest wait for a checkpoint. A disk that hangs must not keep the next checkpoint from being tried.
constexpr absl::Duration kLongest = absl::Minutes(10);
// If a checkpoint takes longer, messages name it.
constexpr absl::Duration kWorthAWord = absl::Seconds(10);

void AppendName(std::string* out, uint32_t shard) { absl::StrAppend(out, "ps:", shard); }

}  // namespace

CheckpointSchedule::CheckpointSchedule(const v1::CheckpointConfig& config, absl::Time now)
    : every_steps_(config.every_steps()),
      every_(absl::Seconds(config.every_seconds())),
      begun_(now),
      not_before_(now) {}

bool CheckpointSchedule::Due(absl::Time now, uint64_t steps) const {
  if (now < not_before_ || steps <= steps_) return false;
  if (every_steps_ > 0 && steps - steps_ >= every_steps_) return true;
  return now - begun_ >= interval();
}

absl::Duration CheckpointSchedule::interval() const {
  if (every_ > absl::ZeroDuration()) return every_;
  if (every_steps_ > 0) return absl::InfiniteDuration();
  const double young =
      std::sqrt(2 * absl::ToDoubleSeconds(took_) * absl::ToDoubleSeconds(kMeanTimeBetweenLosses));
  return std::max(std::clamp(absl::Seconds(young), kShortestInterval, kLongestInterval),
                  took_ / kLargestShare);
}

void CheckpointSchedule::Begun(absl::Time now, uint64_t steps) {
  begun_ = now;
  steps_ = steps;
}

void CheckpointSchedule::Completed(absl::Time now) { took_ = now - begun_; }

void CheckpointSchedule::Failed(absl::Time now) {
  not_before_ = now + kRetry;
  // After the pause the next try is due, whatever the schedule counts.
  begun_ = absl::InfinitePast();
  steps_ = 0;
}

Checkpoints::Checkpoints(const JobContext& job, std::unique_ptr<JobStore> store, Options options)
    : job_(job),
      store_(std::move(store)),
      options_(std::move(options)),
      enabled_(store_ != nullptr),
      opened_(enabled_ ? store_->opened() : JobStore::Opened()),
      schedule_(job_.config.checkpoint(), job_.now()),
      newest_(opened_.newest),
      chain_(newest_.has_value() ? static_cast<uint32_t>(newest_->chain_size()) : 0),
      newest_since_(job_.now()),
      next_step_(newest_.has_value() ? newest_->step() + 1 : 0) {}

std::string Checkpoints::FolderOf(uint64_t step) const {
  return store_ != nullptr ? store_->FolderOf(step) : "";
}

std::string Checkpoints::newest_folder() const {
  return newest_.has_value() ? FolderOf(newest_->step()) : "";
}

std::string Checkpoints::WaitingFor() const {
  if (remains_.has_value() && job_.now() - remains_->since >= kWorthAWord) {
    return absl::StrCat(absl::StrJoin(remains_->shards, ", ", AppendName), " to end checkpoint ",
                        remains_->step, ", which has failed");
  }
  if (!current_.has_value() || job_.now() - current_->since < kWorthAWord) return "";
  if (current_->phase != Phase::kWriting) {
    return absl::StrCat("the disk of checkpoint ", current_->of.step);
  }
  return absl::StrCat(absl::StrJoin(Writing(), ", ", AppendName), " to write checkpoint ", current_->of.step);
}

std::set<uint32_t> Checkpoints::Writing() const {
  std::set<uint32_t> shards;
  for (uint32_t shard = 0; shard < current_->of.num_shards; ++shard) {
    if (current_->files.count(shard) == 0) shards.insert(shard);
  }
  return shards;
}

std::string Checkpoints::StoreHangs() const {
  if (!current_.has_value() || current_->phase == Phase::kWriting) return "";
  const absl::Duration silent = job_.now() - current_->since;
  if (silent <= kLongest) return "";
  return absl::StrCat(WaitingFor(), " has not answered for ",
                      absl::FormatDuration(absl::Trunc(silent, absl::Seconds(1))));
}

void Checkpoints::Request(bool of_now, Done done) {
  if (current_.has_value() && !of_now && current_->abandoned.empty()) {
    current_->requests.push_back(std::move(done));
    return;
  }
  next_.push_back(std::move(done));
  next_urgent_ |= of_now;
  Begin();
}

void Checkpoints::TakeIfDue(uint64_t progress) {
  if (!current_.has_value() && schedule_.Due(job_.now(), progress)) Begin();
}

void Checkpoints::Tick() {
  if (remains_.has_value() && job_.now() - remains_->since > kLongest) {
    remains_.reset();
    BeginNext();
  }
  if (!current_.has_value() || current_->phase != Phase::kWriting) return;
  if (job_.now() - current_->since <= kLongest) return;
  Fail(absl::StrCat("it took longer than ", absl::FormatDuration(kLongest),
                    "; still missing: ", WaitingFor()));
}

void Checkpoints::Begin() {
  if (current_.has_value() || remains_.has_value() || store_ == nullptr) return;
  absl::StatusOr<Snapshot> snapshot = options_.snapshot();
  if (!snapshot.ok()) {
    next_urgent_ = false;
    return AnswerAll(std::exchange(next_, {}), snapshot.status());
  }
  const bool urgent = std::exchange(next_urgent_, false);
  const absl::Time now = job_.now();
  schedule_.Begun(now, snapshot->progress);
  if (snapshot->saved) {
    v1::CheckpointReply reply;
    reply.set_directory(newest_folder());
    reply.set_step(newest_->step());
    return AnswerAll(std::exchange(next_, {}), reply);
  }
  current_ = Current{};
  current_->since = now;
  current_->attempt = ++attempts_;
  next_step_ = std::max(next_step_, snapshot->step + 1);
  current_->of = *std::move(snapshot);
  current_->requests = std::exchange(next_, {});
  current_->urgent = urgent;
  // The shards keep their version in the turn of the snapshot, so that no step is committed in between.
  v1::ControlMessage message;
  message.mutable_freeze()->set_step(current_->of.step);
  if (MayFollow(current_->of)) message.mutable_freeze()->set_follows(newest_->step() + 1);
  options_.broadcast(message);
  store_->Begin(current_->of.step, InOrder([this](const absl::Status& status) { OnBegun(status); }));
}

bool Checkpoints::MayFollow(const Snapshot& of) const {
  return newest_.has_value() && chain_ < job_.config.checkpoint().table_deltas() &&
         newest_->num_shards() == of.num_shards && newest_->step() < of.step;
}

void Checkpoints::OnBegun(const absl::Status& status) {
  if (absl::IsAborted(status)) return job_.replaced(std::string(status.message()));
  if (!current_.has_value()) return;
  if (!current_->abandoned.empty()) return Fail(current_->abandoned);
  if (!status.ok()) return Fail(std::string(status.message()));
  current_->phase = Phase::kWriting;
  v1::ControlMessage message;
  message.mutable_checkpoint()->set_step(current_->of.step);
  message.mutable_checkpoint()->set_complete(newest_.has_value() ? newest_->step() + 1 : 0);
  message.mutable_checkpoint()->set_attempt(current_->attempt);
  options_.broadcast(message);
}

void Checkpoints::EndRemains(uint32_t shard) {
  remains_->shards.erase(shard);
  if (!remains_->shards.empty()) return;
  remains_.reset();
  BeginNext();
}

void Checkpoints::OnWritten(uint32_t shard, const v1::CheckpointWritten& written) {
  // A shard of version 1.7 names no attempt.
  const auto is_of = [&written](const auto& attempt) {
    return written.attempt() == 0 || written.attempt() == attempt;
  };
  if (remains_.has_value() && written.step() == remains_->step && is_of(remains_->attempt)) EndRemains(shard);
  if (!current_.has_value() || written.step() != current_->of.step) {
    // The file belongs to a checkpoint that has failed since.
    if (!newest_.has_value() || written.step() != newest_->step()) store_->Discard(written.step());
    return;
  }
  // The files of an earlier attempt were removed when this one began.
  if (!is_of(current_->attempt)) return;
  if (current_->phase != Phase::kWriting) return;
  if (!written.error().empty()) return FailOn(shard, absl::StrCat("ps:", shard, ": ", written.error()));
  if (written.record().num_shards() != current_->of.num_shards) {
    return FailOn(shard, absl::StrCat("ps:", shard, " has written a part of ", written.record().num_shards(),
                                      " shards, but the job has ", current_->of.num_shards));
  }
  current_->files[shard] = written.record();
  if (current_->files.size() < current_->of.num_shards) return;
  current_->phase = Phase::kCommitting;
  v1::CheckpointManifest manifest;
  manifest.set_step(current_->of.step);
  *manifest.mutable_model() = current_->of.model;
  *manifest.mutable_job() = current_->of.job;
  bool deltas = false;
  for (const auto& [index, file] : current_->files) {
    *manifest.add_files() = file;
    deltas = deltas || std::any_of(file.tables().begin(), file.tables().end(),
                                   [](const auto& table) { return table.has_delta_since(); });
  }
  if (deltas && !MayFollow(current_->of)) {
    return Fail("a shard has written what has changed in its tables, and was not asked to");
  }
  // The store names the rest of the chain.
  if (deltas) manifest.add_chain()->set_step(newest_->step());
  manifest.set_num_shards(current_->of.num_shards);
  manifest.set_incarnation(opened_.coordinator_incarnation);
  store_->Commit(manifest,
                 InOrder([this, manifest](const absl::Status& status) { OnCommitted(manifest, status); }));
}

void Checkpoints::OnCommitted(const v1::CheckpointManifest& manifest, const absl::Status& status) {
  if (absl::IsAborted(status)) return job_.replaced(std::string(status.message()));
  if (!current_.has_value()) return;
  if (!status.ok()) return Fail(std::string(status.message()));
  const absl::Duration took = job_.now() - current_->since;
  schedule_.Completed(job_.now());
  newest_ = manifest;
  chain_ = manifest.chain().empty() ? 0 : chain_ + 1;
  newest_since_ = job_.now();
  LogInfo("saved ", newest_folder(), ": ", CheckpointBytes(manifest), " bytes in ",
          absl::FormatDuration(absl::Trunc(took, absl::Milliseconds(1))),
          chain_ > 0 ? absl::StrCat(", on ", chain_, " earlier checkpoints") : "");
  v1::CheckpointReply reply;
  reply.set_directory(newest_folder());
  reply.set_step(manifest.step());
  End(reply);
}

void Checkpoints::PassOver(const std::string& why, std::function<void(const absl::Status&)> done) {
  store_->PassOver(
      newest_->step(), why,
      [this, post = job_.post, done = std::move(done)](absl::StatusOr<v1::CheckpointManifest> found) {
        post([this, done, found = std::move(found)] {
          if (absl::IsAborted(found.status())) return job_.replaced(std::string(found.status().message()));
          if (found.ok()) SetNewest(*found);
          done(found.status());
        });
      });
}

void Checkpoints::SetNewest(v1::CheckpointManifest manifest) {
  newest_ = std::move(manifest);
  chain_ = static_cast<uint32_t>(newest_->chain_size());
  newest_since_ = job_.now();
}

void Checkpoints::Abandon(const std::string& why, uint32_t lost, bool goes_back) {
  if (remains_.has_value()) EndRemains(lost);
  if (current_.has_value() && current_->phase != Phase::kCommitting) {
    // The store's answer must come first.
    if (current_->phase == Phase::kBeginning) {
      current_->abandoned = why;
    } else {
      FailOn(lost, why);
    }
  }
  if (goes_back) remains_.reset();
  // A caller that is answered may ask again at once.
  while (!next_.empty()) {
    next_urgent_ = false;
    AnswerAll(std::exchange(next_, {}), absl::UnavailableError(why));
  }
}

void Checkpoints::FailOn(uint32_t shard, const std::string& why) {
  std::set<uint32_t> writing = Writing();
  writing.erase(shard);
  if (!writing.empty()) remains_ = Remains{current_->of.step, current_->attempt, current_->since, writing};
  Fail(why);
}

void Checkpoints::Fail(const std::string& why) {
  const std::string reason = absl::StrCat(
      "checkpoint ", current_->of.step, " failed: ", why,
      newest_.has_value() ? absl::StrCat("; the last one is ", newest_->step()) : "; there is none yet");
  if (!current_->urgent) LogWarning(reason);
  schedule_.Failed(job_.now());
  if (current_->phase == Phase::kBeginning) {
    v1::ControlMessage message;
    message.mutable_freeze()->set_step(current_->of.step);
    message.mutable_freeze()->set_release(true);
    options_.broadcast(message);
  }
  store_->Discard(current_->of.step);
  End(absl::UnavailableError(reason));
}

void Checkpoints::End(const absl::StatusOr<v1::CheckpointReply>& reply) {
  std::vector<Done> requests = std::move(current_->requests);
  current_.reset();
  AnswerAll(std::move(requests), reply);
  options_.changed();
  BeginNext();
}

void Checkpoints::BeginNext() {
  // Perhaps nothing else begins a checkpoint for these requests: a job that is drained schedules none.
  job_.post([this] {
    if (!next_.empty()) Begin();
  });
}

void Checkpoints::AnswerAll(std::vector<Done> requests, const absl::StatusOr<v1::CheckpointReply>& reply) {
  for (Done& done : requests) done(reply);
}

JobStore::Done Checkpoints::InOrder(std::function<void(const absl::Status&)> then) {
  return [post = job_.post, then = std::move(then)](absl::Status status) {
    post([then, status = std::move(status)] { then(status); });
  };
}

std::unique_ptr<JobStore> Checkpoints::Close(const absl::Status& why) {
  std::vector<Done> requests = std::exchange(next_, {});
  if (current_.has_value()) {
    for (Done& done : current_->requests) requests.push_back(std::move(done));
  }
  current_.reset();
  AnswerAll(std::move(requests), why);
  return std::move(store_);
}

}  // namespace weir

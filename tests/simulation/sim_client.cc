#include "tests/simulation/sim_client.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/wire_model.h"

namespace weir {

SimMember::SimMember(Site* site, World::Node node, std::string task, v1::Role role, uint32_t rank,
                     std::function<void(End)> on_end)
    : site_(site),
      node_(node),
      task_(std::move(task)),
      role_(role),
      rank_(rank),
      on_end_(std::move(on_end)),
      instance_(uint64_t{site->world.Below(1u << 31)} << 32 | site->world.Below(1u << 31)),
      join_retry_(site, absl::Seconds(site->plan.config.cluster().start_seconds()),
                  absl::Seconds(site->plan.config.cluster().start_seconds())) {}

void SimMember::Start() { Join(); }

void SimMember::Abandon() {
  over_ = true;
  for (const auto& shard : shards_) shard->Close();
}

void SimMember::Complain(const std::string& what) {
  site_->log.complaints.push_back(absl::StrCat(task_, ": ", what));
}

std::string SimMember::Waiting() const {
  if (!live_) return absl::StrCat(task_, " waits to join");
  std::string out;
  for (const auto& shard : shards_) {
    if (const std::string open = shard->Open(); !open.empty())
      absl::StrAppend(&out, out.empty() ? "" : ", ", open);
  }
  return absl::StrCat(task_, " waits", leaving_ ? " to leave" : "", out.empty() ? "" : " for ", out);
}

void SimMember::Join() {
  v1::JoinRequest request;
  request.set_role(role_);
  request.set_task(task_);
  request.set_rank(rank_);
  request.set_instance(instance_);
  request.set_model(ToProto(site_->ledger.model()).SerializeAsString());
  request.set_job_config(site_->plan.config.SerializeAsString());
  request.set_train_examples(1000);
  for (uint32_t shard = 0; shard < site_->plan.shards(); ++shard) {
    request.add_ps_addresses(absl::StrCat("ps", shard, ":1"));
  }
  join_retry_.TryStarts();
  SimServer* const server = site_->servers[0].get();
  const uint64_t call = site_->next_session++;
  site_->network.Call<v1::JoinReply>(
      node_, server->node(),
      [server, request, call](std::function<void(absl::StatusOr<v1::JoinReply>)> reply) {
        if (server->coordinator() == nullptr) return reply(absl::UnavailableError("there is no coordinator"));
        server->coordinator()->Join(request, std::move(reply), call);
      },
      [server, instance = instance_, call] {
        if (server->coordinator() != nullptr) server->coordinator()->OnJoinCancelled(instance, call);
      },
      Bound([this](absl::StatusOr<v1::JoinReply> reply) {
        if (!reply.ok()) {
          if (absl::IsOutOfRange(reply.status())) return Fail(End::kDone);
          // One that comes when all have gone would wait until the start deadline.
          if (absl::IsAborted(reply.status()) || site_->log.ended) return Fail(End::kLost);
          const auto wait = join_retry_.Judge(reply.status());
          if (wait.has_value()) return site_->world.After(node_, *wait, Bound([this] { Join(); }));
          Complain(absl::StrCat("could not join: ", reply.status().ToString()));
          return Fail(End::kRefused);
        }
        joined_ = *std::move(reply);
        live_ = true;
        members_ = joined_.membership();
        site_->world.Trace("joined", {joined_.worker(), joined_.incarnation(), joined_.start_clock()});
        site_->log.joins.push_back({site_->world.elapsed(), joined_.worker(), joined_.incarnation(),
                                    joined_.start_clock(), role_ == v1::READER});
        for (uint32_t shard = 0; shard < site_->plan.shards(); ++shard) {
          shards_.push_back(
              std::make_shared<ShardCalls>(site_, node_, shard, [this] { return CallerNow(); }));
        }
        Beat();
        OnJoined();
      }));
}

v1::Caller SimMember::CallerNow() const {
  v1::Caller caller;
  caller.set_worker(joined_.worker());
  caller.set_incarnation(joined_.incarnation());
  caller.set_epoch(members_.epoch());
  caller.set_model_hash(joined_.model_hash());
  return caller;
}

void SimMember::Beat() {
  v1::HeartbeatRequest request;
  *request.mutable_caller() = CallerNow();
  request.set_known_revision(revision_);
  request.set_only_news(true);
  SimServer* const server = site_->servers[0].get();
  const absl::Duration started = site_->world.elapsed();
  site_->network.Call<v1::HeartbeatReply>(
      node_, server->node(),
      [server, request](std::function<void(absl::StatusOr<v1::HeartbeatReply>)> reply) {
        if (server->coordinator() == nullptr) return reply(absl::UnavailableError("there is no coordinator"));
        server->coordinator()->Heartbeat(request, std::move(reply));
      },
      [server, caller = request.caller()] {
        if (server->coordinator() != nullptr) server->coordinator()->OnDisconnect(caller);
      },
      Bound([this, started](absl::StatusOr<v1::HeartbeatReply> reply) {
        if (leaving_) return;
        site_->world.Trace("heartbeat", {node_, reply.ok() ? reply->membership().epoch() : 0});
        if (!reply.ok()) {
          const absl::Duration wait = absl::Seconds(site_->plan.config.cluster().server_wait_seconds());
          if (!unreachable_since_.has_value()) unreachable_since_ = started;
          if (site_->world.elapsed() - *unreachable_since_ >= wait) return Fail(End::kLost);
          return site_->world.After(node_, beat_backoff_.Next(site_->world), Bound([this] { Beat(); }));
        }
        unreachable_since_.reset();
        beat_backoff_.Reset();
        if (reply->fenced()) return Fail(End::kFenced);
        revision_ = reply->revision();
        state_ = reply->state();
        if (reply->has_membership() && reply->membership().epoch() >= members_.epoch()) {
          SetMembers(reply->membership());
        }
        if (state_ == v1::FAILED) return Fail(End::kLost);
        if (state_ != v1::DONE) site_->world.After(node_, absl::Milliseconds(1), Bound([this] { Beat(); }));
        OnNews();
      }));
}

void SimMember::SetMembers(const v1::Membership& members) {
  for (uint32_t shard = 0; shard < shards_.size() && !sync(); ++shard) {
    const int i = static_cast<int>(shard);
    if (members.shard_incarnations(i) != members_.shard_incarnations(i)) shards_[shard]->Tell();
  }
  members_ = members;
}

void SimMember::Fail(End how) {
  if (over_) return;
  site_->world.Trace("member ends", {rank_, static_cast<uint64_t>(role_), static_cast<uint64_t>(how)});
  Abandon();
  on_end_(how);
}

void SimMember::Leave(bool done) {
  if (std::exchange(leaving_, true)) return;
  for (const auto& shard : shards_) shard->Close();
  v1::LeaveRequest request;
  *request.mutable_caller() = CallerNow();
  request.set_done(done);
  request.set_reason(done ? "" : "gives up");
  // Whether it was heard makes no difference any more.
  Call<v1::LeaveRequest, v1::LeaveReply>(&Coordinator::Leave, std::move(request),
                                         [this](const absl::StatusOr<v1::LeaveReply>& reply) {
                                           // The job has gone back meanwhile.
                                           Fail(absl::IsAborted(reply.status()) ? End::kFenced : End::kDone);
                                         });
}

// ---- a worker

SimWorkerClient::SimWorkerClient(Site* site, World::Node node, uint32_t rank, std::function<void(End)> on_end)
    : SimMember(site, node, absl::StrCat("worker:", rank), v1::WORKER, rank, std::move(on_end)) {}

std::string SimWorkerClient::Waiting() const {
  return absl::StrCat(SimMember::Waiting(), doing_ == Doing::kPulling ? " (pulling)" : "",
                      doing_ == Doing::kComputing ? " (computing)" : "",
                      taking_range_ ? " (taking a range)" : "");
}

void SimWorkerClient::OnJoined() {
  const JobLength length{site_->ledger.options().batch_size, joined_.total_batches(),
                         joined_.total_examples()};
  if (sync()) {
    parts_.emplace(length, joined_.parts(), joined_.total_steps(), joined_.worker(), joined_.incarnation(),
                   joined_.start_clock());
  } else {
    ranges_.emplace(length, joined_.start_clock());
  }
  OnNews();
}

void SimWorkerClient::OnNews() {
  if (parts_.has_value()) {
    std::vector<SyncWorkSource::Member> members;
    for (const v1::Member& m : members_.members())
      members.push_back({m.worker(), m.incarnation(), m.start_clock()});
    parts_->SetMembers(std::move(members));
  }
  Advance();
}

void SimWorkerClient::Advance() {
  if (over_ || leaving_ || doing_ != Doing::kNothing) return;
  if (sync()) {
    const bool done = parts_->done() || draining();
    if (done && pushes_out_ == 0) return Leave(true);
    if (!done) {
      if (const std::optional<Work> work = parts_->Next()) return StartWork(*work);
      const uint64_t next = parts_->open_step() + 1;
      if (pulls_out_.lower_bound(next) == pulls_out_.end()) Pull(next, /*probe=*/true);
    }
    return;
  }
  if (const std::optional<Work> work = ranges_->Next()) return StartWork(*work);
  if (!ranges_->outstanding().empty()) return;
  if (ranges_done_ || draining()) return Leave(true);
  if (!taking_range_) TakeRange();
}

void SimWorkerClient::StartWork(const Work& work) {
  if (have_ == work.clock) return Compute(work);
  doing_ = Doing::kPulling;
  waiting_work_ = work;
  if (!coming_.has_value()) Pull(work.clock, /*probe=*/false);
}

void SimWorkerClient::Compute(const Work& work) {
  doing_ = Doing::kComputing;
  const WorkerPlan& plan = site_->plan.workers[rank_];
  site_->world.After(node_, site_->world.Between(plan.compute_least, plan.compute_most), Bound([this, work] {
                       doing_ = Doing::kNothing;
                       Push(work);
                       if (!site_->plan.workers[rank_].holds_view) LetGo(std::exchange(view_, nullptr));
                       Advance();
                     }));
}

void SimWorkerClient::Push(const Work& work) {
  auto operation = std::make_shared<Operation>();
  operation->work = work;
  site_->log.sent.push_back({site_->world.elapsed(), joined_.incarnation(), work.clock, work.batch, base_});
  bool apart = false;
  if (work.last_of_clock && !coming_.has_value()) {
    coming_ = work.clock + 1;
    apart = site_->plan.workers[rank_].pulls_apart;
    if (!apart) operation->pull = coming_;
  }
  Start(std::move(operation), site_->plan.shards());
  if (apart) Pull(*coming_, /*probe=*/false);
}

void SimWorkerClient::Pull(uint64_t clock, bool probe) {
  auto operation = std::make_shared<Operation>();
  operation->pull = clock;
  operation->probe = probe;
  Start(std::move(operation), probe ? 1 : site_->plan.shards());
}

void SimWorkerClient::TakeRange() {
  taking_range_ = true;
  v1::NextRangeRequest request;
  *request.mutable_caller() = CallerNow();
  const std::vector<uint64_t> completed = ranges_->CompletedRanges();
  for (uint64_t id : completed) request.add_completed_ranges(id);
  Call<v1::NextRangeRequest, v1::NextRangeReply>(
      &Coordinator::NextRange, std::move(request),
      [this, completed](absl::StatusOr<v1::NextRangeReply> reply) {
        taking_range_ = false;
        site_->world.Trace("range",
                           {node_, reply.ok(), reply.ok() && reply->has_range() ? reply->range().id() : 0,
                            reply.ok() ? reply->clock() : 0});
        if (!reply.ok()) return Fail(End::kLost);
        if (reply->fenced()) return Fail(End::kFenced);
        ranges_->Reported(completed);
        ranges_->RaiseClock(reply->clock());
        if (reply->has_range()) {
          range_backoff_.Reset();
          if (!ranges_->AddRange(reply->range().id(), reply->range().first_batch(),
                                 reply->range().batches())) {
            Complain(absl::StrCat("was handed range ", reply->range().id(), " twice, or one beyond the job"));
          }
        }
        ranges_done_ = reply->done();
        if (reply->has_range() || reply->done()) return Advance();
        taking_range_ = true;
        site_->world.After(node_, range_backoff_.Next(site_->world), Bound([this] {
                             taking_range_ = false;
                             Advance();
                           }));
      });
}

// ---- calls to the shards (client/shard_set.cc)

void SimWorkerClient::Start(std::shared_ptr<Operation> operation, uint32_t shards) {
  operation->answers.resize(shards);
  operation->missing = shards;
  operation->began = site_->world.elapsed();
  if (operation->work.has_value()) ++pushes_out_;
  if (operation->pull.has_value()) pulls_out_.insert(*operation->pull);
  for (uint32_t shard = 0; shard < shards; ++shard) {
    std::optional<v1::PushRequest> push;
    Weights gradient;
    if (operation->work.has_value()) {
      const Work& work = *operation->work;
      push.emplace();
      push->set_clock(work.clock);
      push->set_part(work.part);
      push->set_batch_plus_one(work.batch + 1);
      push->set_examples(work.examples);
      *push->mutable_base() = base_[shard];
      push->set_elements(static_cast<uint64_t>(site_->ledger.elements()));
      push->set_with_clocks(operation->pull.has_value());
      gradient = std::make_shared<const std::vector<float>>(
          site_->ledger.Gradient(work.batch, shard, joined_.incarnation(), *weights_[shard]));
    }
    std::optional<v1::PullRequest> pull;
    if (operation->pull.has_value()) {
      pull.emplace();
      pull->set_clock(*operation->pull);
      pull->set_header_only(operation->probe);
      pull->set_with_clocks(true);
    }
    shards_[shard]->Exchange(std::move(push), std::move(gradient), std::move(pull), InPlace(),
                             Bound([this, operation, shard](absl::StatusOr<ShardCalls::Answer> answer) {
                               OnAnswer(operation, shard, std::move(answer));
                             }));
  }
}

void SimWorkerClient::OnAnswer(const std::shared_ptr<Operation>& operation, uint32_t shard,
                               absl::StatusOr<ShardCalls::Answer> answer) {
  if (!answer.ok()) {
    if (!absl::IsUnavailable(answer.status()) && !absl::IsCancelled(answer.status())) {
      Complain(absl::StrCat("ps:", shard, " answered ", answer.status().ToString()));
      return Fail(End::kRefused);
    }
    return Fail(End::kLost);
  }
  RunLog& log = site_->log;
  if (operation->work.has_value()) {
    switch (answer->push.outcome()) {
      case v1::OK:
      case v1::REFUSED:
      case v1::DUPLICATE_BATCH:
      case v1::STALE_VERSION:
      case v1::STEP_PAST:
        break;
      case v1::FENCED:
        return Fail(End::kFenced);
      case v1::JOB_OVER:
        return Fail(answer->push.reason().empty() ? End::kDone : End::kLost);
      default:
        Complain(absl::StrCat("a push was answered ", answer->push.DebugString()));
        return Fail(End::kRefused);
    }
  }
  if (operation->pull.has_value()) {
    log.pulls.push_back({operation->began, site_->world.elapsed(), joined_.worker(), joined_.incarnation(),
                         shard, *operation->pull, 0, answer->pull, answer->weights});
    switch (answer->pull.outcome()) {
      case v1::OK:
      case v1::STEP_PAST:
        break;
      case v1::FENCED:
        return Fail(End::kFenced);
      case v1::JOB_OVER:
        return Fail(answer->pull.reason().empty() ? End::kDone : End::kLost);
      default:
        Complain(absl::StrCat("a pull was answered ", answer->pull.DebugString()));
        return Fail(End::kRefused);
    }
  }
  operation->answers[shard] = *std::move(answer);
  --operation->missing;
  if (site_->seams.one_shard_is_enough && operation->work.has_value() && ranges_.has_value()) {
    ranges_->Acknowledge(operation->work->clock);
  }
  if (operation->missing == 0) OnComplete(*operation);
}

void SimWorkerClient::OnComplete(const Operation& operation) {
  if (operation.work.has_value()) {
    --pushes_out_;
    if (ranges_.has_value()) ranges_->Acknowledge(operation.work->clock);
  }
  if (operation.pull.has_value()) pulls_out_.erase(pulls_out_.find(*operation.pull));
  if (parts_.has_value()) {
    for (const ShardCalls::Answer& answer : operation.answers) {
      if (answer.push.outcome() == v1::OK) parts_->OpenStep(answer.push.version().count());
      if (answer.pull.outcome() == v1::OK || answer.pull.outcome() == v1::STEP_PAST) {
        parts_->OpenStep(answer.pull.version().count());
      }
    }
  }
  if (operation.pull.has_value() && !operation.probe) Land(operation);
  Advance();
}

void SimWorkerClient::Land(const Operation& operation) {
  const uint64_t clock = *operation.pull;
  const bool came = coming_ == clock;
  if (came) coming_.reset();
  bool past = false;
  std::vector<Weights> weights;
  std::vector<v1::Version> base;
  for (const ShardCalls::Answer& answer : operation.answers) {
    past |= answer.pull.outcome() != v1::OK;
    weights.push_back(answer.weights);
    base.push_back(answer.pull.version());
  }
  const bool wanted = !waiting_work_.has_value() || waiting_work_->clock == clock;
  if (!past && wanted) {
    have_ = clock;
    weights_ = std::move(weights);
    base_ = std::move(base);
    LetGo(std::exchange(view_, std::make_shared<const View>(operation.answers)));
  }
  if (!waiting_work_.has_value()) return;
  if (have_ == waiting_work_->clock) return Compute(*std::exchange(waiting_work_, std::nullopt));
  if (came) return Pull(waiting_work_->clock, /*probe=*/false);
  // Its step has been committed without it.
  waiting_work_.reset();
  doing_ = Doing::kNothing;
}

void SimWorkerClient::LetGo(std::shared_ptr<const View> view) {
  if (view == nullptr || view->front().chunks.empty()) return;
  const WorkerPlan& plan = site_->plan.workers[rank_];
  const bool keeps = site_->world.elapsed() >= plan.keeps_from && views_kept_ < plan.keeps;
  if (keeps) ++views_kept_;
  const absl::Duration wait = keeps ? plan.keeps_for : absl::ZeroDuration();
  site_->world.After(node_, wait, Bound([this, view = std::move(view)]() mutable {
                       for (uint32_t shard = 0; shard < view->size(); ++shard) {
                         for (const auto& chunk : (*view)[shard].chunks) {
                           if (chunk->unchanged()) continue;
                           site_->log.changed_views.push_back({site_->world.elapsed(), joined_.worker(),
                                                               shard, (*view)[shard].pull.version()});
                         }
                       }
                       view = nullptr;
                     }));
}

}  // namespace weir

#include "tests/simulation/sim_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/wire_model.h"
#include "common/protocol/job_failure.h"

namespace weir {
namespace {

std::chrono::nanoseconds Nanoseconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

}  // namespace

SimMember::SimMember(Site* site, World::Node node, std::string task, v1::Role role, uint32_t rank,
                     std::function<void(End)> on_end)
    : site_(site),
      node_(node),
      task_(std::move(task)),
      role_(role),
      rank_(rank),
      on_end_(std::move(on_end)),
      instance_(uint64_t{site->world.Below(1u << 31)} << 32 | site->world.Below(1u << 31)),
      loop_(&site->world, node),
      tensors_(site->ledger.model(), site->plan.shards()),
      join_retry_(NewRetry("the join", {Nanoseconds(site->plan.config.cluster().start_seconds()),
                                        Nanoseconds(site->plan.config.cluster().start_seconds())})),
      beat_backoff_(std::chrono::milliseconds(50), std::chrono::milliseconds(500), Jitter()) {
  wire_.shared_memory = site->plan.shared_memory;
  wire_.chunk_unit = site->ledger.chunk_unit();
}

SimMember::~SimMember() { CleanUp(); }

CallLimits SimMember::limits() const {
  const auto& cluster = site_->plan.config.cluster();
  return {Nanoseconds(cluster.wait_seconds() + 2), Nanoseconds(cluster.server_wait_seconds())};
}

CallRetry SimMember::NewRetry(std::string what, const CallLimits& limits) {
  return CallRetry(std::move(what), "ps:0", limits, loop_.awake(), loop_.real(), Jitter());
}

void SimMember::Start() { Join(); }

void SimMember::Abandon() {
  if (std::exchange(over_, true)) return;
  const std::shared_ptr<SimMember> self = shared_from_this();
  site_->ended_members.push_back(self);
  CleanUpSoon();
}

void SimMember::CleanUpSoon() {
  site_->world.After(absl::ZeroDuration(), [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->CleanUp();
  });
}

void SimMember::CleanUp() {
  if (over_) LetViewsGo();
  for (SimShardChannel* channel : channels_) channel->Abort();
  calls_.Close(absl::CancelledError("the client is gone"));
  loop_.Drain();
}

void SimMember::Complain(const std::string& what) {
  site_->log.complaints.push_back(absl::StrCat(task_, ": ", what));
}

std::string SimMember::Waiting() const {
  if (!live_) return absl::StrCat(task_, " waits to join");
  return absl::StrCat(task_, " waits", leaving_ ? " to leave" : "");
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
          const CallRetry::Verdict verdict = join_retry_.Judge(reply.status());
          if (verdict.error.ok()) {
            return site_->world.After(node_, absl::FromChrono(verdict.wait), Bound([this] { Join(); }));
          }
          Complain(absl::StrCat("could not join: ", reply.status().ToString()));
          return Fail(End::kRefused);
        }
        joined_ = *std::move(reply);
        live_ = true;
        members_ = joined_.membership();
        site_->world.Trace("joined", {joined_.worker(), joined_.incarnation(), joined_.start_clock()});
        site_->log.joins.push_back({site_->world.elapsed(), joined_.worker(), joined_.incarnation(),
                                    joined_.start_clock(), role_ == v1::READER});
        Connect();
        Beat();
        OnJoined();
      }));
}

void SimMember::Connect() {
  epoch_ = members_.epoch();
  std::vector<std::unique_ptr<ShardChannel>> channels;
  for (uint32_t shard = 0; shard < site_->plan.shards(); ++shard) {
    auto channel = std::make_unique<SimShardChannel>(site_, node_, shard, &loop_);
    channels_.push_back(channel.get());
    channels.push_back(std::move(channel));
    buffers_.push_back(std::make_shared<FloatBuffers>(static_cast<size_t>(site_->ledger.elements())));
  }
  shards_ = std::make_unique<ShardSet>(std::move(channels), loop_, tensors_, CallerNow(), epoch_, wire_,
                                       calls_, limits(), this, [this](const absl::Status& why) {
                                         if (!over_ && !leaving_) OnFatal(why);
                                       });
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
  const absl::Time started = loop_.awake().Now();
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
          if (loop_.awake().Now() - *unreachable_since_ >= wait) return Fail(End::kLost);
          return site_->world.After(node_, absl::FromChrono(beat_backoff_.Next()), Bound([this] { Beat(); }));
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
  const v1::Membership before = std::exchange(members_, members);
  epoch_ = members.epoch();
  for (uint32_t shard = 0; shard < shards_->size() && !sync(); ++shard) {
    const int i = static_cast<int>(shard);
    if (members.shard_incarnations(i) != before.shard_incarnations(i)) shards_->Tell(shard);
  }
}

void SimMember::OnFatal(const absl::Status& why) { Fail(absl::IsAborted(why) ? End::kFenced : End::kLost); }

void SimMember::Fail(End how) {
  if (over_) return;
  site_->world.Trace("member ends", {rank_, static_cast<uint64_t>(role_), static_cast<uint64_t>(how)});
  Abandon();
  on_end_(how);
}

void SimMember::Leave(bool done) {
  if (std::exchange(leaving_, true)) return;
  CleanUpSoon();
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

// ---- calls to the shards

std::shared_ptr<SimMember::Pulling> SimMember::NewPull(uint64_t clock, bool view, bool in_place) {
  auto pulling = std::make_shared<Pulling>();
  ShardSet::Pull& pull = pulling->pull;
  pull.request.set_clock(clock);
  pulling->began = site_->world.elapsed();
  if (view) {
    pull.views = std::make_shared<std::vector<ShardView>>();
    for (const auto& buffers : buffers_) {
      pull.views->emplace_back(site_->ledger.elements(), wire_.chunk_unit, buffers, in_place);
    }
  } else {
    pulling->weights.resize(static_cast<size_t>(tensors_.model().elements()));
    pull.tensors = TensorsIn(&pulling->weights);
  }
  pulling_[KeyOf(pull)] = pulling;
  return pulling;
}

std::vector<float*> SimMember::TensorsIn(std::vector<float>* all) const {
  std::vector<float*> tensors;
  int64_t offset = 0;
  for (const TensorSpec& tensor : tensors_.model().tensors) {
    tensors.push_back(all->data() + offset);
    offset += tensor.elements();
  }
  return tensors;
}

Weights SimMember::WeightsOf(const ShardSet::Pull& pull, uint32_t shard) const {
  const int64_t elements = site_->ledger.elements();
  std::vector<float> weights;
  if (pull.views != nullptr) {
    for (int64_t i = 0; i < elements; ++i) weights.push_back(*(*pull.views)[shard].At(i));
  } else {
    tensors_.Walk(shard, 0, elements, [&](size_t tensor, int64_t at, int64_t n) {
      weights.insert(weights.end(), pull.tensors[tensor] + at, pull.tensors[tensor] + at + n);
    });
  }
  return std::make_shared<const std::vector<float>>(std::move(weights));
}

const void* SimMember::KeyOf(const ShardSet::Pull& pull) {
  return pull.views != nullptr ? static_cast<const void*>(pull.views.get()) : pull.tensors.front();
}

void SimMember::OnPull(const ShardSet::Pull& pull, uint32_t shard, const v1::PullReply& reply) {
  const auto found = pulling_.find(KeyOf(pull));
  const auto pulling = found == pulling_.end() ? nullptr : found->second.lock();
  if (over_ || pulling == nullptr) return;
  site_->log.pulls.push_back({pulling->began, site_->world.elapsed(), joined_.worker(), joined_.incarnation(),
                              shard, pull.request.clock(), pulling->read, reply,
                              reply.outcome() == v1::OK ? WeightsOf(pull, shard) : nullptr});
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
  site_->log.sent.push_back({site_->world.elapsed(), joined_.incarnation(), work.clock, work.batch, base_});
  bool apart = false;
  std::optional<uint64_t> pull;
  if (work.last_of_clock && !coming_.has_value()) {
    coming_ = work.clock + 1;
    apart = site_->plan.workers[rank_].pulls_apart;
    if (!apart) pull = coming_;
  }
  Begin(work, pull, /*probe=*/false);
  if (apart) Pull(*coming_, /*probe=*/false);
}

void SimWorkerClient::Pull(uint64_t clock, bool probe) { Begin(std::nullopt, clock, probe); }

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
        site_->world.After(node_, absl::FromChrono(range_backoff_.Next()), Bound([this] {
                             taking_range_ = false;
                             Advance();
                           }));
      });
}

// ---- a worker's calls to the shards (client/job/client_impl.cc)

ShardSet::Push SimWorkerClient::MakePush(const Work& work, std::vector<float>* gradient) {
  gradient->resize(static_cast<size_t>(tensors_.model().elements()));
  const std::vector<float*> tensors = TensorsIn(gradient);
  ShardSet::Push push{work, {}, nullptr};
  for (uint32_t shard = 0; shard < site_->plan.shards(); ++shard) {
    const std::vector<float> part =
        site_->ledger.Gradient(work.batch, shard, joined_.incarnation(), *weights_[shard]);
    auto from = part.begin();
    tensors_.Walk(shard, 0, site_->ledger.elements(), [&](size_t tensor, int64_t at, int64_t n) {
      std::copy(from, from + n, tensors[tensor] + at);
      from += n;
    });
    push.base.versions.push_back(base_[shard].count());
    push.base.incarnations.push_back(base_[shard].incarnation());
  }
  // Now and then tensors are ready one after the other, and the push has begun before.
  std::shared_ptr<GradientGate> gate;
  if (site_->world.Chance(0.15)) {
    gate = std::make_shared<GradientGate>();
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      site_->world.After(node_, site_->world.Between(absl::ZeroDuration(), absl::Milliseconds(30)),
                         [gate, tensor] { gate->Ready(tensor); });
    }
  }
  auto made =
      OutgoingGradient::Create({joined_.worker(), task_, work.clock, /*reject=*/true, /*shard_checks=*/false},
                               tensors_, {v1::F32, {tensors.begin(), tensors.end()}}, wire_, gate.get());
  if (made.ok()) {
    push.gradient = *std::move(made);
  } else {
    Complain(absl::StrCat("could not push: ", made.status().ToString()));
  }
  return push;
}

void SimWorkerClient::Begin(const std::optional<Work>& work, std::optional<uint64_t> clock, bool probe) {
  std::shared_ptr<Pulling> pulling;
  if (clock.has_value()) {
    // Some read into tensors of their own, and hear of each.
    const bool whole = !probe && !InPlace() && rank_ % 2 == 1;
    pulling = NewPull(*clock, /*view=*/!whole, InPlace());
    pulling->pull.request.set_header_only(probe);
    if (sync()) pulling->pull.want.assign(probe ? 1 : site_->plan.shards(), *clock);
    if (whole) Hear(pulling);
    pulls_out_.insert(*clock);
  }
  const auto gradient = std::make_shared<std::vector<float>>();
  std::optional<ShardSet::Push> push;
  if (work.has_value()) {
    push = MakePush(*work, gradient.get());
    ++pushes_out_;
  }
  shards_->Start(
      probe ? 1 : shards_->size(), std::move(push),
      pulling == nullptr ? std::nullopt : std::optional(pulling->pull),
      Bound([this, work, pulling, probe, gradient](const absl::StatusOr<ShardSet::Answers>& answers) {
        if (leaving_) return;
        if (answers.ok()) return OnComplete(work, pulling, probe, *answers);
        OnFailed(work, pulling, answers.status());
      }));
}

// Tensors are told as they come, and are to stay as they are then.
void SimWorkerClient::Hear(const std::shared_ptr<Pulling>& pulling) {
  pulling->pull.on_tensor = [this, weak = std::weak_ptr<Pulling>(pulling)](size_t tensor) {
    const auto pulling = weak.lock();
    if (over_ || pulling == nullptr) return;
    const float* const from = pulling->pull.tensors[tensor];
    pulling->told[tensor].assign(from, from + tensors_.model().tensors[tensor].elements());
  };
}

void SimWorkerClient::OnFailed(const std::optional<Work>& work, const std::shared_ptr<Pulling>& pulling,
                               const absl::Status& why) {
  if (absl::IsDataLoss(why)) {
    // Cut short after its first tensors, and so after its push was answered: pulled again, as the trainer
    // does.
    const uint64_t clock = pulling->pull.request.clock();
    pulls_out_.erase(pulls_out_.find(clock));
    if (work.has_value()) --pushes_out_, ranges_->Acknowledge(work->clock);
    ++site_->faults["pull again"];
    return Pull(clock, /*probe=*/false);
  }
  if (absl::IsAborted(why)) return Fail(End::kFenced);
  if (absl::IsFailedPrecondition(why)) return Fail(End::kDone);
  if (absl::IsUnavailable(why) || absl::IsDeadlineExceeded(why) || KindOf(why) == v1::FAILURE_RESOURCE) {
    return Fail(End::kLost);
  }
  Complain(absl::StrCat("a call ended with ", why.ToString()));
  Fail(End::kRefused);
}

void SimWorkerClient::OnPush(const ShardSet::Push& push, uint32_t, const v1::PushReply&) {
  if (!over_ && site_->seams.one_shard_is_enough && ranges_.has_value()) {
    ranges_->Acknowledge(push.work.clock);
  }
}

void SimWorkerClient::OnComplete(const std::optional<Work>& work, const std::shared_ptr<Pulling>& pulling,
                                 bool probe, const ShardSet::Answers& answers) {
  if (work.has_value()) {
    --pushes_out_;
    if (ranges_.has_value()) ranges_->Acknowledge(work->clock);
  }
  if (pulling != nullptr) pulls_out_.erase(pulls_out_.find(pulling->pull.request.clock()));
  if (parts_.has_value()) {
    for (const ShardAnswer& answer : answers) {
      if (answer.push.outcome() == v1::OK) parts_->OpenStep(answer.push.version().count());
      if (answer.pull.outcome() == v1::OK || answer.pull.outcome() == v1::STEP_PAST) {
        parts_->OpenStep(answer.pull.version().count());
      }
    }
  }
  if (pulling != nullptr && !probe) Land(*pulling, answers);
  Advance();
}

void SimWorkerClient::Land(const Pulling& pulling, const ShardSet::Answers& answers) {
  const uint64_t clock = pulling.pull.request.clock();
  const bool came = coming_ == clock;
  if (came) coming_.reset();
  const bool past = std::any_of(answers.begin(), answers.end(),
                                [](const ShardAnswer& answer) { return answer.pull.outcome() != v1::OK; });
  for (const auto& [tensor, values] : pulling.told) {
    if (std::equal(values.begin(), values.end(), pulling.pull.tensors[tensor])) continue;
    Complain(absl::StrCat("tensor ", tensor, " of clock ", clock, " has changed after it was told"));
  }
  const bool wanted = !waiting_work_.has_value() || waiting_work_->clock == clock;
  if (!past && wanted) {
    have_ = clock;
    weights_.clear();
    base_.clear();
    for (uint32_t shard = 0; shard < answers.size(); ++shard) {
      weights_.push_back(WeightsOf(pulling.pull, shard));
      base_.push_back(answers[shard].pull.version());
    }
    LetGo(std::exchange(view_, InPlace()
                                   ? std::make_shared<const View>(View{pulling.pull.views, weights_, base_})
                                   : nullptr));
  }
  if (!waiting_work_.has_value()) return;
  if (have_ == waiting_work_->clock) return Compute(*std::exchange(waiting_work_, std::nullopt));
  if (came) return Pull(waiting_work_->clock, /*probe=*/false);
  // Its step has been committed without it.
  waiting_work_.reset();
  doing_ = Doing::kNothing;
}

void SimWorkerClient::LetGo(std::shared_ptr<const View> view) {
  if (view == nullptr) return;
  const WorkerPlan& plan = site_->plan.workers[rank_];
  const bool keeps = site_->world.elapsed() >= plan.keeps_from && views_kept_ < plan.keeps;
  if (keeps) ++views_kept_;
  const absl::Duration wait = keeps ? plan.keeps_for : absl::ZeroDuration();
  site_->world.After(node_, wait, Bound([this, view = std::move(view)]() mutable {
                       for (uint32_t shard = 0; shard < view->shards->size(); ++shard) {
                         const std::vector<float>& then = *view->weights[shard];
                         bool same = true;
                         for (size_t i = 0; i < then.size(); ++i) {
                           same &= *(*view->shards)[shard].At(static_cast<int64_t>(i)) == then[i];
                         }
                         if (same) continue;
                         site_->log.changed_views.push_back(
                             {site_->world.elapsed(), joined_.worker(), shard, view->versions[shard]});
                       }
                       view = nullptr;
                     }));
}

}  // namespace weir

// What Exchange() and PullSnapshot() do: orders become exchanges with all shards, and their answers results.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/exchange/answers.h"
#include "client/job/client_impl.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

Future<ExchangeResult> Ready(const absl::Status& error) {
  Promise<ExchangeResult> promise;
  promise.Set(error);
  return promise.future();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const RowRoutes>> ClientImpl::MakeRows(absl::Span<const RowGradients> push,
                                                                      absl::Span<const RowsToRead> pull) {
  if (push.empty() && pull.empty()) return nullptr;
  return RowRoutes::Create(tables_, key_cuts_, push, pull, {wire_.push_dtype, wire_.pull_dtype});
}

absl::StatusOr<ShardSet::Push> ClientImpl::MakePush(ExchangeOrder::Push order,
                                                    const absl::Status& rows_finite) {
  if (order.work.examples == 0) return absl::InvalidArgumentError("a push needs work of at least 1 example");
  const PullResult& base = order.base;
  if (base.no_base) {
    return absl::InvalidArgumentError(
        "`base` waited for nobody: it is a snapshot, or rows alone with consistency.tables \"async\". Give "
        "the result of a pull of weights at the push's clock");
  }
  if (base.past || base.versions.size() != shards_.size() || base.incarnations.size() != shards_.size()) {
    return absl::InvalidArgumentError(
        "`base` is not the result of a pull of weights, so no server could tell which weights the gradient "
        "was computed from");
  }
  ShardSet::Push push{order.work, std::move(order.base), {}};
  WEIR_ASSIGN_OR_RETURN(GradientTensors tensors, tensors_.Match(order.gradient));
  std::shared_ptr<const SharedSegment> memory;
  if (tensors.dtype == v1::F32) memory = gradients_.Find(tensors.begin);
  WEIR_ASSIGN_OR_RETURN(
      push.gradient, OutgoingGradient::Create(
                         {caller_.worker(), options_.task, push.work.clock, push.work.batch,
                          push.work.first_example, push.work.examples, rejects_, shard_checks_, rows_finite},
                         tensors_, std::move(tensors), wire_, order.gate.get(), std::move(memory)));
  return push;
}

absl::StatusOr<ShardSet::Pull> ClientImpl::MakePull(ExchangeOrder::Pull order) {
  const uint64_t clock = order.clock;
  ShardSet::Pull pull;
  pull.request.set_clock(clock);
  if (mode_.commits_steps) pull.want.assign(shards_.size(), clock);
  if (order.in_place) {
    pull.views = MakeViews();
    return pull;
  }
  if (!order.rows.empty() && order.tensors.empty()) {
    if (order.on_weights) {
      return absl::InvalidArgumentError(
          "a pull of rows alone brings no tensors, so it takes no on_weights; give `tensors`, or none");
    }
    pull.request.set_header_only(true);
    pull.request.set_rows_alone(true);
    if (rows_on_arrival_) pull.want.clear();
    return pull;
  }
  WEIR_ASSIGN_OR_RETURN(pull.tensors, tensors_.Match(order.tensors));
  pull.on_tensor = std::move(order.on_weights);
  if (mode_.commits_steps && pull.on_tensor) {
    // All shards have published the step: NextWork() need not wait for the last of its weights.
    pull.on_tensor = [this, clock, told = false, tell = std::move(pull.on_tensor)](size_t tensor) mutable {
      tell(tensor);
      if (std::exchange(told, true)) return;
      MutexLock lock(mutex_);
      parts_.OpenStep(clock);
      Changed();
    };
  }
  return pull;
}

bool ClientImpl::MayHoldWeights() const {
  if (mode_.commits_steps && !backup_workers_) return true;
  // Otherwise pushes, which make versions while other workers hold theirs, would wait for the memory of those
  // versions.
  MutexLock lock(mutex_);
  return membership_.members_size() <= 1;
}

std::shared_ptr<std::vector<ShardView>> ClientImpl::MakeViews() const {
  const bool in_place = MayHoldWeights();
  auto views = std::make_shared<std::vector<ShardView>>();
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    views->emplace_back(tensors_.partition().shard_elements(shard), wire_.chunk_unit, buffers_[shard],
                        in_place);
  }
  return views;
}

WeightsView ClientImpl::ViewOf(PullResult pull, std::vector<ShardView> views) const {
  if (pull.past) return WeightsView(std::move(pull), {}, nullptr, false);
  const auto shards = std::make_shared<const std::vector<ShardView>>(std::move(views));
  const bool in_place =
      std::all_of(shards->begin(), shards->end(), [](const ShardView& shard) { return shard.in_place(); });
  return WeightsView(std::move(pull), PiecesOf(tensors_, *shards), shards, in_place);
}

void ClientImpl::Start(uint32_t shards, std::optional<ShardSet::Push> push,
                       std::optional<ShardSet::Pull> pull, const std::shared_ptr<const RowRoutes>& rows,
                       ShardSet::Done done) {
  InFlight call;
  if (push.has_value()) call.push = PushKey(push->work.clock, push->work.part);
  if (pull.has_value()) {
    call.pull = pull->request.clock();
    call.probe = pull->request.header_only() && rows == nullptr;
  }
  {
    MutexLock lock(mutex_);
    if (call.push.has_value()) {
      ++pushes_out_;
      failed_pushes_.erase(*call.push);
    }
    if (call.pull.has_value()) pulls_out_.insert(*call.pull);
  }
  const auto gradient = push.has_value() ? push->gradient : nullptr;
  shards_.Start(shards, std::move(push), std::move(pull), rows,
                [this, call, gradient, done = std::move(done)](absl::StatusOr<Answers> answers) {
                  if (gradient != nullptr) {
                    if (!answers.ok() && gradient->memory() != nullptr)
                      gradients_.GiveUp(*gradient->memory());
                    answers = JudgeFinite(*gradient, std::move(answers));
                  }
                  Learn(call, answers);
                  done(std::move(answers));
                });
}

absl::StatusOr<ClientImpl::Answers> ClientImpl::JudgeFinite(const OutgoingGradient& gradient,
                                                            absl::StatusOr<Answers> answers) {
  if (!answers.ok()) return answers;
  std::string refusal = gradient.refusal();
  // With backup workers a refused push may only have come late.
  for (size_t shard = 0; shard < answers->size() && refusal.empty() && !backup_workers_; ++shard) {
    const v1::PushReply& reply = (*answers)[shard].push;
    if (reply.outcome() == v1::REFUSED) refusal = absl::StrCat(reply.reason(), " (ps:", shard, ")");
  }
  if (refusal.empty()) return answers;
  if (rejects_) {
    LogWarning("a push is refused, and done without an update: ", refusal);
    return answers;
  }
  const absl::Status diverged = Divergence(refusal);
  Fail(diverged);
  return diverged;
}

Future<ExchangeResult> ClientImpl::Exchange(ExchangeOrder order) {
  const bool pushes = order.push.has_value(), pulls = order.pull.has_value();
  if (!pushes && !pulls) return Ready(absl::InvalidArgumentError("an exchange needs a push or a pull"));
  if (pushes && options_.reader) return Ready(absl::FailedPreconditionError("a reader does not push"));
  const Work work = pushes ? order.push->work : Work();
  const auto fail = [&](const absl::Status& why) { return Ready(pushes ? FailPush(work, why) : why); };
  if (pushes && pulls && order.pull->clock != work.clock + 1) {
    return fail(absl::InvalidArgumentError(absl::StrCat("with a push at clock ", work.clock,
                                                        " goes the pull at the next, ", work.clock + 1,
                                                        ", and not the one at ", order.pull->clock)));
  }
  absl::StatusOr<std::shared_ptr<const RowRoutes>> rows =
      MakeRows(pushes ? absl::MakeConstSpan(order.push->rows) : absl::Span<const RowGradients>(),
               pulls ? absl::MakeConstSpan(order.pull->rows) : absl::Span<const RowsToRead>());
  if (!rows.ok()) return fail(rows.status());
  std::optional<ShardSet::Pull> pull;
  if (pulls) {
    absl::StatusOr<ShardSet::Pull> made = MakePull(*std::move(order.pull));
    if (!made.ok()) return fail(made.status());
    pull = *std::move(made);
  }
  std::optional<ShardSet::Push> push;
  if (pushes) {
    absl::StatusOr<ShardSet::Push> made =
        MakePush(*std::move(order.push), *rows == nullptr ? absl::OkStatus() : (*rows)->finite());
    if (!made.ok()) return fail(made.status());
    push = *std::move(made);
  }
  const auto views = pulls ? pull->views : nullptr;
  const bool no_base = pulls && pull->request.rows_alone() && rows_on_arrival_;
  Promise<ExchangeResult> promise(loop_->driver());
  Start(shards_.size(), std::move(push), std::move(pull), *rows,
        [this, promise, pushes, pulls, views, no_base](absl::StatusOr<Answers> answers) mutable {
          if (!answers.ok()) {
            // Others may hold `views` for longer, but not what is in them.
            if (views != nullptr) views->clear();
            return promise.Set(answers.status());
          }
          ExchangeResult result;
          if (pushes) result.push = MergePush(*answers);
          if (views != nullptr) {
            result.weights = ViewOf(MergePull(*answers), std::move(*views));
          } else if (pulls) {
            result.pull = MergePull(*answers);
            result.pull.no_base = no_base;
          }
          promise.Set(std::move(result));
        });
  return promise.future();
}

absl::Status ClientImpl::FailPush(const Work& work, const absl::Status& why) {
  if (KindOf(why) == v1::FAILURE_DIVERGED) Fail(why);
  MutexLock lock(mutex_);
  failed_pushes_.emplace(PushKey(work.clock, work.part), why);
  Changed();
  return why;
}

Future<PullResult> ClientImpl::PullSnapshot(std::vector<MutableTensor> tensors,
                                            std::vector<RowsToRead> to_read) {
  Promise<PullResult> promise(loop_->driver());
  absl::StatusOr<std::shared_ptr<const RowRoutes>> rows = MakeRows({}, to_read);
  absl::StatusOr<ShardSet::Pull> order =
      MakePull({0, /*in_place=*/false, std::move(tensors), nullptr, std::move(to_read)});
  if (!rows.ok() || !order.ok()) {
    promise.Set(rows.ok() ? order.status() : rows.status());
    return promise.future();
  }
  v1::PinRequest pin;
  *pin.mutable_caller() = CallerNow();
  // The pin is needed only until the pulls have begun, retries included.
  pin.set_lease_seconds(std::chrono::duration<double>(lease_ + server_wait_).count());
  coordinator_.Pin(pin, limits())
      .OnReady([this, promise, order = *std::move(order),
                rows = *std::move(rows)](const absl::StatusOr<v1::PinReply>& reply) mutable {
        if (!reply.ok()) {
          promise.Set(reply.status());
          return;
        }
        order.request.set_pin(reply->pin());
        order.want.clear();
        for (const v1::Version& version : reply->versions()) order.want.push_back(version.count());
        if (order.want.size() != shards_.size()) {
          promise.Set(absl::InternalError(absl::StrCat(
              "the coordinator pinned versions of ", order.want.size(), " of ", shards_.size(), " shards")));
          return;
        }
        Start(shards_.size(), std::nullopt, std::move(order), rows,
              [this, promise, id = reply->pin()](absl::StatusOr<Answers> answers) {
                v1::UnpinRequest unpin;
                *unpin.mutable_caller() = CallerNow();
                unpin.set_pin(id);
                absl::StatusOr<PullResult> result =
                    answers.ok() ? absl::StatusOr<PullResult>(MergePull(*answers)) : answers.status();
                if (result.ok()) result->no_base = true;
                // Whether it succeeds does not matter: the pin has a lease.
                coordinator_.Unpin(unpin, limits())
                    .OnReady(
                        [promise, result = std::move(result)](const absl::StatusOr<v1::UnpinReply>&) mutable {
                          promise.Set(std::move(result));
                        });
              });
      });
  return promise.future();
}

}  // namespace weir

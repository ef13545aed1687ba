// What Exchange() and PullSnapshot() do: orders become exchanges with all shards, and their answers results.
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/exchange/shard_set.h"
#include "client/job/client_impl.h"
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

absl::StatusOr<ShardSet::Pull> ClientImpl::MakePull(ExchangeOrder::Pull order) {
  bool alone = false;
  if (order.in_place) {
    MutexLock lock(mutex_);
    alone = news_.membership().members_size() <= 1;
  }
  const uint64_t clock = order.clock;
  return exchanges_.Pull(std::move(order), alone, [this, clock] {
    // NextWork() need not wait for the last of the step's weights.
    MutexLock lock(mutex_);
    work_.OpenStep(clock);
    Changed();
  });
}

void ClientImpl::Start(uint32_t shards, std::optional<ShardSet::Push> push,
                       std::optional<ShardSet::Pull> pull, const std::shared_ptr<const RowRoutes>& rows,
                       ShardSet::Done done) {
  PendingWork::Call call;
  if (push.has_value()) call.push = PendingWork::PushKey(push->work.clock, push->work.part);
  if (pull.has_value()) {
    call.pull = pull->request.clock();
    call.probe = pull->request.header_only() && rows == nullptr;
  }
  {
    MutexLock lock(mutex_);
    work_.Begin(call);
  }
  const auto gradient = push.has_value() ? push->gradient : nullptr;
  shards_.Start(shards, std::move(push), std::move(pull), rows,
                [this, call, gradient, done = std::move(done)](absl::StatusOr<Answers> answers) {
                  if (gradient != nullptr) answers = JudgeFinite(*gradient, std::move(answers));
                  if (answers.ok() && (call.push.has_value() || options_.reader)) progressed_ = true;
                  {
                    MutexLock lock(mutex_);
                    work_.End(call, answers);
                    Changed();
                  }
                  done(std::move(answers));
                });
}

absl::StatusOr<ClientImpl::Answers> ClientImpl::JudgeFinite(const OutgoingGradient& gradient,
                                                            absl::StatusOr<Answers> answers) {
  if (!answers.ok()) {
    exchanges_.GiveUp(gradient);
    return answers;
  }
  const std::string refusal = exchanges_.RefusalOf(gradient, *answers);
  if (refusal.empty()) return answers;
  if (exchanges_.rejects()) {
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
      exchanges_.Rows(pushes ? absl::MakeConstSpan(order.push->rows) : absl::Span<const RowGradients>(),
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
        exchanges_.Push(*std::move(order.push), *rows == nullptr ? absl::OkStatus() : (*rows)->finite());
    if (!made.ok()) return fail(made.status());
    push = *std::move(made);
  }
  const auto views = pulls ? pull->views : nullptr;
  const bool no_base = pulls && pull->request.rows_alone() && exchanges_.rows_on_arrival();
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
            result.weights = exchanges_.ViewOf(MergePull(*answers), std::move(*views));
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
  work_.FailPush(work, why);
  Changed();
  return why;
}

Future<PullResult> ClientImpl::PullSnapshot(std::vector<MutableTensor> tensors,
                                            std::vector<RowsToRead> to_read) {
  Promise<PullResult> promise(loop_->driver());
  absl::StatusOr<std::shared_ptr<const RowRoutes>> rows = exchanges_.Rows({}, to_read);
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
  coordinator_.Start(pin, limits())
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
                coordinator_.Start(unpin, limits())
                    .OnReady(
                        [promise, result = std::move(result)](const absl::StatusOr<v1::UnpinReply>&) mutable {
                          promise.Set(std::move(result));
                        });
              });
      });
  return promise.future();
}

}  // namespace weir

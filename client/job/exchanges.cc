#include "client/job/exchanges.h"

#include <utility>

#include "absl/strings/str_cat.h"
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

Exchanges::Exchanges(ExchangeBuilder& builder, std::vector<std::unique_ptr<ShardChannel>> shards,
                     const ShardClient::Shared& shared, ShardSet::Observer* observer,
                     CoordinatorCalls& coordinator, const CallLimits& limits,
                     std::chrono::nanoseconds pin_lease, Member& member)
    : builder_(builder),
      driver_(shared.loop.driver()),
      coordinator_(coordinator),
      limits_(limits),
      pin_lease_(pin_lease),
      member_(member),
      shards_(NoteShards(std::move(shards)), shared, observer,
              [&member](const absl::Status& why) { member.Fail(why); }) {}

std::vector<std::unique_ptr<ShardChannel>> Exchanges::NoteShards(
    std::vector<std::unique_ptr<ShardChannel>> shards) {
  for (const auto& shard : shards) channels_.push_back(shard.get());
  return shards;
}

absl::Status Exchanges::Connect(std::chrono::steady_clock::time_point deadline,
                                const std::vector<std::string>& otherwise,
                                const std::function<absl::Status()>& alive) {
  for (size_t i = 0; i < channels_.size(); ++i) {
    WEIR_RETURN_IF_ERROR(channels_[i]->Connect(deadline, otherwise.empty() ? "" : otherwise[i], alive));
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardSet::Pull> Exchanges::MakePull(ExchangeOrder::Pull order) {
  const bool alone = order.in_place && member_.Alone();
  const uint64_t clock = order.clock;
  // NextWork() need not wait for the last of the step's weights.
  return builder_.Pull(std::move(order), alone, [this, clock] { member_.OnStepOpen(clock); });
}

void Exchanges::Start(uint32_t shards, std::optional<ShardSet::Push> push, std::optional<ShardSet::Pull> pull,
                      const std::shared_ptr<const RowRoutes>& rows, ShardSet::Done done) {
  PendingWork::Call call;
  if (push.has_value()) call.push = PendingWork::PushKey(push->work.clock, push->work.part);
  if (pull.has_value()) {
    call.pull = pull->request.clock();
    call.probe = pull->request.header_only() && rows == nullptr;
  }
  member_.OnBegin(call);
  const auto gradient = push.has_value() ? push->gradient : nullptr;
  shards_.Start(shards, std::move(push), std::move(pull), rows,
                [this, call, gradient, done = std::move(done)](absl::StatusOr<Answers> answers) {
                  if (gradient != nullptr) answers = JudgeFinite(*gradient, std::move(answers));
                  member_.OnEnd(call, answers);
                  done(std::move(answers));
                });
}

void Exchanges::Probe(uint64_t step) {
  ShardSet::Pull probe;
  probe.request.set_clock(step);
  probe.request.set_header_only(true);
  probe.want.assign(1, step);
  Start(1, std::nullopt, std::move(probe), /*rows=*/nullptr, [](const absl::StatusOr<Answers>&) {});
}

void Exchanges::Upload(std::function<void(const absl::Status&)> done) {
  absl::StatusOr<ShardSet::Push> push = builder_.InitialValues();
  if (!push.ok()) return done(push.status());
  shards_.Start(shards_.size(), *std::move(push), std::nullopt, /*rows=*/nullptr,
                [done = std::move(done)](const absl::StatusOr<Answers>& answers) { done(answers.status()); });
}

absl::StatusOr<Exchanges::Answers> Exchanges::JudgeFinite(const OutgoingGradient& gradient,
                                                          absl::StatusOr<Answers> answers) {
  if (!answers.ok()) {
    builder_.GiveUp(gradient);
    return answers;
  }
  const std::string refusal = builder_.RefusalOf(gradient, *answers);
  if (refusal.empty()) return answers;
  if (builder_.rejects()) {
    LogWarning("a push is refused, and done without an update: ", refusal);
    return answers;
  }
  const absl::Status diverged = Divergence(refusal);
  member_.Fail(diverged);
  return diverged;
}

Future<ExchangeResult> Exchanges::Run(ExchangeOrder order) {
  const bool pushes = order.push.has_value(), pulls = order.pull.has_value();
  if (!pushes && !pulls) return Ready(absl::InvalidArgumentError("an exchange needs a push or a pull"));
  const Work work = pushes ? order.push->work : Work();
  const auto fail = [&](const absl::Status& why) {
    if (pushes) member_.OnNotBegun(work, why);
    return Ready(why);
  };
  if (pushes && pulls && order.pull->clock != work.clock + 1) {
    return fail(absl::InvalidArgumentError(absl::StrCat("with a push at clock ", work.clock,
                                                        " goes the pull at the next, ", work.clock + 1,
                                                        ", and not the one at ", order.pull->clock)));
  }
  absl::StatusOr<std::shared_ptr<const RowRoutes>> rows =
      builder_.Rows(pushes ? absl::MakeConstSpan(order.push->rows) : absl::Span<const RowGradients>(),
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
        builder_.Push(*std::move(order.push), *rows == nullptr ? absl::OkStatus() : (*rows)->finite());
    if (!made.ok()) return fail(made.status());
    push = *std::move(made);
  }
  const auto views = pulls ? pull->views : nullptr;
  const bool no_base = pulls && pull->request.rows_alone() && builder_.rows_on_arrival();
  Promise<ExchangeResult> promise(driver_);
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
            result.weights = builder_.ViewOf(MergePull(*answers), std::move(*views));
          } else if (pulls) {
            result.pull = MergePull(*answers);
            result.pull.no_base = no_base;
          }
          promise.Set(std::move(result));
        });
  return promise.future();
}

Future<PullResult> Exchanges::PullSnapshot(std::vector<MutableTensor> tensors,
                                           std::vector<RowsToRead> to_read) {
  Promise<PullResult> promise(driver_);
  absl::StatusOr<std::shared_ptr<const RowRoutes>> rows = builder_.Rows({}, to_read);
  absl::StatusOr<ShardSet::Pull> order =
      MakePull({0, /*in_place=*/false, std::move(tensors), nullptr, std::move(to_read)});
  if (!rows.ok() || !order.ok()) {
    promise.Set(rows.ok() ? order.status() : rows.status());
    return promise.future();
  }
  v1::PinRequest pin;
  *pin.mutable_caller() = member_.CallerNow();
  // The pin is needed only until the pulls have begun, retries included.
  pin.set_lease_seconds(std::chrono::duration<double>(pin_lease_).count());
  coordinator_.Start(pin, limits_)
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
                *unpin.mutable_caller() = member_.CallerNow();
                unpin.set_pin(id);
                absl::StatusOr<PullResult> result =
                    answers.ok() ? absl::StatusOr<PullResult>(MergePull(*answers)) : answers.status();
                if (result.ok()) result->no_base = true;
                // Whether it succeeds does not matter: the pin has a lease.
                coordinator_.Start(unpin, limits_)
                    .OnReady(
                        [promise, result = std::move(result)](const absl::StatusOr<v1::UnpinReply>&) mutable {
                          promise.Set(std::move(result));
                        });
              });
      });
  return promise.future();
}

}  // namespace weir

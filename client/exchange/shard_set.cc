#include "client/exchange/shard_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_failure.h"
#include "common/threads/mutex.h"

namespace weir {

struct ShardSet::Operation {
  std::optional<Push> push;
  std::optional<Pull> pull;
  Done done;

  Mutex mutex;
  Answers answers ABSL_GUARDED_BY(mutex);
  size_t missing ABSL_GUARDED_BY(mutex) = 0;
  // The first error.
  absl::Status error ABSL_GUARDED_BY(mutex);
  // An error of one call cancels the others. Emptied at the end, because calls hold the operation, too.
  std::vector<std::shared_ptr<Call>> calls ABSL_GUARDED_BY(mutex);
};

namespace {

std::string WithReason(absl::string_view text, const std::string& reason) {
  return reason.empty() ? std::string(text) : absl::StrCat(text, ": ", reason);
}

// Handles the outcomes that end a push and a pull alike, and those that are no answer to the call.
template <typename Reply>
absl::Status CheckOther(const Reply& reply, const std::string& name) {
  const std::string& reason = reply.reason();
  switch (reply.outcome()) {
    case v1::FENCED:
      return absl::AbortedError(
          WithReason(absl::StrCat("fenced: ", name, " says that this worker's lease has ended"), reason));
    case v1::JOB_OVER:
      if (reason.empty() && reply.failure_kind() == v1::FAILURE_UNSPECIFIED) {
        return absl::OutOfRangeError(absl::StrCat(name, " says that the job is done"));
      }
      if (reply.failure_kind() == v1::FAILURE_DIVERGED || reply.failure_kind() == v1::FAILURE_RESOURCE) {
        return JobFailure(reply.failure_kind(), reason);
      }
      static_assert(v1::FailureKind_MAX == v1::FAILURE_INTERNAL,
                    "decide whether a client hears of a new kind of failure from a shard");
      // The coordinator will report the failure, too.
      return LostPeer(WithReason(absl::StrCat(name, " says that the job is over"), reason));
    default:
      return absl::InternalError(absl::StrCat(name, " answered with ", v1::Outcome_Name(reply.outcome()),
                                              ", which is no answer to this call"));
  }
}

// What a push says to a shard.
v1::PushRequest HeaderOf(const ShardSet::Push& push, uint32_t shard) {
  v1::PushRequest header;
  if (push.initial_values) {
    header.set_initial_values(true);
    return header;
  }
  header.set_clock(push.work.clock);
  header.set_part(push.work.part);
  header.set_batch_plus_one(push.work.batch + 1);
  header.set_examples(push.work.examples);
  header.set_weight(push.weight);
  header.mutable_base()->set_count(push.base.versions[shard]);
  header.mutable_base()->set_incarnation(push.base.incarnations[shard]);
  return header;
}

}  // namespace

ShardSet::ShardSet(std::vector<std::unique_ptr<ShardChannel>> channels, const ShardClient::Shared& shared,
                   Observer* observer, std::function<void(const absl::Status&)> on_fatal)
    : tensors_(shared.tensors), caller_(shared.caller), observer_(observer), on_fatal_(std::move(on_fatal)) {
  for (uint32_t i = 0; i < channels.size(); ++i) {
    shards_.push_back(std::make_unique<ShardClient>(i, std::move(channels[i]), shared));
  }
}

void ShardSet::Move(const google::protobuf::Map<uint32_t, std::string>& moved) {
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    const auto to = moved.find(i);
    shards_[i]->MoveTo(to == moved.end() ? "" : to->second);
  }
}

void ShardSet::Close() {
  for (const auto& shard : shards_) shard->Close();
}

void ShardSet::Start(uint32_t shards, std::optional<Push> push, std::optional<Pull> pull,
                     const std::shared_ptr<const RowRoutes>& rows, Done done) {
  const auto operation = std::make_shared<Operation>();
  operation->push = std::move(push);
  operation->pull = std::move(pull);
  operation->done = std::move(done);
  {
    MutexLock lock(operation->mutex);
    operation->answers.resize(shards);
    operation->missing = shards;
  }
  std::shared_ptr<TensorArrivals> arrivals;
  if (operation->pull.has_value() && operation->pull->on_tensor) {
    arrivals = std::make_shared<TensorArrivals>(tensors_, operation->pull->on_tensor);
  }
  for (uint32_t n = 0; n < shards; ++n) {
    // Workers begin with different shards, because a shard takes large pushes one after another.
    const uint32_t i = (caller_.worker() + n) % shards;
    std::optional<ShardPush> shard_push;
    if (operation->push.has_value()) {
      shard_push = ShardPush{HeaderOf(*operation->push, i), operation->push->gradient};
      shard_push->header.set_with_clocks(observer_ != nullptr && operation->pull.has_value());
    }
    std::optional<ShardPull> shard_pull;
    if (operation->pull.has_value()) {
      const Pull& all = *operation->pull;
      shard_pull = ShardPull{all.request, all.tensors, nullptr, std::nullopt, arrivals};
      shard_pull->request.set_with_clocks(observer_ != nullptr);
      if (all.views != nullptr) shard_pull->view = &(*all.views)[i];
      if (!all.want.empty()) shard_pull->want = all.want[i];
    }
    std::shared_ptr<Call> call =
        shards_[i]->Exchange(std::move(shard_push), std::move(shard_pull), rows,
                             [this, operation, i](absl::StatusOr<ShardAnswer> answer) {
                               OnAnswer(operation, i, std::move(answer));
                             });
    absl::Status error;
    {
      MutexLock lock(operation->mutex);
      error = operation->error;
      if (operation->missing > 0) operation->calls.push_back(call);
    }
    if (!error.ok()) call->Cancel(error);
  }
}

void ShardSet::Tell(uint32_t shard) {
  const uint64_t answered = shards_[shard]->answered_clock();
  if (answered == 0) return;
  ShardPull pull;
  pull.request.set_clock(answered);
  pull.request.set_header_only(true);
  shards_[shard]->Exchange(std::nullopt, std::move(pull), nullptr, [](const absl::StatusOr<ShardAnswer>&) {});
}

absl::Status ShardSet::Check(const Operation& operation, uint32_t shard, const ShardAnswer& answer) const {
  const std::string name = shards_[shard]->name();
  if (operation.push.has_value()) WEIR_RETURN_IF_ERROR(CheckPush(answer.push, name));
  if (operation.pull.has_value()) {
    const std::vector<uint64_t>& want = operation.pull->want;
    WEIR_RETURN_IF_ERROR(CheckPull(answer.pull, name, want.empty() ? nullptr : &want[shard]));
  }
  return absl::OkStatus();
}

void ShardSet::OnAnswer(const std::shared_ptr<Operation>& operation, uint32_t shard,
                        absl::StatusOr<ShardAnswer> answer) {
  absl::Status status = answer.status();
  if (status.ok()) {
    if (observer_ != nullptr && operation->push.has_value() && !operation->push->initial_values) {
      observer_->OnPush(*operation->push, shard, answer->push);
    }
    // After some answers to a push, no pull follows.
    if (observer_ != nullptr && operation->pull.has_value() &&
        answer->pull.outcome() != v1::OUTCOME_UNSPECIFIED && !operation->pull->request.header_only()) {
      observer_->OnPull(*operation->pull, shard, answer->pull);
    }
    status = Check(*operation, shard, *answer);
  }
  // Both errors concern more than this call, unless the gradient was given up with such an error.
  const bool given_up = operation->push.has_value() && operation->push->gradient->failure() == status;
  if (!given_up && (absl::IsAborted(status) || absl::IsUnavailable(status))) on_fatal_(status);
  if (KindOf(status) == v1::FAILURE_DIVERGED) on_fatal_(status);

  bool last = false;
  absl::StatusOr<Answers> result;
  std::vector<std::shared_ptr<Call>> others;
  {
    MutexLock lock(operation->mutex);
    last = --operation->missing == 0;
    if (status.ok()) {
      operation->answers[shard] = *std::move(answer);
    } else if (operation->error.ok()) {
      operation->error = status;
      others.swap(operation->calls);
    }
    if (last) {
      // Calls hold the operation, too.
      operation->calls.clear();
      if (operation->error.ok()) {
        result = std::move(operation->answers);
      } else {
        result = operation->error;
      }
    }
  }
  for (const auto& call : others) call->Cancel(status);
  if (!last) return;
  operation->done(std::move(result));
}

// ---- the meaning of answers

absl::Status CheckPush(const v1::PushReply& reply, const std::string& name) {
  switch (reply.outcome()) {
    case v1::OK:
    case v1::REFUSED:
    case v1::DUPLICATE_BATCH:
    case v1::STALE_VERSION:
    case v1::STEP_PAST:
      return absl::OkStatus();
    default:
      return CheckOther(reply, name);
  }
}

absl::Status CheckPull(const v1::PullReply& reply, const std::string& name, const uint64_t* want_count) {
  if (reply.outcome() == v1::STEP_PAST) return absl::OkStatus();
  if (reply.outcome() != v1::OK) return CheckOther(reply, name);
  if (want_count != nullptr && reply.version().count() != *want_count) {
    return absl::InternalError(absl::StrCat(name, " sent the weights of version ", reply.version().count(),
                                            " where version ", *want_count, " was asked for"));
  }
  return absl::OkStatus();
}

PushResult MergePush(const std::vector<ShardAnswer>& answers) {
  PushResult result;
  result.applied = true;
  for (size_t shard = 0; shard < answers.size(); ++shard) {
    const v1::PushReply& reply = answers[shard].push;
    result.staleness = std::max(result.staleness, reply.staleness());
    if (reply.outcome() != v1::OK && result.applied) {
      result.applied = false;
      result.reason =
          WithReason(absl::StrCat("ps:", shard, ": ", v1::Outcome_Name(reply.outcome())), reply.reason());
    }
  }
  return result;
}

PullResult MergePull(const std::vector<ShardAnswer>& answers) {
  PullResult result;
  for (const ShardAnswer& answer : answers) {
    result.versions.push_back(answer.pull.version().count());
    result.incarnations.push_back(answer.pull.version().incarnation());
    if (answer.pull.has_table_version()) result.table_versions.push_back(answer.pull.table_version());
    result.past |= answer.pull.outcome() == v1::STEP_PAST;
  }
  return result;
}

}  // namespace weir

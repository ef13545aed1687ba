#include "client/exchange/answers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"

namespace weir {
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

}  // namespace

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
    if (reply.outcome() == v1::OK) {
      result.staleness = std::max(result.staleness, reply.staleness());
    } else if (result.applied) {
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

#include "common/protocol/job_failure.h"

#include <cmath>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace weir {
namespace {

constexpr char kPayload[] = "type.googleapis.com/weir.v1.Failure";

absl::StatusCode CodeOf(v1::FailureKind kind) {
  static_assert(v1::FailureKind_MAX == v1::FAILURE_INTERNAL, "a new kind of failure needs its case here");
  switch (kind) {
    case v1::FAILURE_DIVERGED:
    case v1::FAILURE_INTERNAL:
      return absl::StatusCode::kInternal;
    case v1::FAILURE_CONFIG:
      return absl::StatusCode::kFailedPrecondition;
    case v1::FAILURE_RESOURCE:
      return absl::StatusCode::kResourceExhausted;
    case v1::FAILURE_FENCED:
      return absl::StatusCode::kAborted;
    case v1::FAILURE_DRAINED:
    case v1::FAILURE_LOST_PEER:
    case v1::FAILURE_UNSPECIFIED:
    default:  // a kind of a newer version of the protocol
      return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

absl::Status JobFailure(v1::FailureKind kind, absl::string_view text) {
  if (text.empty() && kind == v1::FAILURE_UNSPECIFIED) return absl::OkStatus();
  absl::Status status(CodeOf(kind), text.empty()
                                        ? absl::StrCat("a failure of kind ", kind, ", and no message")
                                        : std::string(text));
  v1::Failure failure;
  failure.set_kind(kind);
  status.SetPayload(kPayload, absl::Cord(failure.SerializeAsString()));
  return status;
}

v1::FailureKind KindOf(const absl::Status& status) {
  v1::Failure failure;
  if (const auto payload = status.GetPayload(kPayload); payload.has_value() &&
                                                        failure.ParseFromString(std::string(*payload)) &&
                                                        failure.kind() != v1::FAILURE_UNSPECIFIED) {
    return failure.kind();
  }
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return v1::FAILURE_UNSPECIFIED;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return v1::FAILURE_LOST_PEER;
    case absl::StatusCode::kAborted:
      return v1::FAILURE_FENCED;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return v1::FAILURE_CONFIG;
    // ResourceExhausted: memory ran out.
    default:
      return v1::FAILURE_INTERNAL;
  }
}

absl::Status Reworded(const absl::Status& status, absl::string_view text) {
  absl::Status reworded(status.code(), text);
  if (const auto payload = status.GetPayload(kPayload); payload.has_value()) {
    reworded.SetPayload(kPayload, *payload);
  }
  return reworded;
}

std::string DetailsOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return "";
  v1::StatusDetails details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(status.message()));
  google::protobuf::Any& detail = *details.add_details();
  detail.set_type_url(kPayload);
  detail.set_value(std::string(*payload));
  return details.SerializeAsString();
}

absl::Status FromDetails(absl::StatusCode code, absl::string_view text, absl::string_view details) {
  absl::Status status(code, text.empty() ? absl::StrCat(absl::StatusCodeToString(code), ", and no message")
                                         : std::string(text));
  v1::StatusDetails parsed;
  if (details.empty() || !parsed.ParseFromArray(details.data(), static_cast<int>(details.size())))
    return status;
  for (const google::protobuf::Any& detail : parsed.details()) {
    if (detail.type_url() == kPayload) status.SetPayload(kPayload, absl::Cord(detail.value()));
  }
  return status;
}

std::string NonFiniteValue(absl::string_view what, float value) {
  if (std::isfinite(value)) return absl::StrCat(what, " is not finite");
  return absl::StrCat(what, " is ", std::isnan(value) ? "NaN" : value > 0 ? "Inf" : "-Inf");
}

std::string NonFinitePush(uint32_t worker, absl::string_view task, absl::string_view found, uint64_t clock,
                          uint64_t batch, uint64_t first_example, uint64_t examples) {
  return absl::StrCat("worker ", worker, " (", task, "): ", found, " at clock ", clock,
                      examples == 0 ? ""
                                    : absl::StrCat(", batch ", batch, " (examples ", first_example, " to ",
                                                   first_example + examples - 1, " in the job's order)"));
}

absl::Status Divergence(absl::string_view push) {
  return JobFailure(
      v1::FAILURE_DIVERGED,
      absl::StrCat("training diverged: ", push,
                   "; look for NaN and Inf in the batch's inputs and loss, and if there are none "
                   "try a lower optimizer.learning_rate, train.clip_norm or a warm-up"));
}

absl::Status GrownLoss(absl::string_view found) {
  return JobFailure(v1::FAILURE_DIVERGED,
                    absl::StrCat("training diverged: ", found,
                                 "; try a lower optimizer.learning_rate, train.clip_norm or a warm-up"));
}

absl::Status Misfit(absl::string_view why) {
  return JobFailure(v1::FAILURE_CONFIG, absl::StrCat("the job cannot run as it was started: ", why));
}

absl::Status StorageFailure(absl::string_view why) {
  return JobFailure(v1::FAILURE_RESOURCE, absl::StrCat("storage failed: ", why));
}

absl::Status LostPeer(absl::string_view why) { return JobFailure(v1::FAILURE_LOST_PEER, why); }

absl::Status Drained(absl::string_view why) {
  return JobFailure(v1::FAILURE_DRAINED, absl::StrCat("drained: ", why));
}

absl::Status MarkDrained(absl::Status answer) {
  Drained("").ForEachPayload([&answer](auto type, const absl::Cord& mark) { answer.SetPayload(type, mark); });
  return answer;
}

absl::Status Replaced(absl::string_view why) {
  return JobFailure(v1::FAILURE_FENCED, absl::StrCat("replaced: ", why));
}

}  // namespace weir

#include "client/memberships.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/job_failure.h"
#include "common/telemetry/logging.h"
#include "proto/job_config.pb.h"

namespace weir {

absl::Status Rejoining::OnFenced(const absl::Status& error, const Client& client) {
  // In sync a worker may have no part to compute while others bring the job on.
  const bool went_on = client.start_clock() > furthest_;
  furthest_ = std::max(furthest_, client.start_clock());
  const absl::Time now = clock_.Now();
  if (client.progressed() || went_on) {
    fruitless_ = 0;
    progressed_ = now;
  } else {
    ++fruitless_;
  }
  if (fruitless_ < kMostFruitless || now - progressed_ < start_wait_) return absl::OkStatus();
  return Reworded(error, absl::StrCat(error.message(), "; that was ", fruitless_,
                                      " times in a row without any progress, for longer than "
                                      "cluster.start_seconds = ",
                                      absl::ToDoubleSeconds(start_wait_), ", and is the last"));
}

absl::Status WorkUntilDone(ClientOptions options, absl::Duration start_wait, const JoinJobFunction& join,
                           const std::function<absl::Status(Client*)>& work, Preemption* preemption,
                           const Clock& clock) {
  Rejoining rejoining(start_wait, clock);
  while (true) {
    auto joined = join(options);
    if (absl::IsOutOfRange(joined.status())) {
      LogInfo(joined.status().message());
      return absl::OkStatus();
    }
    WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, std::move(joined));
    if (options.again) LogInfo("joined again");
    absl::Status status;
    {
      std::optional<Preemption::Member> member;
      if (preemption != nullptr) member.emplace(preemption, client.get());
      status = work(client.get());
    }
    // A shard tells this to a worker that stood still while others did its work.
    if (absl::IsOutOfRange(status)) {
      LogInfo(status.message());
      status = absl::OkStatus();
    }
    const absl::Status left = client->Leave(status);
    // All was done, but the job went back before all members had left; or the job cannot be saved.
    if (status.ok() && (absl::IsAborted(left) || KindOf(left) == v1::FAILURE_RESOURCE)) status = left;
    // Servers end because of one another, so the failure that this worker saw first need not have been the
    // first.
    if (absl::IsUnavailable(status) && !left.ok() && left != status) {
      return absl::UnavailableError(absl::StrCat(status.message(), "; ", left.message()));
    }
    if (status.ok()) {
      if (!left.ok()) LogWarning("could not take leave: ", left.message());
      return absl::OkStatus();
    }
    if (!absl::IsAborted(status)) return status;
    WEIR_RETURN_IF_ERROR(rejoining.OnFenced(status, *client));
    LogWarning(status.message(), "; joining again");
    options.again = true;
    options.job = client->job();
  }
}

absl::Status WorkUntilDone(ClientOptions options, const ModelSpec& model,
                           const std::function<absl::Status(Client*)>& work, Preemption* preemption) {
  v1::JobConfig config;
  config.ParseFromString(options.job_config);  // Join() says what is wrong with it
  return WorkUntilDone(
      std::move(options), absl::Seconds(config.cluster().start_seconds()),
      [&model](const ClientOptions& with) { return Client::Join(with, model); }, work, preemption);
}

}  // namespace weir

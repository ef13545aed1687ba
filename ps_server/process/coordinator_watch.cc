#include "ps_server/process/coordinator_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"

namespace weir {
namespace {

// The time between calls without a coordinator: after ps:0 has taken the address but has not attached yet;
// and after ps:0 did not answer.
constexpr absl::Duration kAgain = absl::Milliseconds(500);
constexpr absl::Duration kFirstWait = absl::Milliseconds(50);
constexpr absl::Duration kLongestWait = absl::Seconds(1);
// A new ps:0 waits for its servers for cluster.start_seconds. It must hear of them a few times meanwhile,
// since a call may be lost.
constexpr int kTimesBeforeStart = 4;

// A lease is what any lost peer costs; and a connection for each lease is little beside the pings.
absl::Duration WhileAttached(const v1::JobConfig& config) {
  if (!config.checkpoint().has_directory()) return absl::InfiniteDuration();
  const auto& cluster = config.cluster();
  return std::max(kAgain, std::min(absl::Seconds(cluster.lease_seconds()),
                                   absl::Seconds(cluster.start_seconds()) / kTimesBeforeStart));
}

constexpr absl::Duration kComplaintInterval = absl::Seconds(10);
// From the end of one look at the newest checkpoint to the next one.
constexpr absl::Duration kLook = absl::Seconds(1);
// For so long must there be a cause for which ps:0 cannot be reached: files of certificates may be half
// replaced just now.
constexpr absl::Duration kCauseLasts = absl::Seconds(2);

}  // namespace

AnnounceSchedule::AnnounceSchedule(const v1::JobConfig& config)
    : while_attached_(WhileAttached(config)), wait_(kFirstWait), longer_(kFirstWait) {}

bool AnnounceSchedule::Due(absl::Time now, bool attached) const {
  const absl::Duration wait = attached ? while_attached_ : wait_;
  return !busy_ && wait < absl::InfiniteDuration() && now - begun_ >= wait;
}

void AnnounceSchedule::OnBegin(absl::Time now) {
  busy_ = true;
  begun_ = now;
}

void AnnounceSchedule::OnTaken() {
  busy_ = false;
  wait_ = kAgain;
  longer_ = kFirstWait;
}

void AnnounceSchedule::OnNoAnswer() {
  busy_ = false;
  wait_ = longer_;
  longer_ = std::min(2 * longer_, kLongestWait);
}

CoordinatorWatch::CoordinatorWatch(Options options)
    : options_(std::move(options)),
      start_limit_(absl::Seconds(options_.config.cluster().start_seconds())),
      lease_(absl::Seconds(options_.config.cluster().lease_seconds())),
      wait_limit_(absl::Seconds(options_.config.cluster().server_wait_seconds())),
      began_(options_.clock->Now()),
      next_complaint_(began_ + kComplaintInterval),
      next_look_(absl::InfinitePast()) {}

void CoordinatorWatch::Tick() {
  const absl::Time now = options_.clock->Now();
  const Presence ps0 = options_.presence();
  const absl::Duration silent = now - ps0.last_heard.value_or(began_);
  if (ps0.attached) {
    next_complaint_ = now + kComplaintInterval;
    // What was found out is out of date.
    if (look_ == Look::kOver) look_ = Look::kNone;
  } else if (now >= next_complaint_) {
    next_complaint_ = now + kComplaintInterval;
    const std::string& at = options_.coordinator_address;
    const std::string waits = absl::StrCat("waits for ps:0 (coordinator)", at.empty() ? "" : " at ", at);
    options_.complain(
        answered_.exchange(false)
            ? absl::StrCat(waits,
                           ", which answers, but has not attached yet: where the cluster spec of ps:0 has "
                           "no other server, ps:0 learns of this one from the first worker that joins")
            : absl::StrCat(waits, ", of which nothing was heard for ",
                           absl::FormatDuration(absl::Trunc(silent, absl::Seconds(1)))));
  }
  // By now ps:0 would be back, unless it has ended because the job is done: its last message may have been
  // lost, or been sent before this server started. This check must not come earlier, because ps:0 may still
  // need this server to finish.
  if (!ps0.attached && silent > wait_limit_ && LooksForTheEnd(now)) return;
  if (!ps0.last_heard.has_value()) {
    if (silent > start_limit_) {
      GiveUp(absl::StrCat("ps:0 (coordinator) did not attach within ", absl::FormatDuration(start_limit_)));
    }
  } else if (!ps0.attached) {
    if (silent > wait_limit_) {
      GiveUp(absl::StrCat(ps0.name, " was lost, and did not come back within cluster.server_wait_seconds = ",
                          options_.config.cluster().server_wait_seconds()));
    }
  } else if (silent > lease_) {
    if (options_.config.checkpoint().has_directory()) {
      options_.drop_silent(lease_);
    } else {
      GiveUp(absl::StrCat(ps0.name, " was lost: nothing was heard of it for ", absl::FormatDuration(silent)));
    }
  }
}

bool CoordinatorWatch::LooksForTheEnd(absl::Time now) {
  if (look_ == Look::kRuns) return true;
  if (look_.exchange(Look::kNone) == Look::kOver) {
    next_look_ = now + kLook;
    return false;
  }
  if (now < next_look_) return false;
  look_ = Look::kRuns;
  // Not here, since object storage may take long to answer.
  options_.background([this] {
    if (options_.is_done()) options_.end(absl::OkStatus());
    look_ = Look::kOver;
  });
  return true;
}

void CoordinatorWatch::OnAnswer() { answered_ = true; }

void CoordinatorWatch::OnNoAnswer() {
  answered_ = false;
  if (!probing_.exchange(true)) options_.background([this] { Probe(); });
}

void CoordinatorWatch::Probe() {
  const absl::Status cause = options_.probe();
  const absl::Time now = options_.clock->Now();
  if (cause.ok() || options_.presence().attached) {
    cause_since_.reset();
  } else if (now - cause_since_.emplace(cause_since_.value_or(now)) >= kCauseLasts) {
    options_.end(cause);
  }
  probing_ = false;
}

void CoordinatorWatch::GiveUp(const std::string& why) const { options_.end(LostPeer(why)); }

}  // namespace weir

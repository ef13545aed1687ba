#include "ps_server/coordinator/checkpoints/job_numbers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/job_failure.h"
#include "common/system/file_system.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// How many numbers are reserved at once, beyond those that are asked for, and how many are kept in reserve.
constexpr uint64_t kBlock = 1000, kReserveAhead = 300;
// The pause after a failure to reserve needed numbers, and after a failure to reserve numbers in advance.
constexpr absl::Duration kAskAgain = absl::Seconds(1), kAskAheadAgain = absl::Seconds(10);

}  // namespace

bool JobNumbers::Has(uint64_t count) const {
  return !options_.reserve ||
         (last_.epoch + count <= reserved_.epoch && last_.incarnation + count <= reserved_.incarnation);
}

bool JobNumbers::Need(uint64_t count) {
  if (Has(count)) return true;
  needed_ = true;
  Ask(count);
  return false;
}

void JobNumbers::Tick() {
  const absl::Time now = job_.now();
  if (now >= next_ask_ahead_ && !Has(kReserveAhead)) Ask(kReserveAhead);
  if (trouble_.has_value() && now >= trouble_->next) Ask(trouble_->count);
}

void JobNumbers::Ask(uint64_t count) {
  if (std::exchange(asking_, true)) return;
  const JobStore::Numbers wanted = {std::max(reserved_.epoch, last_.epoch + count + kBlock),
                                    std::max(reserved_.incarnation, last_.incarnation + count + kBlock)};
  options_.reserve(wanted, [this, wanted, count](const absl::Status& status) {
    asking_ = false;
    if (status.ok()) reserved_ = wanted;
    OnAnswer(status, count, std::exchange(needed_, false));
  });
}

void JobNumbers::OnAnswer(const absl::Status& status, uint64_t count, bool needed) {
  if (job_.over()) return;
  if (absl::IsAborted(status)) return job_.replaced(std::string(status.message()));
  if (!status.ok()) {
    const std::string why = absl::StrCat("cannot reserve membership epochs, which must never be used again: ",
                                         std::string(status.message()));
    if (needed && MayPass(status)) return AskAgain(count, why);
    if (needed) return job_.fail(LostPeer(why));
    next_ask_ahead_ = job_.now() + kAskAheadAgain;
    return LogWarning(why);
  }
  trouble_.reset();
  options_.reserved(needed);
}

void JobNumbers::AskAgain(uint64_t count, const std::string& why) {
  const absl::Time now = job_.now();
  const double limit = job_.config.checkpoint().save_wait_seconds();
  if (!trouble_.has_value()) {
    trouble_ = Trouble{now, now, count};
    LogWarning(why, "; it is tried again for ", limit,
               " s (checkpoint.save_wait_seconds), make room meanwhile");
  }
  if (now - trouble_->since >= absl::Seconds(limit)) {
    return job_.fail(StorageFailure(
        absl::StrCat(why, "; there was no room within checkpoint.save_wait_seconds = ", limit)));
  }
  trouble_->next = now + kAskAgain;
  trouble_->count = count;
  needed_ |= !Has(count);  // an action still waits for them
}

}  // namespace weir

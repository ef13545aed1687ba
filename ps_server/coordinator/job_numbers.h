#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ps_server/coordinator/job_store.h"

namespace weir {

// The numbers that a job uses only once: membership epochs, and incarnations of members and readers. A job
// with a store sets numbers aside there before it uses them, a block at a time, so that no later coordinator
// uses them again.
//
// Belongs to the coordinator's queue, which does not wait for the store's disk: a caller that lacks numbers
// asks for them, and goes on when they are there.
class JobNumbers {
 public:
  using Done = std::function<void(const absl::Status&)>;
  // `needed`: something has waited for the numbers (Need()).
  using Answer = std::function<void(const absl::Status&, bool needed)>;
  // Sets aside all numbers up to these; `done` comes later, in the queue.
  using Reserve = std::function<void(const JobStore::Numbers& up_to, Done done)>;

  // Without a store: every number is free.
  JobNumbers() = default;
  JobNumbers(const JobStore::Opened& opened, Reserve reserve)
      : last_(opened.used), reserved_(opened.reserved), reserve_(std::move(reserve)) {}

  // The last ones that were used.
  uint64_t epoch() const { return last_.epoch; }
  uint64_t incarnation() const { return last_.incarnation; }
  // Whether `count` more of each may be used.
  bool Has(uint64_t count) const {
    return !reserve_ ||
           (last_.epoch + count <= reserved_.epoch && last_.incarnation + count <= reserved_.incarnation);
  }
  // The same. If not, something waits for them from now on: call Ask().
  bool Need(uint64_t count) {
    const bool has = Has(count);
    needed_ |= !has;
    return has;
  }
  bool needed() const { return needed_; }
  // Whether it is time to ask for numbers in advance, so that `count` more may be used.
  bool Due(uint64_t count, absl::Time now) const { return now >= next_ask_ && !Has(count); }
  // Due() is false until then.
  void AskLater(absl::Time time) { next_ask_ = time; }
  // Call these only for numbers that Has() has confirmed.
  uint64_t NextEpoch() { return ++last_.epoch; }
  uint64_t NextIncarnation() { return ++last_.incarnation; }

  // Sets `count` more numbers aside, and a block beyond them. No effect while a call is under way.
  void Ask(uint64_t count, Answer done) {
    if (asking_ || !reserve_) return;
    asking_ = true;
    const JobStore::Numbers wanted = {std::max(reserved_.epoch, last_.epoch + count + kBlock),
                                      std::max(reserved_.incarnation, last_.incarnation + count + kBlock)};
    reserve_(wanted, [this, wanted, done = std::move(done)](const absl::Status& status) {
      asking_ = false;
      if (status.ok()) reserved_ = wanted;
      done(status, std::exchange(needed_, false));
    });
  }
  bool asking() const { return asking_; }
  const JobStore::Numbers& reserved() const { return reserved_; }

 private:
  static constexpr uint64_t kBlock = 1000;

  JobStore::Numbers last_, reserved_;
  Reserve reserve_;
  bool asking_ = false, needed_ = false;
  absl::Time next_ask_ = absl::InfinitePast();
};

}  // namespace weir

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ps_server/coordinator/checkpoints/job_store.h"
#include "ps_server/coordinator/job/job_context.h"

namespace weir {

// The numbers that a job uses only once: membership epochs, and incarnations of members and readers. If the
// job has a store, it reserves numbers there before it uses them, a block at a time, so that no later
// coordinator uses them again.
//
// Belongs to the coordinator's queue, which does not wait for the store's disk: an action that lacks numbers
// continues when they are reserved.
class JobNumbers {
 public:
  using Done = std::function<void(const absl::Status&)>;
  struct Options {
    // Reserves all numbers up to these; calls `done` later, in the queue. Null: no store, so all are free.
    std::function<void(const JobStore::Numbers& up_to, Done done)> reserve;
    // More numbers are reserved. `needed`: an action has waited for them.
    std::function<void(bool needed)> reserved;
  };

  JobNumbers(const JobContext& job, const JobStore::Opened& opened, Options options)
      : job_(job), options_(std::move(options)), last_(opened.used), reserved_(opened.reserved) {}

  // The last numbers that were used.
  uint64_t epoch() const { return last_.epoch; }
  uint64_t incarnation() const { return last_.incarnation; }
  // The last numbers that are reserved.
  const JobStore::Numbers& reserved() const { return reserved_; }

  // Whether `count` more of each may be used. If not, asks the store for them, and they are needed().
  bool Need(uint64_t count);
  bool needed() const { return needed_; }
  // Call these only for numbers that Need() has confirmed.
  uint64_t NextEpoch() { return ++last_.epoch; }
  uint64_t NextIncarnation() { return ++last_.incarnation; }
  // Asks for numbers well ahead, so that the job continues while the disk is full or slow for a while. If an
  // action waits for numbers and the store has no room for them, asks again, for checkpoint.save_wait_seconds
  // at most. Call it from time to time.
  void Tick();

 private:
  // The store has no room for needed numbers: since when, when it is asked again, and for how many.
  struct Trouble {
    absl::Time since, next;
    uint64_t count;
  };
  bool Has(uint64_t count) const;
  // Asks for `count` more numbers, and a block beyond them. No effect while an answer is awaited.
  void Ask(uint64_t count);
  void OnAnswer(const absl::Status& status, uint64_t count, bool needed);
  void AskAgain(uint64_t count, const std::string& why);

  const JobContext& job_;
  const Options options_;
  JobStore::Numbers last_, reserved_;
  bool asking_ = false, needed_ = false;
  absl::Time next_ask_ahead_ = absl::InfinitePast();
  std::optional<Trouble> trouble_;
};

}  // namespace weir

#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/system/clock.h"
#include "proto/job_config.pb.h"

// When a server other than ps:0 tells ps:0 where it is, and when it gives ps:0 up.
namespace weir {

// When a server other than ps:0 announces its address to ps:0. One call at a time.
//
// Without a coordinator the server announces itself often, so that ps:0 soon finds it. With a coordinator it
// still announces itself from time to time, since that coordinator may have been replaced without knowing it.
// The new ps:0 looks for the server only where its cluster spec says, although the server may have moved.
// Where nothing is saved no new ps:0 takes over, so a server with a coordinator announces nothing.
//
// Not thread-safe.
class AnnounceSchedule {
 public:
  explicit AnnounceSchedule(const v1::JobConfig& config);

  // Whether a call is due; `attached`: a coordinator is attached.
  bool Due(absl::Time now, bool attached) const;
  void OnBegin(absl::Time now);
  // The call is over: ps:0 has taken the address, or did not answer.
  void OnTaken();
  void OnNoAnswer();

 private:
  // Between calls while a coordinator is attached; infinite: there are none.
  absl::Duration while_attached_;
  bool busy_ = false;
  absl::Time begun_ = absl::InfinitePast();
  // From the beginning of one call to the next one, without a coordinator; and after the next unanswered one.
  absl::Duration wait_, longer_;
};

// Decides for a server other than ps:0 that hears nothing of ps:0. The server gives ps:0 up, and ends, if
// - ps:0 has never attached within cluster.start_seconds;
// - ps:0 is attached and silent for longer than cluster.lease_seconds. With checkpoints it counts as lost
//   instead, since it may attach again;
// - ps:0 was lost, and silent for longer than cluster.server_wait_seconds.
//
// Without ps:0 it logs every ten seconds that it waits. After cluster.server_wait_seconds it looks whether
// the job is done, which ends the server without a failure, and does not give ps:0 up meanwhile. A known
// cause for which ps:0 cannot be reached ends the server as soon as it has lasted for two seconds.
//
// One thread calls Tick(). `background` may run its tasks on other threads, which end before the watch does.
class CoordinatorWatch {
 public:
  struct Presence {
    // When ps:0 was last heard. Nullopt: it has never attached.
    std::optional<absl::Time> last_heard;
    bool attached = false;
    // In messages.
    std::string name;
  };
  struct Options {
    v1::JobConfig config;
    // Where ps:0 is expected. Empty: unknown.
    std::string coordinator_address;
    const Clock* clock = &Clock::Real();
    // Any thread.
    std::function<Presence()> presence;
    // Runs what may block.
    std::function<void(const std::function<void()>& work)> background;
    // Whether the newest checkpoint is the end of the job. May block.
    std::function<bool()> is_done;
    // Why ps:0 cannot be reached. OK: no cause is known. May block.
    std::function<absl::Status()> probe;
    // ps:0 has been silent for longer than this: it counts as lost.
    std::function<void(absl::Duration limit)> drop_silent;
    // The server ends; OK: the job is done. Any thread. All calls after the first have no effect.
    std::function<void(const absl::Status& failure)> end;
    std::function<void(const std::string& complaint)> complain;
  };
  // The wait for ps:0 begins now.
  explicit CoordinatorWatch(Options options);

  // Must be called again and again.
  void Tick();
  // ps:0 answered this server, or did not: then this looks for the cause. Any thread.
  void OnAnswer();
  void OnNoAnswer();

 private:
  // Whether the job has ended is not known yet.
  enum class Look { kNone, kRuns, kOver };

  // Looks from time to time whether the job is done. True: a look is under way.
  bool LooksForTheEnd(absl::Time now);
  void Probe();
  void GiveUp(const std::string& why) const;

  const Options options_;
  const absl::Duration start_limit_, lease_, wait_limit_;
  const absl::Time began_;
  // Used by Tick() only.
  absl::Time next_complaint_, next_look_;
  // ps:0 has answered since the last complaint, and last of all.
  std::atomic<bool> answered_ = false;
  std::atomic<Look> look_ = Look::kNone;
  // Probe() is under way; and since when it finds a cause, which only itself uses.
  std::atomic<bool> probing_ = false;
  std::optional<absl::Time> cause_since_;
};

}  // namespace weir

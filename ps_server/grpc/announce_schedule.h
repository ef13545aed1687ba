#pragma once

#include "absl/time/time.h"
#include "proto/job_config.pb.h"

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

}  // namespace weir

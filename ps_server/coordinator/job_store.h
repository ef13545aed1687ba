#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/checkpoint.pb.h"

namespace weir {

// What outlives an incarnation of the coordinator: the newest complete checkpoint, and which numbers must
// never be used again. An open store belongs to one coordinator, whose incarnation is higher than that of any
// before it on the same store, and durable.
//
// Thread-safe. Its destructor waits for what was begun, whose callbacks come before it returns.
class JobStore {
 public:
  // Numbers that are used once: membership epochs, and incarnations of members. All up to these.
  struct Numbers {
    uint64_t epoch = 0;
    uint64_t incarnation = 0;
  };
  struct Opened {
    uint64_t coordinator_incarnation = 1;
    // Earlier incarnations may have used these.
    Numbers used;
    // This incarnation may use those between `used` and these, at first.
    Numbers reserved;
    // Absent: there is none.
    std::optional<v1::CheckpointManifest> newest;
  };
  // On any thread, once; must not block.
  using Done = std::function<void(absl::Status)>;

  virtual ~JobStore() = default;

  // As it was when this incarnation began.
  virtual const Opened& opened() const = 0;

  // Numbers up to these may be used once it is done: durable, so needed once for many numbers. Aborted:
  // another coordinator has the store now; so say Begin and Commit.
  virtual void Reserve(const Numbers& up_to, Done done) = 0;

  // Of the checkpoint of this step. For people.
  virtual std::string FolderOf(uint64_t step) const = 0;
  // One checkpoint at a time. Begin: shards may write once it is done. Commit: of the manifest step, model,
  // job and files; durable once it is done, and then old ones are removed.
  virtual void Begin(uint64_t step, Done done) = 0;
  virtual void Commit(v1::CheckpointManifest manifest, Done done) = 0;
  // One that was begun came to nothing: clears away what is there of it, as far as that can be done; a later
  // Begin of the same step comes after that. One that is complete stays.
  virtual void Discard(uint64_t step) = 0;
};

}  // namespace weir

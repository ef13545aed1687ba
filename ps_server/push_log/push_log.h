#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/sync/mutex.h"
#include "common/system/disk_format.h"
#include "common/system/file_system.h"
#include "proto/push_log.pb.h"

namespace weir {

// A shard's write-ahead log: every push that it decides on, in its order, with the gradient of those that it
// applies. A push takes effect and is answered only once it is here for good, so a version that anybody has
// read can be made again, and an acknowledged push is never lost.
//
// Bytes. A folder holds segments, "00000001.log" and so on, numbers rising without a gap. A segment is a run
// of records; the first is a LogSegment, the others LoggedPush. A record is
//
//   u32 0x474f4c57, which a search for records looks for; all numbers little-endian
//   u32 checksum of what follows up to the gradient: CRC-32C
//   u32 bytes of the head
//   u32 checksum of the gradient
//   u64 bytes of the gradient
//   u64 bytes of the segment that were on the disk for good when this record was written
//   the head, a protobuf message
//   the gradient, float32
//
// LogSegment says of which version of the format the segment is (kLogFormat).
//
// Each life of a shard begins a segment, and so does each checkpoint, after which the ones before can go. A
// life that was replaced and does not know it may begin one behind those of the life that goes on, which
// takes the number for itself if it needs it; readers pass over it (LogSegment.install). What a crash left
// half written at a segment's end is no record: the next segment says where its predecessor ends. A broken
// record in front of one that knew it to be on the disk is no such end but damage.

// Two lives at once. A life of a shard whose successor is up already may still run, and workers may reach it:
// it was cut off from its coordinator, or stopped, and woke. What it appends after its successor has read the
// log is lost, so it must not be acknowledged. Therefore a life claims the log before it reads it
// (ClaimPushLog), and after each sync, before anything is acknowledged, the writer looks whether a later life
// has claimed the log. If none has, whoever claims it later reads what was synced.

constexpr DiskFormat kLogFormat = {1, 1};

// Writes one. Thread-safe. Let go, it lives on until the executor is through with it.
class PushLog : public std::enable_shared_from_this<PushLog> {
 public:
  using Done = std::function<void(absl::Status)>;

  struct Options {
    // Outlives the log.
    FileSystem* files = &FileSystem::Posix();
    std::string folder;
    // Of the first segment: its number, and what it says of its shard and of the one before.
    uint64_t segment = 1;
    v1::LogSegment description;
    // Runs a function on a thread where it may block.
    std::function<void(std::function<void()>)> executor;
  };

  // Begins the first segment, durably. Errors: the file system's; AlreadyExists: another life has begun it.
  // So says Append() once a later life has claimed the log.
  static absl::StatusOr<std::shared_ptr<PushLog>> Begin(Options options);

  // `done` runs on the executor once the record is durable, in the order of the calls; what waits together is
  // synced together. `gradient` may be null. After an error nothing is written any more, and every later call
  // gets that error: what the file holds is open then.
  void Append(v1::LoggedPush record, std::shared_ptr<const float> gradient, uint64_t elements, Done done);

  // What is appended from now on goes to a new segment, which follows this checkpoint
  // (LogSegment.checkpoint). Returns its number; `done` runs as Append()'s, once it is begun for good.
  uint64_t Rotate(uint64_t checkpoint, Done done);
  // Removes the segments before this one, some time. An error is only logged.
  void DropBefore(uint64_t segment);

 private:
  struct Pending {
    std::string head;
    std::shared_ptr<const float> gradient;
    uint64_t bytes = 0;  // of the gradient
    Done done;
    // Not 0: not a record; a segment begins, after this checkpoint.
    uint64_t segment = 0;
    uint64_t checkpoint = 0;
  };

  explicit PushLog(Options options) : options_(std::move(options)), next_segment_(options_.segment + 1) {}

  void Add(Pending pending);
  // On the executor.
  void Write();
  absl::Status BeginSegment(uint64_t number, uint64_t previous_bytes, uint64_t checkpoint);
  absl::Status WriteRecord(const std::string& head, const float* gradient, uint64_t bytes);
  // AlreadyExists: a later life has claimed the log.
  absl::Status CheckOurs() const;

  const Options options_;

  Mutex mutex_;
  std::vector<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_segment_ ABSL_GUARDED_BY(mutex_);

  // The executor's.
  std::unique_ptr<WritableFile> file_;
  uint64_t file_bytes_ = 0, synced_bytes_ = 0;
  absl::Status broken_;
};

// For the life of this Install (of.coordinator, of.install), before it reads the log in the folder, which is
// made if need be: when it returns, no life of an earlier Install acknowledges anything that is not on the
// disk yet. An earlier Install's claim does not harm a later one.
absl::Status ClaimPushLog(FileSystem& files, const std::string& folder, const v1::LogSegment& of);

struct LogEnd {
  // For the next life: the number of its first segment, and LogSegment::previous_bytes.
  uint64_t next_segment = 1;
  uint64_t previous_bytes = 0;
  // Of the half-written record behind the last whole one.
  uint64_t dropped_bytes = 0;
};

// Reads all segments from `from_segment` on, record by record; `gradient` is valid during the call. An error
// of `record` ends it. An empty or missing folder is an empty log. 0: from the first one that follows
// of.checkpoint; if none does, nothing is read. What was read is on the disk for good when it returns, also
// what a process that died had not synced: who goes on from it counts on it.
//
// DataLoss: a record in the middle is damaged, or a segment is missing; names file and place.
// Unimplemented: a newer program has written it. FailedPrecondition: the log of another model, shard or
// number of shards than `of` says (its incarnation and previous_bytes do not matter; a model of 0 fits any).
absl::StatusOr<LogEnd> ReadPushLog(
    FileSystem& files, const std::string& folder, const v1::LogSegment& of, uint64_t from_segment,
    const std::function<absl::Status(const v1::LoggedPush& push, absl::Span<const float> gradient)>& record);

}  // namespace weir

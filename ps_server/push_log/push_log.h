#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/system/file_system.h"
#include "common/threads/mutex.h"
#include "proto/push_log.pb.h"

namespace weir {

// A shard's write-ahead log: every push that the shard decides on, in its order, with the gradients of the
// pushes that it applies, rows of embedding tables included. A push takes effect and is answered only once
// its record is durable. So every version that a client has read can be computed again, and an acknowledged
// push is never lost.
//
// Bytes. A folder holds segments, "00000001.log" and so on, whose numbers rise without a gap. A segment is a
// sequence of records; the first is a LogSegment, the others are LoggedPush. A record is
//
//   u32 0x474f4c57, the magic number that a search for records looks for; all numbers are little-endian
//   u32 checksum of everything from here to the gradient: CRC-32C
//   u32 bytes of the head
//   u32 checksum of the gradient
//   u64 bytes of the gradient
//   u64 bytes of the segment that were durable when this record was written
//   the head, a protobuf message
//   the gradient: the dense one, float32, then the rows that LoggedPush.push names, each entry's keys and its
//   float32 gradients (proto/parameter_server.proto, Rows)
//
// The LogSegment holds the version of the segment's format (kLogFormat).
//
// Each incarnation of a shard begins a segment, and so does each checkpoint, after which earlier segments may
// be removed. An incarnation that was replaced without knowing it may begin a segment after those of its
// successor. The successor takes that number for itself if it needs the number; otherwise readers skip the
// segment (LogSegment.install). A record that a crash cut short at a segment's end does not count: the next
// segment says where its predecessor ends. A broken record is damage if a later record was written when the
// broken one was already durable.

// Two incarnations at once. An incarnation whose successor has started may still run, and workers may reach
// it: it was cut off from its coordinator, or was stopped and woke up. Records that it appends after its
// successor has read the log are lost, so it must not acknowledge them. Therefore an incarnation claims the
// log before it reads the log (ClaimPushLog). After each sync, before it acknowledges any record, the writer
// checks whether a later incarnation has claimed the log. If none has, an incarnation that claims the log
// later reads everything that was synced.

// Minor version 2 added rows. A program that does not know them finds that the gradient is too long. 3 added
// the tables of a segment (LogSegment.tables), 4 the job (LogSegment.job).
constexpr DiskFormat kLogFormat = {1, 5};

// Writes the log. Thread-safe. After its owner releases it, the object lives until the executor has finished
// its work.
class PushLog : public std::enable_shared_from_this<PushLog> {
 public:
  using Done = std::function<void(absl::Status)>;

  struct Options {
    // Outlives the log.
    FileSystem* files = &FileSystem::Posix();
    std::string folder;
    // The number of the first segment, and what it says about its shard and the segment before it.
    uint64_t segment = 1;
    v1::LogSegment description;
    // Runs a function on a thread where it may block.
    std::function<void(std::function<void()>)> executor;
  };

  // Begins the first segment, durably. Errors: those of the file system; AlreadyExists: another incarnation
  // has begun the segment, and was not replaced by this one. Append() returns AlreadyExists once a later
  // incarnation has claimed the log.
  static absl::StatusOr<std::shared_ptr<PushLog>> Begin(Options options);

  // The rows that follow the dense gradient in a record: where they lie in memory, and the owner of this
  // memory.
  struct Rows {
    std::vector<absl::string_view> bytes;
    std::shared_ptr<const void> owner;
  };
  // `done` runs on the executor once the record is durable, in the order of the calls. Records that wait
  // together are synced together. `gradient` may be null. After an error the log writes nothing more, and
  // every later call gets the same error; the contents of the file are then unknown.
  void Append(v1::LoggedPush record, std::shared_ptr<const float> gradient, uint64_t elements, Done done,
              Rows rows = {});

  // Later records go to a new segment, which follows this checkpoint (LogSegment.checkpoint). Returns the
  // segment's number. `done` runs as for Append(), once the segment is durable.
  uint64_t Rotate(uint64_t checkpoint, Done done);
  // Removes the segments before this one, at some later time. An error is only logged.
  void DropBefore(uint64_t segment);

 private:
  struct Pending {
    std::string head;
    std::vector<absl::string_view> gradient;  // where its bytes lie
    std::shared_ptr<const void> dense, rows;  // own them
    Done done;
    // 0: a record. Otherwise the number of a segment to begin, after this checkpoint.
    uint64_t segment = 0;
    uint64_t checkpoint = 0;
  };

  explicit PushLog(Options options) : options_(std::move(options)), next_segment_(options_.segment + 1) {}

  void Add(Pending pending);
  // Runs on the executor.
  void Write();
  absl::Status BeginSegment(uint64_t number, uint64_t previous_bytes, uint64_t checkpoint);
  absl::Status WriteRecord(const std::string& head, absl::Span<const absl::string_view> gradient);
  // AlreadyExists: a later incarnation has claimed the log.
  absl::Status CheckOurs() const;

  const Options options_;

  Mutex mutex_;
  std::vector<Pending> pending_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_segment_ ABSL_GUARDED_BY(mutex_);

  // Used by the executor only.
  std::unique_ptr<WritableFile> file_;
  uint64_t file_bytes_ = 0, synced_bytes_ = 0;
  absl::Status broken_;
};

// Claims the log in the folder for the incarnation of this Install (of.coordinator, of.install); must be
// called before that incarnation reads the log. Creates the folder if necessary. After this call, an
// incarnation of an earlier Install acknowledges only records that are durable already. The claim of an
// earlier Install has no effect on a later one.
absl::Status ClaimPushLog(FileSystem& files, const std::string& folder, const v1::LogSegment& of);

struct LogEnd {
  // For the next incarnation: the number of its first segment, and LogSegment::previous_bytes.
  uint64_t next_segment = 1;
  uint64_t previous_bytes = 0;
  // Bytes of the incomplete record after the last complete one.
  uint64_t dropped_bytes = 0;
  // The segments that were read.
  uint64_t segments = 0;
};

// Reads all segments from `from_segment` on, record by record. An error of `record` ends the reading.
// `gradient` is valid during the call. An empty or missing folder is an empty log. from_segment 0: starts at
// the first segment that follows of.checkpoint; if there is none, nothing is read. `on_segment` is called
// before the records of each segment that is read; an error of it ends the reading, too, with the segment's
// path in front. After the return all records that were read are durable, even if the process that wrote them
// died without syncing them: the caller relies on them.
//
// DataLoss: a record in the middle is damaged, or a segment is missing; the message names the file and the
// place. Unimplemented: a newer program wrote the log. FailedPrecondition: the log belongs to another job,
// model, shard or number of shards than `of` (of.incarnation and of.previous_bytes are ignored; model hash 0
// fits every model).
absl::StatusOr<LogEnd> ReadPushLog(
    FileSystem& files, const std::string& folder, const v1::LogSegment& of, uint64_t from_segment,
    const std::function<absl::Status(const v1::LoggedPush& push, absl::Span<const float> gradient)>& record,
    const std::function<absl::Status(const v1::LogSegment& description)>& on_segment = nullptr);

}  // namespace weir

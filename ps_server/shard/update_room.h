#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/config/server_memory.h"
#include "common/system/clock.h"
#include "proto/job_config.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/shard/calls/push_arrival.h"
#include "ps_server/shard/incarnation.h"
#include "ps_server/shard/rows/shard_tables.h"

namespace weir {

// The memory that a shard's next update needs: of weights, which readers and pins hold, and of former rows,
// which tables keep for pins and for a checkpoint that is being written. Readers and pins give way after a
// while; an update waits for a checkpoint.
//
// Belongs to the shard's queue, except where a method says so.
class UpdateRoom {
 public:
  struct Options {
    // These outlive the room.
    const v1::JobConfig* config = nullptr;
    const Clock* clock = nullptr;
    const Incarnation* now = nullptr;
    std::atomic<uint64_t>* versions_written_off = nullptr;
    // As Shard::Options::memory_bytes, nudge, on_revoke and on_short.
    uint64_t memory_bytes = 0;
    std::function<void(absl::Duration)> nudge;
    std::function<void()> on_revoke, on_short;
    // The version of the tables that is kept for a checkpoint; nullopt: none is.
    std::function<std::optional<uint64_t>()> rows_kept;
  };
  explicit UpdateRoom(Options options) : options_(std::move(options)) {}

  // An incarnation of the shard has begun, or ends.
  void Begin(const v1::Install& install);
  void End();

  // Whether the next version has room for its weights and for former rows.
  bool Make() { return MakeForWeights() && MakeForRows(); }
  // False: the update has to wait for readers whose time is not over yet.
  bool MakeForWeights();
  // Ends pins where they must end. False: a checkpoint keeps the former rows.
  bool MakeForRows();
  // Writes off the versions that readers have held for too long.
  void RevokeLate();
  // ResourceExhausted: with the rows of this part, those of the open step do not fit into their memory.
  absl::Status CheckStepRows(const v1::PushRequest& header, const PushArrivals& arrivals) const;
  // Takes note of what the tables take, in bytes.
  void SetTableBytes(uint64_t bytes) { table_bytes_ = bytes; }

  // Calls or a commit wait for memory.
  void SetShort(bool is_short) { short_ = is_short; }
  // A reader has released a version. Any thread.
  void OnRelease() const {
    if (short_ && options_.nudge) options_.nudge(absl::ZeroDuration());
  }

  struct Pin {
    std::shared_ptr<const LentVersion> version;
    // The rows of the same version, or where rows take effect on arrival, of the moment of the pin; null: the
    // job has no tables.
    std::unique_ptr<ShardTables::Pinned> tables;
    absl::Time deadline;
  };
  // Holds the newest version, or renews a pin.
  const Pin& Hold(const v1::PinVersion& pin);
  void Release(uint64_t pin) { pins_.erase(pin); }
  // Null: there is no such pin, or no longer.
  const Pin* Find(uint64_t pin) const;
  // Ends the pins whose time is over.
  void EndPins();

  // For people. Holders() and RowHolders() say what an update waits for; Tasks() has the workers among the
  // holders of weights.
  bool RowsFit() const;
  std::string Holders() const;
  std::string RowHolders() const;
  std::vector<std::string> Tasks() const;

 private:
  // What rows may take beside the tables, in bytes: those of the open step's parts (sync, unless they take
  // effect on arrival) and former rows. It is what the server's limit leaves beside the weights, slots and
  // gradients of the dense model (CheckServerMemory), and beside the tables. Only if there is a limit.
  double BytesLeft() const;
  bool limited() const { return limit_.bytes > 0; }
  std::string DescribeBytesLeft() const;
  std::string Describe(const VersionReaders::Held& held) const;

  const Options options_;
  std::atomic<bool> short_{false};
  // The memory of the server, and what the dense model takes of it.
  MemoryLimit limit_;
  double model_bytes_ = 0;
  uint64_t table_bytes_ = 0;
  std::map<uint64_t, Pin> pins_;
};

}  // namespace weir

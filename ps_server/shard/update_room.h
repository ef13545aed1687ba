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

// The memory that a shard's next update needs. Readers and pins hold memory of weights, and tables keep
// former rows for pins and for a checkpoint that is being written. Readers and pins give way after a while;
// for a checkpoint the update waits.
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
    // `memory_bytes`, `nudge`, `on_revoke` and `on_short`: as in Shard::Options.
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
  // ResourceExhausted: with the rows of this part, the rows of the open step do not fit into their memory.
  absl::Status CheckStepRows(const v1::PushRequest& header, const PushArrivals& arrivals) const;
  void SetTableBytes(uint64_t bytes) { table_bytes_ = bytes; }

  // Sets whether calls or a commit wait for memory.
  void SetShort(bool is_short) { short_ = is_short; }
  // A reader has released a version. Any thread.
  void OnRelease() const {
    if (short_ && options_.nudge) options_.nudge(absl::ZeroDuration());
  }

  struct Pin {
    std::shared_ptr<const LentVersion> version;
    // The rows of this version or, if rows take effect on arrival, of the pin's moment. Null: no tables.
    std::unique_ptr<ShardTables::Pinned> tables;
    absl::Time deadline;
  };
  // Holds the newest version, or renews a pin.
  const Pin& Hold(const v1::PinVersion& pin);
  void Release(uint64_t pin) { pins_.erase(pin); }
  // Null: there is no pin of this number, or no longer.
  const Pin* Find(uint64_t pin) const;
  // Ends the pins whose time is over.
  void EndPins();

  // For messages. RowsFit() tells whether former rows fit into their memory. Holders() and RowHolders() say
  // what an update waits for. Tasks() names the workers among the holders of weights.
  bool RowsFit() const;
  std::string Holders() const;
  std::string RowHolders() const;
  std::vector<std::string> Tasks() const;

 private:
  // The bytes that rows may take beside the tables: the rows of the open step's parts (in sync, unless rows
  // take effect on arrival) and former rows. The server's limit leaves so much beside the tables and the
  // weights, slots and gradients of the dense model (CheckServerMemory). Call it only if there is a limit.
  double BytesLeft() const;
  bool limited() const { return limit_.bytes > 0; }
  std::string DescribeBytesLeft() const;
  std::string Describe(const VersionReaders::Held& held) const;

  const Options options_;
  std::atomic<bool> short_{false};
  // The limit of the server's memory, and the bytes of it that the dense model takes.
  MemoryLimit limit_;
  double model_bytes_ = 0;
  uint64_t table_bytes_ = 0;
  std::map<uint64_t, Pin> pins_;
};

}  // namespace weir

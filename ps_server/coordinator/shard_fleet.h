#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/protocol/interval_set.h"
#include "common/system/clock.h"
#include "proto/coordinator.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/shard_link.h"

namespace weir {

// The shards of a job: where each of them is, the link to it, and what it has said last.
//
// A shard may come back at another address, which its process announces. It is looked for at both, and the
// process that is attached stays.
//
// Belongs to the coordinator's queue.
class ShardFleet {
 public:
  using AnnounceDone = std::function<void(absl::StatusOr<v1::AnnounceReply>)>;
  struct Options {
    const Clock* clock = &Clock::Real();
    // The coordinator's, which a shard hears of as soon as its link is connected.
    uint64_t incarnation = 1;
    ShardLinkFactory open_link;
    // Runs a function in the coordinator's queue.
    std::function<void(std::function<void()>)> post;
    // In the queue, from the shard's newest link alone.
    std::function<void(uint32_t shard, const v1::ShardReport& report)> on_report;
    std::function<void(uint32_t shard, const absl::Status& status)> on_broken;
    // Whether links that connect are still of use.
    std::function<bool()> over;
  };

  struct WaitingAnnounce {
    v1::AnnounceRequest request;
    AnnounceDone done;
    // Its answer tells that the process which is attached is alive.
    uint64_t ping = 0;
  };
  struct Shard {
    // Where the link goes, or the next one will; since when this one does.
    std::string address;
    absl::Time opened;
    // The newest address that differs from that of the cluster spec, and whose it is.
    std::optional<v1::AnnounceRequest> announced;
    // Not empty: it was last attached here, and not where the cluster spec says. The coordinator's revision
    // that says so.
    std::string moved_to;
    uint64_t moved_revision = 0;
    // While another process is attached, or seems to be.
    std::vector<WaitingAnnounce> announcing;
    // nullptr: none is open.
    std::unique_ptr<ShardLink> link;
    // Which link it is; what comes from an earlier one does not count. 0: none.
    uint64_t link_number = 0;
    bool connected = false;
    // What it held when it was attached to this link.
    std::optional<v1::Attached> attached;
    // Install was sent on this link, when, and answered.
    bool installing = false;
    absl::Time install_sent;
    bool installed = false;
    uint64_t incarnation = 0;
    // What it was installed with, or kept.
    Intervals batches;
    uint64_t acked_epoch = 0;
    uint64_t floor = 0;
    v1::ShardStats stats;
    absl::Time last_heard;
    // Since when it is lost, until it is installed again; and why.
    std::optional<absl::Time> lost_since;
    std::string lost_why;
  };

  // `addresses`: as the cluster spec has them.
  ShardFleet(std::vector<std::string> addresses, Options options)
      : addresses_(std::move(addresses)), options_(std::move(options)) {}

  // As the cluster spec has them.
  const std::vector<std::string>& addresses() const { return addresses_; }
  // No shard is looked for before Open().
  bool empty() const { return shards_.empty(); }
  size_t size() const { return shards_.size(); }
  Shard& operator[](size_t index) { return shards_[index]; }
  const Shard& operator[](size_t index) const { return shards_[index]; }
  std::vector<Shard>::iterator begin() { return shards_.begin(); }
  std::vector<Shard>::iterator end() { return shards_.end(); }
  std::vector<Shard>::const_iterator begin() const { return shards_.begin(); }
  std::vector<Shard>::const_iterator end() const { return shards_.end(); }
  // "ps:1 at 10.0.0.1:2222"
  std::string name(uint32_t shard) const;

  bool AllAttached() const;
  // There are shards, and each is installed.
  bool AllInstalled() const;
  // Every shard has this epoch.
  bool AllAcknowledged(uint64_t epoch) const;

  // ---- links

  // Looks for all shards, if that has not begun.
  void Open();
  // Looks for the shard again, unless that is under way.
  void Reopen(uint32_t shard);
  // The link is of no use any more.
  void Drop(uint32_t shard);
  // The cluster spec has other addresses. Links to those that stay are kept.
  void Readdress(std::vector<std::string> addresses);
  // To all shards that are connected.
  void Broadcast(const v1::ControlMessage& message);
  // Asks all shards for their stats; returns the ping's number.
  uint64_t Ping();
  // Hands out all links, to be destroyed outside of the queue.
  std::vector<std::unique_ptr<ShardLink>> Close();

  // ---- addresses

  // A process says that it is a shard, and where it listens. Errors: FailedPrecondition, InvalidArgument;
  // AlreadyExists: another process is the shard, and lives; Unavailable: try again.
  void Announce(v1::AnnounceRequest request, AnnounceDone done);
  // Processes that wait for an answer get this one.
  void RefuseAnnounces(const absl::Status& why);
  enum class Place {
    kOther,  // it is another process than was expected there, and is left alone
    kSame,   // where it was before
    kMoved,  // members have to hear of it: Shard::moved_revision is for the coordinator to set
  };
  // A report came of what the shard holds.
  Place Attach(uint32_t shard, const v1::Attached& attached);
  // The link broke at an announced address, before a shard was attached: nothing is lost by that, and it is
  // looked for where the cluster spec says.
  bool WasElsewhere(uint32_t shard, const absl::Status& status);
  void Tick(absl::Time time);
  // Where shards are that are not where the cluster spec says.
  google::protobuf::Map<uint32_t, std::string> Moved() const;

 private:
  void OpenLink(uint32_t shard);
  void OnConnected(uint32_t shard);
  // Makes `address` the one that the shard is looked for at.
  void LookAt(uint32_t shard, const std::string& address);
  // The other one that it may have; empty: there is none.
  std::string OtherAddress(uint32_t shard) const;

  std::vector<std::string> addresses_;
  const Options options_;
  std::vector<Shard> shards_;
  uint64_t last_link_ = 0;
  uint64_t last_ping_ = 0;
};

}  // namespace weir

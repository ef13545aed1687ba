#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/protocol/interval_set.h"
#include "proto/coordinator.pb.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/job/job.h"

namespace weir {

// The events that a link reports to its coordinator. A link calls these functions on any thread, one at a
// time and in order. They must not block.
struct ShardLinkEvents {
  std::function<void()> connected;
  std::function<void(v1::ShardReport)> report;
  // Called once, as the last function. OK: the shard has received a Shutdown. An error before `connected`:
  // the shard refuses the link. While a shard is out of reach, the link does not end, but keeps trying.
  // FailedPrecondition: the shard would refuse every link. Unauthenticated, PermissionDenied, Unimplemented
  // (a different version of the protocol): the shard would refuse every link, too, since the two ends do not
  // fit together. After any other error a new link may be opened.
  std::function<void(absl::Status)> ended;
};

// The coordinator's ordered stream to one shard. Send() never blocks. Messages that are sent shortly before
// the link breaks, or afterwards, may be lost.
class ShardLink {
 public:
  // Ends the stream, unless a Shutdown is on its way. Does not wait, so an event may still come.
  virtual ~ShardLink() = default;
  virtual void Send(const v1::ControlMessage& message) = 0;
};

// Opens the link to a shard at an address. Shard 0 is the shard of the coordinator's own process.
using ShardLinkFactory = std::function<std::unique_ptr<ShardLink>(uint32_t shard, const std::string& address,
                                                                  ShardLinkEvents events)>;

// The shards of a job: each shard's address, the link to it, the state that it holds, and its last report.
//
// A small model has fewer shards than the job has servers (LimitTo()). The other servers stand by: they have
// links, so that they know that the job lives and how it ends, but nothing depends on them.
//
// A shard may come back at a new address, which its process announces. The fleet then tries both addresses,
// and keeps the process that is attached.
//
// Belongs to the coordinator's queue.
class ShardFleet {
 public:
  using AnnounceDone = std::function<void(absl::StatusOr<v1::AnnounceReply>)>;
  struct Options {
    // The coordinator's incarnation. A shard is told it as soon as its link is connected.
    uint64_t incarnation = 1;
    // The coordinator's job.
    v1::JobIdentity identity;
    ShardLinkFactory open_link;
    // Called in the queue, for the shard's newest link only. The fleet has noted the shard's stats, and the
    // epoch that it has acknowledged.
    std::function<void(uint32_t shard, const v1::ShardReport& report)> on_report;
    std::function<void(uint32_t shard, const absl::Status& status)> on_ended;
  };

  struct WaitingAnnounce {
    v1::AnnounceRequest request;
    AnnounceDone done;
    // The ping whose answer shows that the attached process is alive.
    uint64_t ping = 0;
  };
  struct Shard {
    // `address`: of the link or, if there is none, of the next one. `opened`: when the link was opened.
    std::string address;
    absl::Time opened;
    // The newest announcement of an address that differs from the cluster spec's.
    std::optional<v1::AnnounceRequest> announced;
    // Not empty: the shard was last attached at this address, which differs from the cluster spec's. From
    // revision `moved_revision` of the job's state on, members know the address.
    std::string moved_to;
    uint64_t moved_revision = 0;
    // Announcements that wait while a different process is attached, or seems to be.
    std::vector<WaitingAnnounce> announcing;
    // nullptr: no link is open.
    std::unique_ptr<ShardLink> link;
    // The link's number; events of earlier links are ignored. 0: there is no link.
    uint64_t link_number = 0;
    bool connected = false;
    // The state that the shard held when it was attached to this link.
    std::optional<v1::Attached> attached;
    // `installing`: Install was sent on this link, at `install_sent`, and was not answered yet.
    bool installing = false;
    absl::Time install_sent;
    bool installed = false;
    uint64_t incarnation = 0;
    // The batches that the shard was installed with, or kept.
    Intervals batches;
    uint64_t acked_epoch = 0;
    uint64_t floor = 0;
    v1::ShardStats stats;
    // When the stats came, and when any message came last. InfinitePast(): none has come.
    absl::Time stats_since = absl::InfinitePast();
    absl::Time last_heard = absl::InfinitePast();
    // `lost_since`: when the shard was lost; it is set until the shard is installed again. The shard may come
    // back and be lost again meanwhile. `away_since`, `lost_why`: when the shard was lost last, and why.
    std::optional<absl::Time> lost_since;
    absl::Time away_since;
    std::string lost_why;
  };

  // `addresses`: from the cluster spec.
  ShardFleet(const JobContext& job, std::vector<std::string> addresses, Options options)
      : job_(job), addresses_(std::move(addresses)), options_(std::move(options)) {}

  // The addresses in the cluster spec.
  const std::vector<std::string>& addresses() const { return addresses_; }
  // The model has this many shards at most, on the first servers. Before any call each server has a shard.
  void LimitTo(uint32_t shards) { limit_ = shards; }
  // Whether there are no shards, which is so before Open().
  bool empty() const { return servers_.empty(); }
  // The number of shards; 0 before Open(). Iteration covers the shards. servers() covers all servers.
  size_t size() const { return std::min<size_t>(servers_.size(), limit_); }
  absl::Span<const Shard> servers() const { return servers_; }
  // The entry of any server.
  const Shard& operator[](size_t server) const { return servers_[server]; }
  std::vector<Shard>::const_iterator begin() const { return servers_.begin(); }
  std::vector<Shard>::const_iterator end() const { return servers_.begin() + static_cast<ptrdiff_t>(size()); }
  bool stands_by(uint32_t server) const { return server >= size(); }
  // "ps:1 at 10.0.0.1:2222".
  std::string name(uint32_t shard) const;

  bool AllAttached() const;
  bool AllServersAttached() const;
  // Whether there are shards, and each is installed.
  bool AllInstalled() const;
  bool AllAcknowledged(uint64_t epoch) const;

  // ---- links

  // Opens links to all shards, unless that was done before.
  void Open();
  // Opens a link to the shard if it has none.
  void Reopen(uint32_t shard);
  // Drops the link, and the shard's state that belongs to it.
  void Drop(uint32_t shard);
  // Replaces the addresses of the cluster spec. Links to unchanged addresses are kept.
  void Readdress(std::vector<std::string> addresses);
  // Sends a message to all connected shards.
  void Broadcast(const v1::ControlMessage& message);
  // Tells all connected servers how the job ends, and from now on each server when its link is connected.
  // When the link of a server ends with OK, the server has heard it. Returns the servers that were told.
  std::set<uint32_t> TellEnd(v1::ControlMessage shutdown);
  // This process stood still, so that it could hear nothing: all servers count as heard now.
  void HearAll();
  // Asks all servers for their stats; returns the ping's number.
  uint64_t Ping();
  // Pings every half second, or three times a lease if that is more often. Call it from time to time.
  void PingIfDue();
  // Lets the next PingIfDue() send a ping, so that the answers soon tell what the shards have applied.
  void PingSoon() { next_ping_ = absl::InfinitePast(); }
  // The job is done, and all members are gone: pings for the last stats, which complete the summary with the
  // digests of this many embedding tables.
  void SendFinalPing(int tables = 0) {
    digests_ = tables;
    final_ping_ = last_ping_ + 1;
    Ping();
  }
  bool final_ping_sent() const { return final_ping_ > 0; }
  bool AnsweredFinalPing(const Shard& shard) const {
    return final_ping_sent() && shard.stats.sequence() >= final_ping_ &&
           shard.stats.table_digests_size() == digests_;
  }
  // Gives all links to the caller, who destroys them outside of the queue.
  std::vector<std::unique_ptr<ShardLink>> Close();

  // ---- the shards' state

  // Whether some shard was told to install, or was kept with what it holds.
  bool begun() const { return begun_; }
  // The attached shard continues with what it holds.
  void Keep(uint32_t shard);
  // Tells the attached shard to install its part of the model. Sets the message's number.
  void Install(uint32_t shard, v1::ControlMessage message);
  void OnInstalled(uint32_t shard, const v1::Installed& installed);
  // The shard is lost, for this reason: drops its link. `started`: the job has begun.
  void Lose(uint32_t shard, const std::string& why, bool started);
  // A server that stands by is lost: drops its link.
  void DropStandby(uint32_t server, absl::string_view why);
  // If a lost shard stays away for too long, says why it is given up. Empty: it is not given up.
  std::string GivenUp(uint32_t shard) const;
  // The shard cannot load the checkpoint that it was told to install.
  void OnRefused(uint32_t shard) { servers_[shard].installing = false; }
  bool AnyInstalling() const {
    return std::any_of(begin(), end(), [](const Shard& shard) { return shard.installing; });
  }
  // All shards are to be installed again. A shard that is installing continues.
  void GoBack();
  // All shards are installed. Returns how long this one was lost; nullopt: it was not.
  std::optional<absl::Duration> OnBack(uint32_t shard);
  // How often a lost shard came back.
  uint64_t recoveries() const { return recoveries_; }

  // How many servers the job has, as far as is known, for people. A process that comes after the end of the
  // job may name servers of which this coordinator has not heard.
  uint64_t known_servers() const { return std::max<uint64_t>({servers_.size(), addresses_.size(), named_}); }
  void OnNamed(uint64_t servers) { named_ = std::max(named_, servers); }

  // ---- addresses

  // A process says which shard it is, and where it listens. Errors: FailedPrecondition: it is not of this
  // job, or the job has no such server. InvalidArgument: the address cannot be reached. AlreadyExists: a
  // different process is the shard, and is alive. Unavailable: try again.
  void Announce(v1::AnnounceRequest request, AnnounceDone done);
  // Answers all waiting announcements with this error.
  void RefuseAnnounces(const absl::Status& why);
  enum class Place {
    kOther,  // a different process from the expected one is there; it is left alone
    kSame,   // the shard is where it was before
    kMoved,  // members must be told
  };
  // The shard has reported the state that it holds. `revision`: of the job's state, if members must be told.
  Place Attach(uint32_t shard, const v1::Attached& attached, uint64_t revision);
  // A link broke. Returns true if it was to an announced address and no shard was attached yet. Then nothing
  // is lost, and the fleet tries the cluster spec's address.
  bool WasElsewhere(uint32_t shard, const absl::Status& status);
  void Tick();
  // The addresses of the shards whose address differs from the cluster spec's.
  google::protobuf::Map<uint32_t, std::string> Moved() const;

 private:
  // Sends the message to the connected ones of the first `servers` servers.
  void SendTo(size_t servers, const v1::ControlMessage& message);
  void OpenLink(uint32_t shard);
  void OnConnected(uint32_t shard);
  void OnReport(uint32_t shard, const v1::ShardReport& report);
  // Opens a new link to the shard, at `address`.
  void LookAt(uint32_t shard, const std::string& address);
  // The other address that the shard may have; empty: there is none.
  std::string OtherAddress(uint32_t shard) const;

  const JobContext& job_;
  std::vector<std::string> addresses_;
  const Options options_;
  std::vector<Shard> servers_;
  size_t limit_ = std::numeric_limits<size_t>::max();
  uint64_t last_link_ = 0;
  uint64_t last_ping_ = 0;
  absl::Time next_ping_ = absl::InfinitePast();
  // The number of the final ping; 0: it was not sent yet.
  uint64_t final_ping_ = 0;
  // How many digests of tables an answer to the final ping has.
  int digests_ = 0;
  // The message about the job's end, once TellEnd() was called.
  std::optional<v1::ControlMessage> shutdown_;
  bool begun_ = false;
  // Install messages sent so far.
  uint64_t installs_ = 0;
  uint64_t recoveries_ = 0;
  uint64_t named_ = 0;
};

}  // namespace weir

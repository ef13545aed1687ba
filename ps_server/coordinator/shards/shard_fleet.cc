#include "ps_server/coordinator/shards/shard_fleet.h"

#include "absl/strings/str_cat.h"
#include "common/config/address.h"
#include "common/protocol/handshake.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// If a shard may be at two addresses, each is tried for this long in turn.
constexpr absl::Duration kLook = absl::Seconds(1);
constexpr absl::Duration kPingInterval = absl::Milliseconds(500);
// At most this many announcements of one shard wait at once.
constexpr size_t kMaxAnnouncing = 16;

v1::AnnounceReply MakeAnnounceReply() {
  v1::AnnounceReply reply;
  *reply.mutable_protocol() = OwnProtocol();
  return reply;
}

}  // namespace

std::string ShardFleet::name(uint32_t shard) const {
  return absl::StrCat("ps:", shard, " at ", servers_[shard].address);
}

bool ShardFleet::AllAttached() const {
  return std::all_of(begin(), end(), [](const Shard& shard) { return shard.attached.has_value(); });
}

bool ShardFleet::AllServersAttached() const {
  return std::all_of(servers_.begin(), servers_.end(),
                     [](const Shard& server) { return server.attached.has_value(); });
}

bool ShardFleet::AllInstalled() const {
  return !empty() && std::all_of(begin(), end(), [](const Shard& shard) { return shard.installed; });
}

bool ShardFleet::AllAcknowledged(uint64_t epoch) const {
  return std::all_of(begin(), end(), [epoch](const Shard& shard) { return shard.acked_epoch == epoch; });
}

// ---- links

void ShardFleet::Open() {
  servers_.resize(addresses_.size());
  for (uint32_t shard = 0; shard < servers_.size(); ++shard) {
    if (servers_[shard].link != nullptr) continue;
    servers_[shard].address = addresses_[shard];
    OpenLink(shard);
  }
}

void ShardFleet::Reopen(uint32_t shard) {
  if (servers_[shard].link == nullptr) OpenLink(shard);
}

void ShardFleet::OpenLink(uint32_t shard) {
  const uint64_t link = servers_[shard].link_number = ++last_link_;
  servers_[shard].opened = job_.now();
  // Runs a function in the queue, and only while the link is the newest one.
  const auto post = [this, shard, link](std::function<void()> function) {
    job_.post([this, shard, link, function = std::move(function)] {
      if (shard < servers_.size() && servers_[shard].link_number == link) function();
    });
  };
  ShardLinkEvents events;
  events.connected = [this, shard, post] { post([this, shard] { OnConnected(shard); }); };
  events.report = [this, shard, post](v1::ShardReport report) {
    post([this, shard, report = std::move(report)] { OnReport(shard, report); });
  };
  events.ended = [this, shard, post](absl::Status status) {
    post([this, shard, status = std::move(status)] { options_.on_ended(shard, status); });
  };
  servers_[shard].link = options_.open_link(shard, servers_[shard].address, std::move(events));
}

void ShardFleet::OnConnected(uint32_t index) {
  Shard& shard = servers_[index];
  shard.connected = true;
  shard.last_heard = job_.now();
  if (shard.link == nullptr || (job_.over() && !shutdown_.has_value())) return;
  v1::ControlMessage message;
  message.mutable_hello()->set_coordinator_incarnation(options_.incarnation);
  *message.mutable_hello()->mutable_protocol() = OwnProtocol();
  *message.mutable_hello()->mutable_job() = options_.identity;
  message.mutable_hello()->set_shard_plus_one(index + 1);
  shard.link->Send(message);
  if (shutdown_.has_value()) shard.link->Send(*shutdown_);
}

void ShardFleet::OnReport(uint32_t index, const v1::ShardReport& report) {
  Shard& shard = servers_[index];
  shard.last_heard = job_.now();
  if (job_.over()) return;
  if (report.has_stats()) {
    shard.stats = report.stats();
    shard.stats_since = job_.now();
  } else if (report.has_membership() && shard.installed) {
    shard.acked_epoch = report.membership().epoch();
    shard.floor = report.membership().floor();
  }
  options_.on_report(index, report);
}

void ShardFleet::HearAll() {
  for (Shard& server : servers_) server.last_heard = job_.now();
}

void ShardFleet::Drop(uint32_t index) {
  Shard& shard = servers_[index];
  shard.link.reset();
  shard.link_number = 0;
  shard.connected = shard.installing = shard.installed = false;
  shard.attached.reset();
  shard.acked_epoch = 0;
}

void ShardFleet::Readdress(std::vector<std::string> addresses) {
  addresses_ = std::move(addresses);
  // The first shard is in this process: its link stays.
  if (!servers_.empty()) servers_[0].address = addresses_[0];
  for (uint32_t index = 1; index < servers_.size(); ++index) {
    if (index < addresses_.size() && servers_[index].address == addresses_[index]) continue;
    for (WaitingAnnounce& waiting : servers_[index].announcing) {
      waiting.done(absl::UnavailableError("the job has other servers now"));
    }
    servers_[index] = Shard();
  }
  Open();
}

void ShardFleet::Broadcast(const v1::ControlMessage& message) { SendTo(size(), message); }

std::set<uint32_t> ShardFleet::TellEnd(v1::ControlMessage shutdown) {
  shutdown_ = std::move(shutdown);
  std::set<uint32_t> told;
  for (uint32_t index = 0; index < servers_.size(); ++index) {
    if (servers_[index].link == nullptr || !servers_[index].connected) continue;
    servers_[index].link->Send(*shutdown_);
    told.insert(index);
  }
  return told;
}

void ShardFleet::SendTo(size_t servers, const v1::ControlMessage& message) {
  for (size_t index = 0; index < servers; ++index) {
    const Shard& server = servers_[index];
    if (server.link != nullptr && server.connected) server.link->Send(message);
  }
}

uint64_t ShardFleet::Ping() {
  v1::ControlMessage message;
  message.mutable_ping()->set_sequence(++last_ping_);
  message.mutable_ping()->set_with_table_digests(digests_ > 0);
  message.mutable_ping()->set_last(final_ping_sent());
  SendTo(servers_.size(), message);
  return last_ping_;
}

void ShardFleet::PingIfDue() {
  if (job_.now() < next_ping_) return;
  next_ping_ = job_.now() + std::min(kPingInterval, job_.lease() / 3);
  Ping();
}

std::vector<std::unique_ptr<ShardLink>> ShardFleet::Close() {
  std::vector<std::unique_ptr<ShardLink>> links;
  for (Shard& shard : servers_) links.push_back(std::move(shard.link));
  return links;
}

// ---- the shards' state

void ShardFleet::Keep(uint32_t index) {
  Shard& shard = servers_[index];
  begun_ = shard.installed = true;
  shard.incarnation = shard.attached->incarnation();
  shard.batches = shard.attached->batches();
}

void ShardFleet::Install(uint32_t index, v1::ControlMessage message) {
  Shard& shard = servers_[index];
  begun_ = shard.installing = true;
  shard.install_sent = job_.now();
  message.mutable_install()->set_number(++installs_);
  shard.link->Send(message);
}

void ShardFleet::OnInstalled(uint32_t index, const v1::Installed& installed) {
  Shard& shard = servers_[index];
  shard.installing = false;
  shard.installed = true;
  shard.incarnation = installed.incarnation();
  shard.batches = installed.batches();
}

void ShardFleet::Lose(uint32_t index, const std::string& why, bool started) {
  Shard& shard = servers_[index];
  const std::string what = absl::StrCat(name(index), " was lost: ", why);
  const bool was_there = shard.attached.has_value();
  Drop(index);
  if (!was_there && shard.lost_since.has_value()) return;
  shard.lost_why = why;
  shard.away_since = job_.now();
  // Before the start nothing is lost yet, and the deadline of the start applies.
  if (!started) return;
  if (!shard.lost_since.has_value()) shard.lost_since = shard.away_since;
  LogWarning(what);
}

void ShardFleet::DropStandby(uint32_t index, absl::string_view why) {
  // The next tick opens the link again.
  if (servers_[index].connected) {
    LogWarning(name(index), ", which stands by, was lost: ", why, "; the job does not need it");
  }
  Drop(index);
}

std::string ShardFleet::GivenUp(uint32_t index) const {
  const v1::ClusterConfig& cluster = job_.config.cluster();
  const Shard& shard = servers_[index];
  if (!shard.lost_since.has_value() || shard.attached.has_value()) return "";
  std::string limit;
  if (job_.now() - shard.away_since > absl::Seconds(cluster.server_wait_seconds())) {
    limit = absl::StrCat("it did not come back within cluster.server_wait_seconds = ",
                         cluster.server_wait_seconds());
  } else if (shard.away_since > *shard.lost_since &&
             job_.now() - *shard.lost_since > absl::Seconds(cluster.start_seconds())) {
    limit = absl::StrCat("it came back and was lost again for longer than cluster.start_seconds = ",
                         cluster.start_seconds());
  } else {
    return "";
  }
  return absl::StrCat(name(index), " was lost: ", shard.lost_why, "; ", limit);
}

void ShardFleet::GoBack() {
  for (Shard& shard : servers_) {
    shard.installed = false;
    shard.stats.Clear();
  }
  final_ping_ = 0;
  digests_ = 0;
}

std::optional<absl::Duration> ShardFleet::OnBack(uint32_t index) {
  Shard& shard = servers_[index];
  shard.lost_why.clear();
  if (!shard.lost_since.has_value()) return std::nullopt;
  ++recoveries_;
  return job_.now() - *std::exchange(shard.lost_since, std::nullopt);
}

// ---- announcements

void ShardFleet::Announce(v1::AnnounceRequest request, AnnounceDone done) {
  const uint32_t index = request.shard();
  if (absl::Status fits = CheckProtocol(absl::StrCat("ps:", index), request.protocol(), "ps:0"); !fits.ok()) {
    LogWarning("refused: ", fits.message());
    return done(fits);
  }
  if (!MayBeSame(request.job().id(), options_.identity.id())) {
    return done(absl::FailedPreconditionError(absl::StrCat(
        "this ps:0 is of ", Describe(options_.identity), ", but the server that announces itself as ps:",
        index, " is of ", Describe(request.job()), ": check the cluster spec of that server")));
  }
  // The first worker that joins tells which servers there are. Until then this server repeats its call.
  if (servers_.empty()) return done(MakeAnnounceReply());
  if (index == 0 || index >= servers_.size()) {
    return done(absl::FailedPreconditionError(absl::StrCat("a server announces itself as ps:", index,
                                                           "; the job has ps:0 to ps:", servers_.size() - 1,
                                                           " (the cluster spec of ps:0)")));
  }
  const auto address = ParseAddress(request.address());
  if (!address.ok() || (!address->is_unix() && address->port == 0)) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("address: ps:", index, " cannot be reached at '", request.address(), "'",
                     address.ok() ? "" : absl::StrCat(": ", address.status().message()))));
  }
  Shard& shard = servers_[index];
  if (shard.attached.has_value()) {
    if (shard.attached->instance() == request.instance()) return done(MakeAnnounceReply());
    if (shard.announcing.size() >= kMaxAnnouncing) {
      return done(
          absl::UnavailableError(absl::StrCat("others wait already to be ps:", index, "; try again")));
    }
    // The attached process may be dead; the ping will show.
    shard.announcing.push_back({std::move(request), std::move(done), Ping()});
    return;
  }
  if (request.address() == addresses_[index]) {
    shard.announced.reset();
  } else {
    shard.announced = request;
  }
  // A connected shard will soon say which process it is.
  if (!shard.connected && shard.address != request.address()) LookAt(index, request.address());
  done(MakeAnnounceReply());
}

void ShardFleet::RefuseAnnounces(const absl::Status& why) {
  for (Shard& shard : servers_) {
    for (WaitingAnnounce& waiting : std::exchange(shard.announcing, {})) waiting.done(why);
  }
}

void ShardFleet::Tick() {
  for (uint32_t index = 0; index < servers_.size(); ++index) {
    Shard& shard = servers_[index];
    for (WaitingAnnounce& waiting : std::exchange(shard.announcing, {})) {
      const bool other =
          shard.attached.has_value() && shard.attached->instance() != waiting.request.instance();
      if (!other) {
        Announce(std::move(waiting.request), std::move(waiting.done));
      } else if (shard.stats.sequence() < waiting.ping) {
        shard.announcing.push_back(std::move(waiting));
      } else {
        const std::string why = absl::StrCat(
            name(index), " is alive; the process that listens at ", waiting.request.address(),
            " cannot be ps:", index, ", too: end the other one first, or is the same task index used twice?");
        LogWarning("refused: ", why);
        waiting.done(absl::AlreadyExistsError(why));
      }
    }
    if (shard.link != nullptr && !shard.connected && job_.now() - shard.opened > kLook) {
      if (const std::string other = OtherAddress(index); !other.empty()) LookAt(index, other);
    }
  }
}

// ---- the search at two addresses

std::string ShardFleet::OtherAddress(uint32_t index) const {
  const Shard& shard = servers_[index];
  if (shard.address != addresses_[index]) return addresses_[index];
  return shard.announced.has_value() ? shard.announced->address() : "";
}

void ShardFleet::LookAt(uint32_t index, const std::string& address) {
  servers_[index].address = address;
  servers_[index].connected = false;
  OpenLink(index);
}

bool ShardFleet::WasElsewhere(uint32_t index, const absl::Status& status) {
  Shard& shard = servers_[index];
  if (shard.attached.has_value() || shard.address == addresses_[index]) return false;
  LogWarning(name(index), ", where it announced itself, cannot take part: ", status.message());
  LookAt(index, addresses_[index]);
  return true;
}

ShardFleet::Place ShardFleet::Attach(uint32_t index, const v1::Attached& attached, uint64_t revision) {
  Shard& shard = servers_[index];
  const bool elsewhere = shard.address != addresses_[index];
  if (elsewhere && (!shard.announced.has_value() || shard.announced->instance() != attached.instance())) {
    // The process that listens there now has not announced the address.
    LookAt(index, addresses_[index]);
    return Place::kOther;
  }
  shard.attached = attached;
  if (const std::string& here = elsewhere ? shard.address : std::string(); here != shard.moved_to) {
    LogInfo("ps:", index, " is at ", shard.address, " now");
    shard.moved_to = here;
    shard.moved_revision = revision;
    return Place::kMoved;
  }
  return Place::kSame;
}

// ---- the addresses

google::protobuf::Map<uint32_t, std::string> ShardFleet::Moved() const {
  google::protobuf::Map<uint32_t, std::string> moved;
  for (uint32_t index = 0; index < size(); ++index) {
    if (!servers_[index].moved_to.empty()) moved[index] = servers_[index].moved_to;
  }
  return moved;
}

}  // namespace weir

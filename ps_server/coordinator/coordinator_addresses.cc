// The part of Coordinator that knows where shards are: as the cluster spec says, or where a server that came
// back elsewhere announces itself.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/address.h"
#include "common/protocol/job_failure.h"
#include "common/protocol/protocol_version.h"
#include "common/telemetry/logging.h"
#include "ps_server/coordinator/coordinator.h"

namespace weir {
namespace {

// A shard that may be at two addresses is looked for at each so long before it is the other's turn.
constexpr absl::Duration kLook = absl::Seconds(1);
// Announcements of one shard that wait at once.
constexpr size_t kMaxAnnouncing = 16;

v1::AnnounceReply MakeAnnounceReply() {
  v1::AnnounceReply reply;
  *reply.mutable_protocol() = OwnProtocol();
  return reply;
}

}  // namespace

// ---- announced

void Coordinator::HandleAnnounce(v1::AnnounceRequest request, Done<v1::AnnounceReply> done) {
  if (over()) return done(absl::UnavailableError(failure_.ok() ? "the job is done" : failure_.message()));
  if (shards_.empty()) {
    return done(absl::UnavailableError("ps:0 does not know its servers before the first worker has joined"));
  }
  const uint32_t index = request.shard();
  if (absl::Status fits = CheckProtocol(absl::StrCat("ps:", index), request.protocol(), "ps:0"); !fits.ok()) {
    LogWarning("refused: ", fits.message());
    return done(fits);
  }
  if (index == 0 || index >= shards_.size()) {
    return done(absl::FailedPreconditionError(absl::StrCat("a server announces itself as ps:", index,
                                                           "; the job has ps:0 to ps:", shards_.size() - 1,
                                                           " (the cluster spec of ps:0)")));
  }
  const auto address = ParseAddress(request.address());
  if (!address.ok() || (!address->is_unix() && address->port == 0)) {
    return done(absl::InvalidArgumentError(
        absl::StrCat("address: ps:", index, " cannot be reached at '", request.address(), "'",
                     address.ok() ? "" : absl::StrCat(": ", address.status().message()))));
  }
  ShardInfo& shard = shards_[index];
  if (shard.attached.has_value()) {
    if (shard.attached->instance() == request.instance()) return done(MakeAnnounceReply());
    if (shard.announcing.size() >= kMaxAnnouncing) {
      return done(
          absl::UnavailableError(absl::StrCat("others wait already to be ps:", index, "; try again")));
    }
    // It may be dead for all that is known here.
    shard.announcing.push_back({std::move(request), std::move(done), PingShards()});
    return;
  }
  if (request.address() == addresses_[index]) {
    shard.announced.reset();
  } else {
    shard.announced = request;
  }
  // One that is connected says presently who it is.
  if (!shard.connected && shard.address != request.address()) LookAt(index, request.address());
  done(MakeAnnounceReply());
}

void Coordinator::TickAddresses(absl::Time time) {
  bool install = false;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    ShardInfo& shard = shards_[index];
    for (WaitingAnnounce& waiting : std::exchange(shard.announcing, {})) {
      const bool other =
          shard.attached.has_value() && shard.attached->instance() != waiting.request.instance();
      if (!other) {
        HandleAnnounce(std::move(waiting.request), std::move(waiting.done));
      } else if (shard.stats.sequence() < waiting.ping) {
        shard.announcing.push_back(std::move(waiting));
      } else {
        const std::string why = absl::StrCat(
            ShardName(index), " is alive; the process that listens at ", waiting.request.address(),
            " cannot be ps:", index, ", too: end the other one first, or is the same task index used twice?");
        LogWarning("refused: ", why);
        waiting.done(absl::AlreadyExistsError(why));
      }
    }
    if (shard.link != nullptr && !shard.connected && time - shard.opened > kLook) {
      if (const std::string other = OtherAddress(index); !other.empty()) LookAt(index, other);
    }
    install |= shard.attached.has_value() && !shard.installed && shard.moved_revision > 0;
  }
  // Members may have heard meanwhile where it is.
  if (install && state_ == v1::RUNNING) MaybeInstall();
}

// ---- looked for

std::string Coordinator::OtherAddress(uint32_t index) const {
  const ShardInfo& shard = shards_[index];
  if (shard.address != addresses_[index]) return addresses_[index];
  return shard.announced.has_value() ? shard.announced->address() : "";
}

void Coordinator::LookAt(uint32_t index, const std::string& address) {
  shards_[index].address = address;
  shards_[index].connected = false;
  OpenLink(index);
}

bool Coordinator::WasElsewhere(uint32_t index, const absl::Status& status) {
  ShardInfo& shard = shards_[index];
  if (shard.attached.has_value() || shard.address == addresses_[index]) return false;
  LogWarning(ShardName(index), ", where it announced itself, cannot take part: ", status.message());
  LookAt(index, addresses_[index]);
  return true;
}

bool Coordinator::AttachedHere(uint32_t index, const v1::Attached& attached) {
  ShardInfo& shard = shards_[index];
  const bool elsewhere = shard.address != addresses_[index];
  if (elsewhere && (!shard.announced.has_value() || shard.announced->instance() != attached.instance())) {
    // Whoever listens there now, it is not who said that it does.
    LookAt(index, addresses_[index]);
    return false;
  }
  if (const std::string& here = elsewhere ? shard.address : std::string(); here != shard.moved_to) {
    LogInfo("ps:", index, " is at ", shard.address, " now");
    shard.moved_to = here;
    Changed();
    shard.moved_revision = revision_;
  }
  return true;
}

// ---- told

google::protobuf::Map<uint32_t, std::string> Coordinator::MovedShards() const {
  google::protobuf::Map<uint32_t, std::string> moved;
  for (uint32_t index = 0; index < shards_.size(); ++index) {
    if (!shards_[index].moved_to.empty()) moved[index] = shards_[index].moved_to;
  }
  return moved;
}

bool Coordinator::AllKnowAddress(const ShardInfo& shard) const {
  return std::all_of(members_.begin(), members_.end(), [&](const auto& entry) {
    const MemberInfo& member = entry.second;
    // Who is still joining has not called any shard yet.
    return member.join.has_value() || member.known_revision >= shard.moved_revision;
  });
}

}  // namespace weir

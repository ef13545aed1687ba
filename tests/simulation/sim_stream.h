#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/sync/executor.h"
#include "ps_server/exchange/exchange_session.h"
#include "tests/simulation/network.h"
#include "tests/simulation/site.h"

namespace weir {

// A client's end of the socket that its segments of shared memory came over: closed when nobody has it.
using SegmentsSocket = std::shared_ptr<const void>;

// One thread's event loop of a server: tasks in their order, each some time after it was posted.
class SimLoop final : public Executor {
 public:
  SimLoop(World* world, World::Node node) : world_(world), node_(node) {}
  void Post(absl::AnyInvocable<void()> task) override;
  // Runs what was posted, at once, until nothing is left.
  void Drain();
  // Drops what was posted, and what is posted from now on.
  void Stop();

 private:
  World* const world_;
  const World::Node node_;
  std::deque<absl::AnyInvocable<void()>> tasks_;
  bool stopped_ = false;
};

// What a server shares with the clients of its host: its weights (Site::mapped), and the clients' gradients.
class SimSharedMemory final : public SharedMemory {
 public:
  explicit SimSharedMemory(const Site* site) : site_(site) {}

  // The client with this token is known for as long as its socket is there. Its segments stay mapped.
  void Meet(const std::string& token, const SegmentsSocket& socket,
            std::shared_ptr<const ClientSegments> segments) {
    clients_[token] = {socket, std::move(segments), {}};
  }
  // Forgets those whose sockets are closed, and what was kept for them.
  void DropClosed();

  std::optional<Place> Find(const void* data) const override { return site_->mapped.Find(data); }
  std::shared_ptr<const ClientSegments> Claim(absl::string_view token) const override;
  void KeepFor(absl::string_view token, std::vector<std::shared_ptr<const void>> memory) override;

 private:
  struct Client {
    std::weak_ptr<const void> socket;
    std::shared_ptr<const ClientSegments> segments;
    std::vector<std::shared_ptr<const void>> kept;
  };
  const Site* const site_;
  std::map<std::string, Client, std::less<>> clients_;
};

// The server's end of one client's data stream: the shipped ExchangeSession on a simulated connection, with
// one write under way at most, as ps_server/grpc/grpc_exchange_call.h has it. What a message refers to is
// read when it leaves, or by the client where it lies, so that a version that is not immutable shows.
class SimStream : public std::enable_shared_from_this<SimStream> {
 public:
  // `on_broken`: the client has ended the stream, or the network has.
  SimStream(Site* site, World::Node node, const ExchangeSession::Options& options,
            std::shared_ptr<Connection> connection, std::function<void(std::string)> receive,
            std::function<void(const v1::Caller&)> on_broken);

  // A message of the client.
  void Receive(const std::string& bytes);
  // Readers have been revoked. True: the stream has ended, since some of it is being sent and does not leave.
  bool DropRevoked();
  void EndJob(const absl::Status& failure);
  // The connection is over.
  void OnBroken();
  // The process is gone.
  void Die() {
    if (session_ != nullptr) Drop()->End();
  }

 private:
  void Settle();
  void Write();
  void End(const absl::Status& why);
  // Lets the session go, and the message that is being sent.
  std::shared_ptr<ExchangeSession> Drop();

  // For Seams::takes_views_back.

  // Tells the session that the client has read all chunks that it holds in shared memory.
  void TakeViewsBack();
  // The client's message without the chunks that were taken back of those that it lets go.
  std::string WithoutTakenBack(const std::string& bytes);

  Site* const site_;
  const World::Node node_;
  const std::shared_ptr<Connection> connection_;
  const std::function<void(std::string)> receive_;
  const std::function<void(const v1::Caller&)> on_broken_;
  // Null: the stream is over.
  std::shared_ptr<ExchangeSession> session_;
  bool settling_ = false, writing_ = false;
  OutgoingMessage message_;
  // Chunks that were sent in shared memory, and the last one that was taken back.
  uint64_t chunks_shared_ = 0, taken_back_ = 0;
  // Those that the client holds.
  std::set<uint64_t> held_;
};

}  // namespace weir

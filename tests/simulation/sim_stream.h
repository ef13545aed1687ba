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

#include "common/threads/serial_queue.h"
#include "ps_server/exchange/exchange_session.h"
#include "tests/simulation/network.h"
#include "tests/simulation/site.h"

namespace weir {

// A client's end of the socket that carried its shared-memory segments: closed when the last reference goes.
using SegmentsSocket = std::shared_ptr<const void>;

// The event loop of one thread of a server: runs tasks in order, each some time after it was posted.
class SimLoop final : public Executor {
 public:
  SimLoop(World* world, World::Node node) : world_(world), node_(node) {}
  void Post(absl::AnyInvocable<void()> task) override;
  // Runs all posted tasks at once, until none is left.
  void Drain();
  // Drops posted tasks, and those posted from now on.
  void Stop();

 private:
  World* const world_;
  const World::Node node_;
  std::deque<absl::AnyInvocable<void()>> tasks_;
  bool stopped_ = false;
};

// The memory that a server shares with the clients of its host: its weights (Site::mapped), and the clients'
// gradients.
class SimSharedMemory final : public SharedMemory {
 public:
  explicit SimSharedMemory(const Site* site) : site_(site) {}

  // The client with this token is known while its socket is open. Its segments stay mapped.
  void Meet(const std::string& token, const SegmentsSocket& socket,
            std::shared_ptr<const ClientSegments> segments) {
    clients_[token] = {socket, std::move(segments), {}};
  }
  // Forgets the clients whose sockets are closed, and what was kept for them.
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
// at most one write under way, as in ps_server/grpc/grpc_exchange_call.h. The memory that a message refers to
// is read when the message leaves, or in place by the client, so that a version that changes is noticed.
class SimStream : public std::enable_shared_from_this<SimStream> {
 public:
  // `on_broken`: the client or the network has ended the stream.
  SimStream(Site* site, World::Node node, const ExchangeSession::Options& options,
            std::shared_ptr<Connection> connection, std::function<void(std::string)> receive,
            std::function<void(const v1::Caller&)> on_broken);

  // Takes a message of the client.
  void Receive(const std::string& bytes);
  // Readers have been revoked. True: the stream has ended, since a message that is being sent is stuck.
  bool DropRevoked();
  void EndJob(const absl::Status& failure);
  // The connection is over.
  void OnBroken();
  // The process is gone.
  void Die() {
    if (session_ != nullptr) Drop()->End();
  }

 private:
  void StartOperations();
  void Write();
  void End(const absl::Status& why);
  // Releases the session, and the message that is being sent.
  std::shared_ptr<ExchangeSession> Drop();

  // For Seams::takes_views_back.

  // Tells the session that the client has read all chunks that it holds in shared memory.
  void TakeViewsBack();
  // The client's message, without the chunks that were already taken back.
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
  // The number of chunks sent in shared memory, and of the last one that was taken back.
  uint64_t chunks_shared_ = 0, taken_back_ = 0;
  // The chunks that the client holds.
  std::set<uint64_t> held_;
};

}  // namespace weir

#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/exchange/shard_channel.h"
#include "common/optimizer/kernels.h"
#include "common/threads/thread.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/checkpoints/job_store.h"
#include "ps_server/exchange/exchange_request.h"
#include "ps_server/shard/shard.h"
#include "tests/common/faulty_file_system.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/network.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/run_log.h"
#include "tests/simulation/world.h"

namespace weir {

class SimServer;

// The places where a planted bug enters, without a change to shipped code (planted_bugs.h). The defaults
// change nothing.
struct Seams {
  Shard::PolicyFactory make_policy;
  // Changes the job's config as one shard has it.
  std::function<void(uint32_t shard, v1::JobConfig*)> config;
  const Kernels* kernels = &kPlainKernels;
  ReaderLimits reader_limits;
  // By shard.
  std::function<SlabSource(uint32_t shard)> weights_source;
  // The messages that a shard gets instead of a message of the coordinator.
  std::function<std::vector<v1::ControlMessage>(uint32_t shard, const v1::ControlMessage&)> control;
  // Additional messages to a shard in response to this report.
  std::function<std::vector<v1::ControlMessage>(uint32_t shard, const v1::ShardReport&)> reported;
  // Must live as long as the run.
  std::shared_ptr<FileSystem> files;
  // Wraps the coordinator's store.
  std::function<std::unique_ptr<JobStore>(std::unique_ptr<JobStore>)> store;
  // A client's message as it leaves, and the shard's as it arrives; by data stream and shard.
  std::function<void(uint64_t stream, uint32_t shard, v1::ExchangeRequest*)> request;
  std::function<void(uint64_t stream, uint32_t shard, v1::ExchangeReply*)> reply;
  // A chunk of a quantised gradient as it leaves: of the push, from the element `first` on.
  std::function<void(uint32_t shard, const v1::PushRequest& push, uint64_t first, char* data, size_t bytes)>
      chunk;
  // A worker begins a push; it has computed a shard's part of a gradient; it has got an answer.
  std::function<void(const PushSent&)> sent;
  std::function<void(uint64_t incarnation, uint64_t batch, uint32_t shard, std::vector<float>*)> gradient;
  std::function<void(const PushHeard&)> heard;
  // A shard's report as it leaves.
  std::function<void(uint32_t shard, v1::ShardReport*)> report;
  // The membership as ps:0 tells it to a worker.
  std::function<void(v1::Membership*)> membership;
  // The weights in a shard's message as they arrive; not those that lie in shared memory.
  std::function<void(uint64_t stream, uint32_t shard, const v1::ExchangeReply&, std::string* weights)>
      weights;
  // The rows of embedding tables in a shard's message as they arrive.
  std::function<void(uint64_t stream, uint32_t shard, const v1::ExchangeReply&, std::string* rows)> rows;
  // Wraps a client's channel to a shard.
  std::function<std::unique_ptr<ShardChannel>(std::unique_ptr<ShardChannel>)> channel;
  // The client that a training loop gets in place of its own.
  std::function<std::unique_ptr<Client>(Client*)> client;
  // Takes a client's stream in place of its shard's session: gets what takes messages for the client, and
  // returns what takes the client's messages.
  using Receiver = std::function<void(const std::string& message)>;
  std::function<Receiver(std::shared_ptr<Connection>, Receiver to_client)> accept;
  // Shards serve callers of any job.
  bool serves_any_job = false;
  // A server that no longer waits for a client takes back what the client reads in shared memory.
  bool takes_views_back = false;
  // A client releases what it reads in shared memory as soon as it arrives.
  bool releases_early = false;
};

// Memory in segments that clients have mapped. It stays for the whole run.
class MappedMemory {
 public:
  void Add(std::shared_ptr<float> memory, size_t elements) {
    numbers_[memory.get()] = static_cast<uint32_t>(segments_.size());
    segments_.push_back({std::move(memory), elements * sizeof(float)});
  }
  // The place of `data`; nullopt: in no segment.
  std::optional<SharedMemory::Place> Find(const void* data) const;
  // nullptr: the segment does not hold all of it.
  const float* At(uint32_t segment, uint64_t offset, uint64_t bytes) const {
    if (!Has(segment)) return nullptr;
    const Segment& found = segments_[segment];
    if (offset > found.bytes || bytes > found.bytes - offset) return nullptr;
    return found.memory.get() + offset / sizeof(float);
  }
  bool Has(uint32_t segment) const { return segment < segments_.size(); }

 private:
  struct Segment {
    std::shared_ptr<float> memory;
    uint64_t bytes;
  };
  std::vector<Segment> segments_;
  // The newest segment at each address.
  std::map<const float*, uint32_t> numbers_;
};

// The state that all actors of one run share.
struct Site {
  Site(const Plan& p, bool verbose);
  ~Site();

  // A server's address in the cluster spec, which all processes share.
  static std::string AddressOf(uint32_t server) { return absl::StrCat("ps", server, ":1"); }

  const Plan& plan;
  FaultCounts faults;
  World world;
  Network network;
  const Ledger ledger;
  // All servers', as a shared folder.
  FaultyFileSystem disk;
  // The servers' view of the disk.
  FileSystem* files = &disk;
  // The server that uses the disk, where it is not the one whose event runs.
  SimServer* disk_user = nullptr;
  // The weights' memory, of all servers and their incarnations: clients that have mapped it may read it as
  // long as they like.
  MappedMemory mapped;
  RunLog log;
  Seams seams;
  ThreadPool threads{1};
  // By index, ps:0 first.
  std::vector<std::unique_ptr<SimServer>> servers;
  // Processes that were ps:0, and may still be at work (SimServer::BeReplaced).
  std::vector<std::unique_ptr<SimServer>> replaced;
  // The current coordinator has saved the end of the job.
  bool saw_end = false;
  // The next incarnation number of a shard.
  uint64_t next_incarnation = 1;
  // The next number of a data stream, over all servers.
  uint64_t next_session = 1;
};

}  // namespace weir

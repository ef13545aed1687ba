#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/sync/thread_pool.h"
#include "proto/shard_control.pb.h"
#include "ps_server/coordinator/job_store.h"
#include "ps_server/exchange/shared_memory.h"
#include "ps_server/optimizer/kernels.h"
#include "ps_server/shard/shard.h"
#include "tests/common/faulty_file_system.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/network.h"
#include "tests/simulation/plan.h"
#include "tests/simulation/run_log.h"
#include "tests/simulation/world.h"

namespace weir {

class SimServer;

// Where a planted bug gets in, without a line of shipped code (planted_bugs.h). As they are here nothing is
// changed.
struct Seams {
  Shard::PolicyFactory make_policy;
  const Kernels* kernels = &kPlainKernels;
  ReaderLimits reader_limits;
  // By shard.
  std::function<SlabSource(uint32_t shard)> weights_source;
  // What a shard gets instead of a message of the coordinator.
  std::function<std::vector<v1::ControlMessage>(uint32_t shard, const v1::ControlMessage&)> control;
  // What a shard is told besides, since it made this report.
  std::function<std::vector<v1::ControlMessage>(uint32_t shard, const v1::ShardReport&)> reported;
  // Lives as long as the run.
  std::shared_ptr<FileSystem> files;
  // What the coordinator remembers by.
  std::function<std::unique_ptr<JobStore>(std::unique_ptr<JobStore>)> store;
  // A client's message as it leaves, and the shard's as it arrives; by data stream and shard.
  std::function<void(uint64_t stream, uint32_t shard, v1::ExchangeRequest*)> request;
  std::function<void(uint64_t stream, uint32_t shard, v1::ExchangeReply*)> reply;
  // A server takes back what a client reads in shared memory when it waits no longer for the client.
  bool takes_views_back = false;
  // A client lets go of what it reads in shared memory when it comes.
  bool releases_early = false;
};

// Memory that lies in segments which clients have mapped. It stays for as long as the run.
class MappedMemory {
 public:
  void Add(std::shared_ptr<float> memory, size_t elements) {
    numbers_[memory.get()] = static_cast<uint32_t>(segments_.size());
    segments_.push_back({std::move(memory), elements * sizeof(float)});
  }
  // Where it lies; nothing: in none of them.
  std::optional<SharedMemory::Place> Find(const void* data) const;
  // nullptr: not all of it lies there.
  const float* At(uint32_t segment, uint64_t offset, uint64_t bytes) const {
    if (segment >= segments_.size()) return nullptr;
    const Segment& found = segments_[segment];
    return offset + bytes > found.bytes ? nullptr : found.memory.get() + offset / sizeof(float);
  }

 private:
  struct Segment {
    std::shared_ptr<float> memory;
    uint64_t bytes;
  };
  std::vector<Segment> segments_;
  // The newest one at each address.
  std::map<const float*, uint32_t> numbers_;
};

// What all actors of one run share.
struct Site {
  Site(const Plan& p, bool verbose);
  ~Site();

  const Plan& plan;
  FaultCounts faults;
  World world;
  Network network;
  const Ledger ledger;
  // Of all servers, as a shared folder.
  FaultyFileSystem disk;
  // What the servers see of it.
  FileSystem* files = &disk;
  // Who uses it, where that is not whose event runs.
  SimServer* disk_user = nullptr;
  // Memory that weights lie in, of all servers and their lives: clients that have mapped it may read it as
  // long as they like.
  MappedMemory mapped;
  RunLog log;
  Seams seams;
  ThreadPool threads{1};
  // By index, ps:0 first.
  std::vector<std::unique_ptr<SimServer>> servers;
  // Processes that were ps:0 once, and may still be at work (SimServer::BeReplaced).
  std::vector<std::unique_ptr<SimServer>> replaced;
  // The coordinator of now has saved the end of the job.
  bool saw_end = false;
  // Lives of shards; the next one's number.
  uint64_t next_life = 1;
  // Data streams, of all servers.
  uint64_t next_session = 1;
};

}  // namespace weir

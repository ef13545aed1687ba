#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace weir {

// A shard's answer to the copy of a push that a worker had sent as well.
struct RepeatedPush {
  uint32_t worker = 0;
  uint64_t worker_incarnation = 0, clock = 0;
  uint32_t part = 0;
  // From the answer, if the push was taken.
  uint64_t incarnation = 0, version = 0;
};

// Stands before a server and passes on all gRPC calls, on loopback. At random it holds a message back, so
// that later messages of other streams and callers arrive first. At random it also sends a call, or a push
// with its rows, to the server a second time, on a stream of its own and with the same content. It sends the
// second at the same moment as the first, or up to seconds later, when later calls have been answered, its
// sender was fenced, or the server was restarted. The answer to the copy is dropped. The seed decides how
// often. Pushes in shared memory are sent once. Thread-safe.
class GrpcRepeater {
 public:
  struct Counts {
    // `with_rows`: of the pushes.
    uint64_t delayed = 0, pushes = 0, with_rows = 0, calls = 0;
  };

  // `server_address`: "HOST:PORT"; the server may come and go. `dims`: of each table of the job.
  static std::unique_ptr<GrpcRepeater> Start(const std::string& server_address, uint64_t seed,
                                             std::vector<uint32_t> dims);
  virtual ~GrpcRepeater() = default;

  // "127.0.0.1:PORT".
  virtual std::string address() const = 0;
  // The counts so far.
  virtual Counts counts() const = 0;
  // Copies of pushes that the server took, or had taken.
  virtual std::vector<RepeatedPush> pushes() const = 0;
};

}  // namespace weir

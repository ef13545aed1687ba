#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/exchange/shard_set.h"
#include "common/threads/mutex.h"
#include "proto/parameter_server.pb.h"

namespace weir {

// The operations of one client as it saw them answered, one line of JSON per shard and answer, for checkers
// that run after the job:
//
//   {"op":"pull","worker":1,"worker_incarnation":7,"shard":0,"clock":4,"version":9,"incarnation":3,
//    "clocks":[[0,3],[1,4]],"t_ns":..}
//   {"op":"push","worker":1,"worker_incarnation":7,"shard":0,"clock":4,"part":0,"batch":17,"outcome":"OK",
//    "version":10,"incarnation":3,"staleness":1,"t_ns":..}
//
// A pull that was answered without weights has an "outcome", too; a pull under a pin has a "pin". version,
// incarnation: the shard's. t_ns: when the answer was whole, on the machine's steady clock (comparable
// between processes of one machine). Lines are buffered. Thread-safe.
class History {
 public:
  struct Pull {
    uint32_t worker = 0;
    uint64_t worker_incarnation = 0;
    uint32_t shard = 0;
    uint64_t clock = 0;
    uint64_t pin = 0;
    // A literal: the name of the Outcome.
    absl::string_view outcome = "OK";
    uint64_t version = 0;
    uint64_t incarnation = 0;
    std::vector<std::pair<uint32_t, uint64_t>> clocks;
  };
  struct Push {
    uint32_t worker = 0;
    uint64_t worker_incarnation = 0;
    uint32_t shard = 0;
    uint64_t clock = 0;
    uint32_t part = 0;
    uint64_t batch = 0;
    absl::string_view outcome = "OK";
    uint64_t version = 0;
    uint64_t incarnation = 0;
    uint64_t staleness = 0;
  };

  // Replaces a file at `path`, unless `append`. InvalidArgument: the file cannot be written, or another
  // process writes it.
  static absl::StatusOr<std::unique_ptr<History>> Open(const std::string& path, bool append = false);
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  void Add(const Pull& pull);
  void Add(const Push& push);

  // Flushes and closes; later lines are dropped. An error if some line could not be written. Idempotent.
  absl::Status Close();

 private:
  History(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  void Write(const std::string& line);

  const std::string path_;
  Mutex mutex_;
  // nullptr: closed.
  std::FILE* file_ ABSL_GUARDED_BY(mutex_);
  // The errno of the first write that failed; 0: none.
  int error_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Writes the shards' answers to one worker into its history.
class HistoryObserver final : public ShardSet::Observer {
 public:
  HistoryObserver(const v1::Caller& caller, std::unique_ptr<History> history)
      : caller_(caller), history_(std::move(history)) {}

  void OnPush(const ShardSet::Push& push, uint32_t shard, const v1::PushReply& reply) override;
  void OnPull(const ShardSet::Pull& pull, uint32_t shard, const v1::PullReply& reply) override;
  // As History::Close().
  absl::Status Close() { return history_->Close(); }

 private:
  const v1::Caller caller_;
  const std::unique_ptr<History> history_;
};

}  // namespace weir

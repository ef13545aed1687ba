#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/memory.h"
#include "bench/process.h"
#include "client/tables/key_cuts.h"
#include "common/base/status_macros.h"
#include "common/net/tcp.h"
#include "common/system/unique_fd.h"
#include "tests/bench/row_contestants.h"
#include "tests/bench/row_gather.h"

namespace weir::bench {
namespace {

// A client that reads the rows of one batch after the other.
class RowReader : public StepClient {
 public:
  RowReader(const Contestant& contestant, int index)
      : dim_(contestant.dim),
        batches_(ZipfBatches(contestant.table_rows, static_cast<uint64_t>(index))),
        rows_(static_cast<int64_t>(kBatchKeys * contestant.dim), 0) {}

 protected:
  const std::vector<uint64_t>& NextBatch() { return batches_[step_++ % batches_.size()]; }
  float* rows() { return rows_.data(); }

  const size_t dim_;

 private:
  const std::vector<std::vector<uint64_t>> batches_;
  size_t step_ = 0;
  Tensor rows_;
};

class BareReader final : public RowReader {
 public:
  BareReader(const Contestant& contestant, int index)
      : RowReader(contestant, index), table_(contestant.table_rows, contestant.dim) {}
  absl::Status Step() override {
    table_.Gather(NextBatch(), rows());
    return absl::OkStatus();
  }

 private:
  const BareRows table_;
};

class RawRowServer final : public StepServer {
 public:
  RawRowServer(const Contestant& contestant, UniqueFd listener, std::string address)
      : dim_(contestant.dim),
        window_(std::max<size_t>(1, static_cast<size_t>(contestant.window_bytes) / (dim_ * sizeof(float)))),
        table_(contestant.table_rows, contestant.dim),
        listener_(std::move(listener)),
        address_(std::move(address)) {
    std::thread([this] {
      while (true) std::thread([this, fd = Accept(listener_)] { Serve(fd.get()); }).detach();
    }).detach();
  }
  // The server ends with its process.
  ~RawRowServer() override { _exit(0); }
  std::string address() const override { return address_; }
  pid_t pid() const override { return getpid(); }

 private:
  void Serve(int fd) const {
    SetNoDelay(fd);
    std::vector<uint64_t> keys(kBatchKeys);
    std::vector<float> rows(window_ * dim_);
    for (uint64_t count; Receive(fd, &count, sizeof count);) {
      if (count > keys.size() || !Receive(fd, keys.data(), count * sizeof(uint64_t))) return;
      for (size_t first = 0; first < count; first += window_) {
        const size_t n = std::min<size_t>(window_, count - first);
        table_.Gather(absl::MakeConstSpan(keys).subspan(first, n), rows.data());
        if (!Send(fd, rows.data(), n * dim_ * sizeof(float))) return;
      }
    }
  }

  const size_t dim_, window_;  // rows
  const BareRows table_;
  const UniqueFd listener_;
  const std::string address_;
};

class RawReader final : public RowReader {
 public:
  RawReader(const Contestant& contestant, int index, UniqueFd connection)
      : RowReader(contestant, index),
        window_(std::max<size_t>(1, static_cast<size_t>(contestant.window_bytes) / (dim_ * sizeof(float)))),
        window_rows_(window_ * dim_),
        connection_(std::move(connection)) {}

  absl::Status Step() override {
    const int fd = connection_.get();
    const KeyOccurrences batch = GroupByKey(NextBatch());
    const uint64_t count = batch.keys.size();
    if (!Send(fd, &count, sizeof count) || !Send(fd, batch.keys.data(), count * sizeof(uint64_t))) {
      return absl::UnavailableError("the server closed the connection");
    }
    for (size_t first = 0; first < count; first += window_) {
      const size_t n = std::min<size_t>(window_, count - first);
      if (!Receive(fd, window_rows_.data(), n * dim_ * sizeof(float))) {
        return absl::UnavailableError("the server closed the connection");
      }
      for (size_t i = 0; i < n; ++i) {
        for (uint32_t position : batch.of(first + i)) {
          std::memcpy(rows() + position * dim_, &window_rows_[i * dim_], dim_ * sizeof(float));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  const size_t window_;  // rows
  std::vector<float> window_rows_;
  const UniqueFd connection_;
};

}  // namespace

Kind BareRowsKind() {
  return {nullptr, [](const Contestant& contestant, int index, const std::vector<std::string>&) {
            return std::make_unique<BareReader>(contestant, index);
          }};
}

Kind RawRowsKind() {
  return {[](const Contestant& contestant, int,
             const std::string& host) -> absl::StatusOr<std::unique_ptr<StepServer>> {
            WEIR_ASSIGN_OR_RETURN(UniqueFd listener, ListenTcp(host, 0));
            const std::string address = absl::StrCat(host, ":", PortOf(listener));
            return std::make_unique<RawRowServer>(contestant, std::move(listener), address);
          },
          [](const Contestant& contestant, int index,
             const std::vector<std::string>& addresses) -> absl::StatusOr<std::unique_ptr<StepClient>> {
            WEIR_ASSIGN_OR_RETURN(UniqueFd connection, DialTcp(addresses[0], SetNoDelay));
            return std::make_unique<RawReader>(contestant, index, std::move(connection));
          }};
}

}  // namespace weir::bench

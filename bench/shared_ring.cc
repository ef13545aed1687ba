#include <fcntl.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <thread>

#include "absl/strings/str_cat.h"
#include "bench/contestant.h"
#include "bench/memory.h"

namespace weir::bench {
namespace {

// A counter that only rises. The other process waits until it is above a value: first by spinning for a
// while, then by sleeping.
class Counter {
 public:
  uint32_t Get() const { return value_.load(std::memory_order_acquire); }

  void Increment() {
    value_.fetch_add(1);
    if (waiting_.load()) syscall(SYS_futex, &value_, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }

  void WaitAbove(uint32_t seen) {
    for (int spin = 0; spin < 2000; ++spin) {
      if (Get() != seen) return;
      _mm_pause();
    }
    waiting_ = true;
    while (value_.load() == seen) syscall(SYS_futex, &value_, FUTEX_WAIT, seen, nullptr, nullptr, 0);
    waiting_ = false;
  }

 private:
  std::atomic<uint32_t> value_{0};
  std::atomic<bool> waiting_{false};
};

struct Ring {
  alignas(64) Counter filled;   // slots, by the client
  alignas(64) Counter applied;  // slots, by the server
};
constexpr size_t kHead = 4096;

struct Layout {
  explicit Layout(const Contestant& c)
      : elements(c.elements),
        slot(std::min<int64_t>(c.window_bytes / sizeof(float), c.elements)),
        slots(c.windows_in_flight),
        per_step((elements + slot - 1) / slot) {}
  size_t bytes() const { return kHead + sizeof(float) * (slot * slots + 2 * elements); }

  const int64_t elements, slot, slots, per_step;
};

class Segment {
 public:
  Segment(const Layout& layout, int fd) : layout_(layout) {
    memory_ = static_cast<char*>(
        mmap(nullptr, layout.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0));
    madvise(memory_, layout.bytes(), MADV_HUGEPAGE);
  }
  bool ok() const { return memory_ != MAP_FAILED; }
  Ring* ring() { return reinterpret_cast<Ring*>(memory_); }
  float* slot(uint32_t count) { return floats() + count % layout_.slots * layout_.slot; }
  float* weights() { return floats() + layout_.slots * layout_.slot; }

 private:
  float* floats() { return reinterpret_cast<float*>(memory_ + kHead); }
  const Layout layout_;
  char* memory_;
};

class RingServer : public StepServer {
 public:
  RingServer(const Contestant& contestant, int fd)
      : fd_(fd),
        layout_(contestant),
        segment_(layout_, fd),
        parameters_(contestant.optimizer, contestant.elements, segment_.weights()) {
    new (segment_.ring()) Ring;
    std::thread([this] { Serve(); }).detach();
  }
  // The server ends with its process.
  ~RingServer() override { _exit(0); }
  std::string address() const override { return absl::StrCat("/proc/", getpid(), "/fd/", fd_); }
  pid_t pid() const override { return getpid(); }

 private:
  void Serve() {
    Ring& ring = *segment_.ring();
    for (uint32_t count = 0;; ++count) {
      const int64_t first = count % layout_.per_step * layout_.slot;
      ring.filled.WaitAbove(count);
      parameters_.Apply(first, std::min(layout_.slot, layout_.elements - first), segment_.slot(count),
                        count / layout_.per_step % 2);
      ring.applied.Increment();
    }
  }

  const int fd_;
  const Layout layout_;
  Segment segment_;
  const Parameters parameters_;
};

class RingClient : public StepClient {
 public:
  RingClient(const Contestant& contestant, int fd)
      : layout_(contestant), segment_(layout_, fd), tensors_(contestant.elements) {}

  absl::Status Step() override {
    Ring& ring = *segment_.ring();
    const uint32_t begin = filled_, end = begin + layout_.per_step;
    const float* weights = segment_.weights() + (1 - begin / layout_.per_step % 2) * layout_.elements;
    for (uint32_t taken = begin; taken < end;) {
      while (filled_ < end && filled_ - taken < layout_.slots) {
        const auto [first, n] = Range(filled_ - begin);
        std::memcpy(segment_.slot(filled_), tensors_.gradient.data() + first, n * sizeof(float));
        ring.filled.Increment();
        ++filled_;
      }
      ring.applied.WaitAbove(taken);
      const auto [first, n] = Range(taken - begin);
      std::memcpy(tensors_.weights.data() + first, weights + first, n * sizeof(float));
      ++taken;
    }
    return absl::OkStatus();
  }

 private:
  std::pair<int64_t, int64_t> Range(int64_t slot) const {
    const int64_t first = slot * layout_.slot;
    return {first, std::min(layout_.slot, layout_.elements - first)};
  }

  const Layout layout_;
  Segment segment_;
  WorkerTensors tensors_;
  uint32_t filled_ = 0;  // slots, as the ring counts them
};

absl::StatusOr<std::unique_ptr<StepServer>> StartServer(const Contestant& contestant, int,
                                                        const std::string&) {
  const int fd = memfd_create("weir_bench", 0);
  if (fd < 0 || ftruncate(fd, Layout(contestant).bytes()) != 0)
    return absl::ErrnoToStatus(errno, "memfd_create");
  return std::make_unique<RingServer>(contestant, fd);
}

absl::StatusOr<std::unique_ptr<StepClient>> ConnectClient(const Contestant& contestant, int,
                                                          const std::vector<std::string>& addresses) {
  const int fd = open(addresses[0].c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("open ", addresses[0]));
  return std::make_unique<RingClient>(contestant, fd);
}

}  // namespace

Kind SharedRing() { return {StartServer, ConnectClient}; }

}  // namespace weir::bench

#include "tests/worker/compute/cuda_emulation/runtime.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/worker/compute/cuda_emulation/emulation.h"
#include "tests/worker/compute/cuda_emulation/fibers.h"

namespace emulated_cuda {

thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

// A queued operation of a stream: work; or a mark that other streams' work waits for; or such a wait.
struct Operation {
  std::function<cudaError_t()> work;
  std::shared_ptr<bool> passed;    // set when the operation's turn comes
  std::shared_ptr<bool> wait_for;  // its turn comes when this is set
};

struct Stream {
  std::deque<Operation> queue;
  Graph* capture = nullptr;  // if set, takes the operations instead
};

struct Event {
  std::shared_ptr<bool> recorded = std::make_shared<bool>(true);
};

struct Graph {
  std::deque<Operation> operations;
  bool broken = false;
};

namespace {

constexpr size_t kGuardBytes = 256;
// Four bytes of either are a NaN, and not the one that arithmetic gives.
constexpr unsigned char kGuard = 0xff, kUnwritten = 0xff;

// One emulated machine per process, used by one thread at a time.
struct State {
  weir::cuda_emulation::Machine machine;
  std::mt19937_64 random{1};
  std::map<char*, size_t> device_memory;
  size_t device_bytes = 0;
  std::vector<Stream*> streams;
  int64_t others = 0;  // live host memory, events and graphs
  cudaError_t last_error = cudaSuccess;
  cudaError_t broken = cudaSuccess;  // a failed kernel: every later call fails, as on a device
};
State& state() {
  static State* const state = new State;
  return *state;
}

cudaError_t Fail(cudaError_t error) {
  state().last_error = error;
  return error;
}

bool GuardsIntact() {
  for (const auto& [memory, bytes] : state().device_memory) {
    for (size_t i = 0; i < kGuardBytes; ++i) {
      if (static_cast<unsigned char>(memory[-1 - static_cast<int64_t>(i)]) != kGuard) return false;
      if (static_cast<unsigned char>(memory[bytes + i]) != kGuard) return false;
    }
  }
  return true;
}

bool IsDeviceMemory(const void* pointer, size_t bytes) {
  const char* const first = static_cast<const char*>(pointer);
  auto it = state().device_memory.upper_bound(const_cast<char*>(first));
  if (it == state().device_memory.begin()) return false;
  --it;
  return first + bytes <= it->first + it->second;
}

cudaError_t Queue(Stream* stream, Operation operation) {
  if (state().broken != cudaSuccess) return Fail(state().broken);
  if (stream->capture != nullptr) {
    if (!operation.work) {
      stream->capture->broken = true;
      return Fail(cudaErrorStreamCaptureUnsupported);
    }
    stream->capture->operations.push_back(std::move(operation));
  } else {
    stream->queue.push_back(std::move(operation));
  }
  return cudaSuccess;
}

// Runs one operation of a stream that may go on, chosen at random. False: none may.
bool RunOne() {
  std::vector<Stream*> ready;
  for (Stream* stream : state().streams) {
    if (stream->queue.empty()) continue;
    const Operation& next = stream->queue.front();
    if (next.wait_for == nullptr || *next.wait_for) ready.push_back(stream);
  }
  if (ready.empty()) return false;
  Stream* const stream = ready[state().random() % ready.size()];
  const Operation operation = std::move(stream->queue.front());
  stream->queue.pop_front();
  if (operation.work && state().broken == cudaSuccess) state().broken = operation.work();
  if (operation.passed != nullptr) *operation.passed = true;
  return true;
}

template <typename Done>
cudaError_t RunUntil(const Done& done) {
  for (Stream* stream : state().streams) {
    if (stream->capture != nullptr) {
      stream->capture->broken = true;
      return Fail(cudaErrorStreamCaptureUnsupported);
    }
  }
  while (!done()) {
    if (!RunOne()) std::abort();  // streams wait for each other: events cannot cause that
  }
  if (state().broken == cudaSuccess && !GuardsIntact()) state().broken = cudaErrorIllegalAddress;
  return state().broken == cudaSuccess ? cudaSuccess : Fail(state().broken);
}

cudaError_t RunKernel(const cudaLaunchConfig_t& config, const std::function<void()>& thread) {
  blockDim = config.blockDim;
  gridDim = config.gridDim;
  const unsigned threads = blockDim.x * blockDim.y;
  const unsigned blocks = gridDim.x * gridDim.y;
  std::vector<unsigned> order(blocks);
  for (unsigned i = 0; i < blocks; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), state().random);
  for (const unsigned block : order) {
    blockIdx = dim3(block % gridDim.x, block / gridDim.x);
    const auto enter = [](unsigned i) { threadIdx = dim3(i % blockDim.x, i / blockDim.x); };
    if (!RunFibers(threads, state().random(), enter, thread)) return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

}  // namespace

const weir::cuda_emulation::Machine& CurrentMachine() { return state().machine; }

cudaError_t QueueWork(cudaStream_t stream, std::function<cudaError_t()> work) {
  return Queue(stream, {std::move(work), nullptr, nullptr});
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    default:
      return "cudaErrorInvalidValue";
  }
}

const char* cudaGetErrorString(cudaError_t) { return "emulated"; }

cudaError_t cudaGetLastError() { return std::exchange(state().last_error, cudaSuccess); }

// ---- devices ----

cudaError_t cudaDriverGetVersion(int* version) {
  *version = state().machine.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (state().machine.driver_version < 13000) return Fail(cudaErrorInsufficientDriver);
  if (state().machine.devices == 0) return Fail(cudaErrorNoDevice);
  *count = state().machine.devices;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device >= state().machine.devices) return Fail(cudaErrorInvalidDevice);
  *properties = {"Emulated GPU", state().machine.memory_bytes, state().machine.major, state().machine.minor,
                 1};
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device < state().machine.devices ? cudaSuccess : Fail(cudaErrorInvalidDevice);
}

// ---- memory ----

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (bytes > state().machine.memory_bytes - state().device_bytes) return Fail(cudaErrorMemoryAllocation);
  char* const memory =
      static_cast<char*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256 + 2 * kGuardBytes));
  if (memory == nullptr) return Fail(cudaErrorMemoryAllocation);
  std::memset(memory, kGuard, kGuardBytes);
  std::memset(memory + kGuardBytes, kUnwritten, bytes);
  std::memset(memory + kGuardBytes + bytes, kGuard, kGuardBytes);
  state().device_memory[memory + kGuardBytes] = bytes;
  state().device_bytes += bytes;
  *pointer = memory + kGuardBytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  const auto it = state().device_memory.find(static_cast<char*>(pointer));
  if (it == state().device_memory.end()) return Fail(cudaErrorInvalidValue);
  // As on a device, memory is freed only after all work.
  const cudaError_t error = RunUntil([] {
    return std::all_of(state().streams.begin(), state().streams.end(),
                       [](const Stream* stream) { return stream->queue.empty(); });
  });
  state().device_bytes -= it->second;
  std::free(it->first - kGuardBytes);
  state().device_memory.erase(it);
  return error;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = state().machine.memory_bytes;
  *free = *total - state().device_bytes;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*pointer == nullptr) return Fail(cudaErrorMemoryAllocation);
  std::memset(*pointer, kUnwritten, bytes);
  ++state().others;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  std::free(pointer);
  --state().others;
  return cudaSuccess;
}

// ---- streams, events, graphs ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new Stream;
  state().streams.push_back(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  auto& streams = state().streams;
  streams.erase(std::find(streams.begin(), streams.end(), stream));
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return RunUntil([&] { return stream->queue.empty(); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return Queue(stream, {nullptr, nullptr, event->recorded});
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new Event;
  ++state().others;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  --state().others;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->recorded = std::make_shared<bool>(false);
  return Queue(stream, {nullptr, event->recorded, nullptr});
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return RunUntil([recorded = event->recorded] { return *recorded; });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::shared_ptr<bool> recorded = event->recorded;
  if (*recorded) return cudaSuccess;
  // A caller that polls gets there.
  int steps = 0;
  const cudaError_t error = RunUntil([&] { return steps++ > 0; });
  return error == cudaSuccess ? Fail(cudaErrorNotReady) : error;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  if ((kind != cudaMemcpyHostToDevice && !IsDeviceMemory(from, bytes)) ||
      (kind != cudaMemcpyDeviceToHost && !IsDeviceMemory(to, bytes))) {
    return Fail(cudaErrorInvalidValue);
  }
  return QueueWork(stream, [=] {
    std::memcpy(to, from, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (!state().machine.captures) return Fail(cudaErrorStreamCaptureUnsupported);
  stream->capture = new Graph;
  ++state().others;
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  Graph* const captured = std::exchange(stream->capture, nullptr);
  if (captured->broken) {
    cudaGraphDestroy(captured);
    return Fail(cudaErrorStreamCaptureUnsupported);
  }
  *graph = captured;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new Graph(*graph);
  ++state().others;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const Operation& operation : executable->operations) {
    const cudaError_t error = Queue(stream, operation);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  --state().others;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return cudaGraphDestroy(executable); }

// ---- kernels ----

cudaError_t QueueKernel(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  const unsigned threads = block.x * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z != 1 || block.z != 1 ||
      threads == 0 || threads > 1024) {
    return Fail(cudaErrorInvalidConfiguration);
  }
  return QueueWork(config.stream, [config, thread = std::move(thread)] { return RunKernel(config, thread); });
}

void __syncthreads() { Yield(); }

}  // namespace emulated_cuda

namespace weir::cuda_emulation {

void SetMachine(const Machine& machine) {
  ::emulated_cuda::state().machine = machine;
  ::emulated_cuda::state().random.seed(machine.seed);
  ::emulated_cuda::state().broken = ::emulated_cuda::cudaSuccess;
}

int64_t LiveObjects() {
  const auto& state = ::emulated_cuda::state();
  return static_cast<int64_t>(state.device_memory.size() + state.streams.size()) + state.others;
}

}  // namespace weir::cuda_emulation

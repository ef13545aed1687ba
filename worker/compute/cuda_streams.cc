#include "worker/compute/cuda_streams.h"

#include <algorithm>

#include "common/base/status_macros.h"
#include "common/cuda/cuda_libraries.h"

namespace weir::cuda {
namespace {

absl::Status MakeEvent(cudaEvent_t* event) {
  return ToStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "cudaEventCreate");
}

}  // namespace

Streams::~Streams() {
  // Failures have been seen before, or no caller is left to see them.
  static_cast<void>(WaitForAll());
  const auto destroy = [](cudaEvent_t event) {
    if (event != nullptr) cudaEventDestroy(event);
  };
  for (const Mark& mark : marks_) std::for_each(mark.begin(), mark.end(), destroy);
  destroy(computed_);
  destroy(uploaded_);
  for (const cudaStream_t stream : streams_) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

absl::Status Streams::Start() {
  for (cudaStream_t& stream : streams_) {
    WEIR_RETURN_IF_ERROR(
        ToStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  }
  WEIR_RETURN_IF_ERROR(MakeEvent(&computed_));
  WEIR_RETURN_IF_ERROR(MakeEvent(&uploaded_));
  for (Mark& mark : marks_) {
    for (cudaEvent_t& event : mark) WEIR_RETURN_IF_ERROR(MakeEvent(&event));
  }
  return absl::OkStatus();
}

absl::Status Streams::CopyToHost(void* to_host, const void* from, size_t bytes) {
  WEIR_RETURN_IF_ERROR(ToStatus(cudaEventRecord(computed_, streams_[kCompute]), "CopyToHost"));
  WEIR_RETURN_IF_ERROR(ToStatus(cudaStreamWaitEvent(streams_[kDownload], computed_), "CopyToHost"));
  return ToStatus(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, streams_[kDownload]),
                  "CopyToHost");
}

absl::Status Streams::CopyAhead(void* to, const void* from_host, size_t bytes, uint64_t after) {
  if (const Mark* mark = Pending(after)) {
    WEIR_RETURN_IF_ERROR(ToStatus(cudaStreamWaitEvent(streams_[kUpload], (*mark)[kCompute]), "CopyToDevice"));
    WEIR_RETURN_IF_ERROR(
        ToStatus(cudaStreamWaitEvent(streams_[kUpload], (*mark)[kDownload]), "CopyToDevice"));
  }
  return ToStatus(cudaMemcpyAsync(to, from_host, bytes, cudaMemcpyHostToDevice, streams_[kUpload]),
                  "CopyToDevice");
}

absl::Status Streams::CopyToDevice(void* to, const void* from_host, size_t bytes, uint64_t after) {
  WEIR_RETURN_IF_ERROR(CopyAhead(to, from_host, bytes, after));
  WEIR_RETURN_IF_ERROR(ToStatus(cudaEventRecord(uploaded_, streams_[kUpload]), "CopyToDevice"));
  return ToStatus(cudaStreamWaitEvent(streams_[kCompute], uploaded_), "CopyToDevice");
}

absl::Status Streams::Join(uint64_t mark) {
  const Mark* const events = Pending(mark);
  if (events == nullptr) return absl::OkStatus();
  return ToStatus(cudaStreamWaitEvent(streams_[kCompute], (*events)[kUpload]), "Join");
}

absl::Status Streams::Record(uint64_t* mark) {
  // A mark reuses the events of an older mark, which must have passed.
  if (next_mark_ > kMarks) WEIR_RETURN_IF_ERROR(Wait(next_mark_ - kMarks));
  const Mark& events = marks_[next_mark_ % kMarks];
  for (int i = 0; i < kStreams; ++i) {
    WEIR_RETURN_IF_ERROR(ToStatus(cudaEventRecord(events[i], streams_[i]), "Record"));
  }
  *mark = next_mark_++;
  return absl::OkStatus();
}

absl::Status Streams::Wait(uint64_t mark) {
  const Mark* const events = Pending(mark);
  if (events == nullptr) return absl::OkStatus();
  constexpr const char* kWork[] = {"compute on the device", "copying to the device",
                                   "copying from the device"};
  for (int i = 0; i < kStreams; ++i) {
    WEIR_RETURN_IF_ERROR(ToStatus(cudaEventSynchronize((*events)[i]), kWork[i]));
  }
  return absl::OkStatus();
}

bool Streams::Passed(uint64_t mark) const {
  const Mark* const events = Pending(mark);
  if (events == nullptr) return true;
  for (const cudaEvent_t event : *events) {
    if (cudaEventQuery(event) == cudaErrorNotReady) {
      cudaGetLastError();  // clears that result, which would count as an error
      return false;
    }
  }
  return true;
}

absl::Status Streams::WaitForAll() {
  absl::Status status;
  for (const cudaStream_t stream : streams_) {
    if (stream != nullptr) status.Update(ToStatus(cudaStreamSynchronize(stream), "work on the device"));
  }
  return status;
}

}  // namespace weir::cuda

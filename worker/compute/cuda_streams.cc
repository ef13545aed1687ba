#include "worker/compute/cuda_streams.h"

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
  for (const Mark& mark : marks_) {
    for (const cudaEvent_t event : {mark.computed, mark.uploaded, mark.downloaded}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
  for (const cudaEvent_t event : {computed_, uploaded_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  for (const cudaStream_t stream : {compute_, upload_, download_}) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

absl::Status Streams::Start() {
  for (cudaStream_t* stream : {&compute_, &upload_, &download_}) {
    WEIR_RETURN_IF_ERROR(
        ToStatus(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  }
  for (cudaEvent_t* event : {&computed_, &uploaded_}) WEIR_RETURN_IF_ERROR(MakeEvent(event));
  for (Mark& mark : marks_) {
    for (cudaEvent_t* event : {&mark.computed, &mark.uploaded, &mark.downloaded}) {
      WEIR_RETURN_IF_ERROR(MakeEvent(event));
    }
  }
  return absl::OkStatus();
}

absl::Status Streams::CopyToHost(void* to_host, const void* from, size_t bytes) {
  WEIR_RETURN_IF_ERROR(ToStatus(cudaEventRecord(computed_, compute_), "CopyToHost"));
  WEIR_RETURN_IF_ERROR(ToStatus(cudaStreamWaitEvent(download_, computed_), "CopyToHost"));
  return ToStatus(cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, download_), "CopyToHost");
}

absl::Status Streams::CopyAhead(void* to, const void* from_host, size_t bytes, uint64_t after) {
  if (const Mark* mark = Pending(after)) {
    WEIR_RETURN_IF_ERROR(ToStatus(cudaStreamWaitEvent(upload_, mark->computed), "CopyToDevice"));
    WEIR_RETURN_IF_ERROR(ToStatus(cudaStreamWaitEvent(upload_, mark->downloaded), "CopyToDevice"));
  }
  return ToStatus(cudaMemcpyAsync(to, from_host, bytes, cudaMemcpyHostToDevice, upload_), "CopyToDevice");
}

absl::Status Streams::CopyToDevice(void* to, const void* from_host, size_t bytes, uint64_t after) {
  WEIR_RETURN_IF_ERROR(CopyAhead(to, from_host, bytes, after));
  WEIR_RETURN_IF_ERROR(ToStatus(cudaEventRecord(uploaded_, upload_), "CopyToDevice"));
  return ToStatus(cudaStreamWaitEvent(compute_, uploaded_), "CopyToDevice");
}

absl::Status Streams::Join(uint64_t mark) {
  const Mark* const events = Pending(mark);
  if (events == nullptr) return absl::OkStatus();
  return ToStatus(cudaStreamWaitEvent(compute_, events->uploaded), "Join");
}

absl::Status Streams::Record(uint64_t* mark) {
  // A mark reuses the events of an older mark, which must have passed.
  if (next_mark_ > kMarks) WEIR_RETURN_IF_ERROR(Wait(next_mark_ - kMarks));
  const Mark& events = marks_[next_mark_ % kMarks];
  WEIR_RETURN_IF_ERROR(ToStatus(cudaEventRecord(events.computed, compute_), "Record"));
  WEIR_RETURN_IF_ERROR(ToStatus(cudaEventRecord(events.uploaded, upload_), "Record"));
  WEIR_RETURN_IF_ERROR(ToStatus(cudaEventRecord(events.downloaded, download_), "Record"));
  *mark = next_mark_++;
  return absl::OkStatus();
}

absl::Status Streams::Wait(uint64_t mark) {
  const Mark* const events = Pending(mark);
  if (events == nullptr) return absl::OkStatus();
  WEIR_RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(events->computed), "compute on the device"));
  WEIR_RETURN_IF_ERROR(ToStatus(cudaEventSynchronize(events->uploaded), "copying to the device"));
  return ToStatus(cudaEventSynchronize(events->downloaded), "copying from the device");
}

bool Streams::Passed(uint64_t mark) const {
  const Mark* const events = Pending(mark);
  if (events == nullptr) return true;
  for (const cudaEvent_t event : {events->computed, events->uploaded, events->downloaded}) {
    if (cudaEventQuery(event) == cudaErrorNotReady) {
      cudaGetLastError();  // clears that result, which would count as an error
      return false;
    }
  }
  return true;
}

absl::Status Streams::WaitForAll() {
  absl::Status status;
  for (const cudaStream_t stream : {compute_, upload_, download_}) {
    if (stream != nullptr) status.Update(ToStatus(cudaStreamSynchronize(stream), "work on the device"));
  }
  return status;
}

}  // namespace weir::cuda

#include "client/tensors/gradient_memory.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

std::vector<int64_t> ElementsOf(const ModelSpec& model) {
  std::vector<int64_t> elements;
  for (const TensorSpec& tensor : model.tensors) elements.push_back(tensor.elements());
  return elements;
}

}  // namespace

GradientMemory::GradientMemory(const ModelSpec& model, bool shared)
    : elements_(ElementsOf(model)),
      bytes_(static_cast<uint64_t>(model.elements()) * sizeof(float)),
      shared_(shared),
      plain_(static_cast<size_t>(model.elements()), HeapFloats) {}

std::shared_ptr<float> GradientMemory::Take() {
  if (!shared_) return plain_.Take();
  std::shared_ptr<SharedSegment> segment;
  {
    MutexLock lock(segments_->mutex);
    if (!segments_->free.empty()) {
      segment = std::move(segments_->free.back());
      segments_->free.pop_back();
    }
  }
  if (segment == nullptr) {
    absl::StatusOr<std::unique_ptr<SharedSegment>> made = SharedSegment::Create(bytes_);
    if (!made.ok()) return plain_.Take();
    segment = *std::move(made);
    MutexLock lock(segments_->mutex);
    segments_->all.push_back(segment);
  }
  return {reinterpret_cast<float*>(segment->data()), [segments = segments_, segment](float*) {
            Segments& mine = *segments;
            MutexLock lock(mine.mutex);
            const bool usable = std::find(mine.all.begin(), mine.all.end(), segment) != mine.all.end();
            if (usable) mine.free.push_back(segment);
          }};
}

std::shared_ptr<const SharedSegment> GradientMemory::Find(const std::vector<const void*>& tensors) const {
  MutexLock lock(segments_->mutex);
  const auto found = std::find_if(segments_->all.begin(), segments_->all.end(),
                                  [&](const auto& segment) { return segment->data() == tensors[0]; });
  if (found == segments_->all.end()) return nullptr;
  const float* at = static_cast<const float*>(tensors[0]);
  for (size_t i = 0; i < tensors.size(); at += elements_[i], ++i) {
    if (tensors[i] != at) return nullptr;
  }
  return *found;
}

void GradientMemory::GiveUp(const SharedSegment& segment) {
  MutexLock lock(segments_->mutex);
  const auto is_it = [&](const auto& other) { return other.get() == &segment; };
  segments_->all.erase(std::remove_if(segments_->all.begin(), segments_->all.end(), is_it),
                       segments_->all.end());
}

}  // namespace weir

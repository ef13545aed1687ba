#include "client/flat_tensors.h"

namespace weir {
namespace {

template <typename Tensor, typename Float>
std::vector<Tensor> Cut(const ModelSpec& spec, absl::Span<Float> flat) {
  std::vector<Tensor> tensors;
  size_t offset = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    const size_t elements = static_cast<size_t>(tensor.elements());
    tensors.push_back({tensor.name, flat.subspan(offset, elements)});
    offset += elements;
  }
  return tensors;
}

}  // namespace

std::vector<MutableTensor> TensorsOf(const ModelSpec& spec, absl::Span<float> flat) {
  return Cut<MutableTensor>(spec, flat);
}

std::vector<ConstTensor> TensorsOf(const ModelSpec& spec, absl::Span<const float> flat) {
  return Cut<ConstTensor>(spec, flat);
}

}  // namespace weir

#include "client/flat_tensors.h"

namespace weir {
namespace {

// make(name, values) returns a Tensor.
template <typename Tensor, typename Value, typename Make>
std::vector<Tensor> Cut(const ModelSpec& spec, absl::Span<Value> flat, const Make& make) {
  std::vector<Tensor> tensors;
  size_t offset = 0;
  for (const TensorSpec& tensor : spec.tensors) {
    const size_t elements = static_cast<size_t>(tensor.elements());
    tensors.push_back(make(tensor.name, flat.subspan(offset, elements)));
    offset += elements;
  }
  return tensors;
}

}  // namespace

std::vector<MutableTensor> TensorsOf(const ModelSpec& spec, absl::Span<float> flat) {
  return Cut<MutableTensor>(spec, flat, [](const auto& name, auto values) {
    return MutableTensor{name, values};
  });
}

std::vector<ConstTensor> TensorsOf(const ModelSpec& spec, absl::Span<const float> flat) {
  return Cut<ConstTensor>(spec, flat, [](const auto& name, auto values) {
    return ConstTensor{name, values};
  });
}

std::vector<ConstTensor> TensorsOf(const ModelSpec& spec, absl::Span<const uint16_t> flat) {
  return Cut<ConstTensor>(spec, flat, [](const auto& name, auto values) {
    return ConstTensor{name, {}, values};
  });
}

}  // namespace weir

#include "bench/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "common/optimizer/kernels.h"
#include "proto/job_config.pb.h"

namespace weir::bench {
namespace {

constexpr size_t kHugePage = 2 << 20;

size_t MappedBytes(int64_t elements) {
  return (static_cast<size_t>(elements) * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
}

Optimizer MakeOptimizer(const std::string& name) {
  v1::OptimizerConfig config;
  config.set_type(name == "sgd"    ? v1::OptimizerConfig::KIND_SGD
                  : name == "adam" ? v1::OptimizerConfig::KIND_ADAM
                                   : v1::OptimizerConfig::KIND_MOMENTUM);
  return *Optimizer::Create(config, BestKernels());
}

}  // namespace

Tensor::Tensor(int64_t elements, float value) : elements_(elements) {
  // One huge page more than needed, so that the tensor starts at a huge page's border.
  const size_t bytes = MappedBytes(elements) + kHugePage;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    std::fprintf(stderr, "weir_bench: no memory for %zu bytes\n", bytes);
    std::exit(1);
  }
  const uintptr_t start = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  if (aligned != start) munmap(mapped, aligned - start);
  const uintptr_t end = aligned + MappedBytes(elements);
  if (start + bytes != end) munmap(reinterpret_cast<void*>(end), start + bytes - end);
  data_ = reinterpret_cast<float*>(aligned);
  madvise(data_, MappedBytes(elements), MADV_HUGEPAGE);
  std::fill(data_, data_ + MappedBytes(elements) / sizeof(float), value);
}

Tensor::~Tensor() {
  if (data_ != nullptr) munmap(data_, MappedBytes(elements_));
}

Tensor::Tensor(Tensor&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), elements_(other.elements_) {}

Parameters::Parameters(const std::string& optimizer, int64_t elements)
    : optimizer_(MakeOptimizer(optimizer)) {
  memory_.reserve(6);
  for (int version = 0; version < 2; ++version) {
    weights_[version] = memory_.emplace_back(elements, 0).data();
    for (size_t slot = 0; slot < optimizer_.slots().size(); ++slot) {
      slots_[slot][version] = memory_.emplace_back(elements, 0).data();
    }
  }
}

const float* Parameters::Apply(int64_t first, int64_t n, const void* gradient, int from) const {
  ApplyArgs args;
  args.n = n;
  args.gradient = gradient;
  args.weights_in = weights_[from] + first;
  args.weights_out = weights_[1 - from] + first;
  for (size_t slot = 0; slot < optimizer_.slots().size(); ++slot) {
    args.slots_in[slot] = slots_[slot][from] + first;
    args.slots_out[slot] = slots_[slot][1 - from] + first;
  }
  args.learning_rate = 1e-6;
  args.t = 1000;
  optimizer_.Apply(args);
  return args.weights_out;
}

}  // namespace weir::bench

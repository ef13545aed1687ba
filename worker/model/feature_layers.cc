#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/model/layer.h"

namespace weir {
namespace {

using Shape = std::vector<int64_t>;

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(const EmbeddingSource& source, bool mean)
      : Layer({source.dim}), source_(source), mean_(mean) {}

  std::optional<EmbeddingSource> embedding() const override { return source_; }
  void Forward(ComputeBackend*, const Pass& pass, const float*, Inputs, float* y) override {
    const KeyColumn& column = pass.batch->keys[source_.column];
    const TableRows& rows = *RowsOf(pass);
    positions_.clear();
    for (size_t i = 0; i < static_cast<size_t>(pass.n); ++i, y += source_.dim) {
      std::fill(y, y + source_.dim, 0.0f);
      for (size_t k = column.begin(i); k < column.end(i); ++k) {
        const size_t position = rows.positions.at(column.keys[k]) * static_cast<size_t>(source_.dim);
        positions_.push_back(position);
        Add(rows.values.data() + position, 1, y);
      }
      const float factor = Factor(column, i);
      if (factor != 1) std::for_each(y, y + source_.dim, [factor](float& value) { value *= factor; });
    }
  }
  void Backward(ComputeBackend*, const Pass& pass, const float*, Inputs, const float*, const float* dy,
                Gradients, float*) override {
    const KeyColumn& column = pass.batch->keys[source_.column];
    float* const gradients =
        (*pass.row_gradients)[static_cast<size_t>(RowsOf(pass) - pass.rows->begin())].data();
    size_t next = 0;
    for (size_t i = 0; i < static_cast<size_t>(pass.n); ++i, dy += source_.dim) {
      const float factor = Factor(column, i);
      for (size_t k = column.begin(i); k < column.end(i); ++k)
        Add(dy, factor, gradients + positions_[next++]);
    }
  }

 private:
  std::vector<TableRows>::const_iterator RowsOf(const Pass& pass) const {
    return std::find_if(pass.rows->begin(), pass.rows->end(),
                        [this](const TableRows& rows) { return rows.table == source_.table; });
  }
  float Factor(const KeyColumn& column, size_t example) const {
    const size_t keys = column.end(example) - column.begin(example);
    return mean_ && keys > 1 ? 1 / static_cast<float>(keys) : 1;
  }
  void Add(const float* __restrict from, float factor, float* __restrict to) const {
    for (int64_t c = 0; c < source_.dim; ++c) to[c] += factor * from[c];
  }

  const EmbeddingSource source_;
  const bool mean_;
  std::vector<size_t> positions_;  // of each key's row in the values, of the pass that Forward() made last
};

class Concat final : public Layer {
 public:
  explicit Concat(std::vector<int64_t> widths)
      : Layer({std::accumulate(widths.begin(), widths.end(), int64_t{0})}), widths_(std::move(widths)) {}

  void Forward(ComputeBackend*, const Pass& pass, const float*, Inputs x, float* y) override {
    for (size_t j = 0; j < widths_.size(); y += widths_[j++]) {
      for (int64_t i = 0; i < pass.n; ++i) {
        std::copy_n(x[j] + i * widths_[j], widths_[j], y + i * shape_[0]);
      }
    }
  }
  void Backward(ComputeBackend*, const Pass& pass, const float*, Inputs, const float*, const float* dy,
                Gradients dx, float*) override {
    for (size_t j = 0; j < widths_.size(); dy += widths_[j++]) {
      if (dx[j] == nullptr) continue;
      for (int64_t i = 0; i < pass.n; ++i) {
        std::copy_n(dy + i * shape_[0], widths_[j], dx[j] + i * widths_[j]);
      }
    }
  }

 private:
  const std::vector<int64_t> widths_;
};

class Cross final : public Layer {
 public:
  Cross(std::string name, int64_t elements, Initializer init)
      : Layer({elements}), name_(std::move(name)), elements_(elements), init_(init) {}

  std::vector<TensorSpec> Tensors() const override {
    return {{name_ + "/weight", {elements_, elements_}, TensorKind::kParameter, init_},
            {name_ + "/bias", {elements_}, TensorKind::kParameter, Initializer::Zeros()}};
  }
  absl::Status Reserve(ComputeBackend* backend, int64_t max_batch) override {
    for (Buffer<float>* buffer : {&inner_, &slope_}) {
      WEIR_ASSIGN_OR_RETURN(
          *buffer, Buffer<float>::Make(backend, ComputeBackend::Memory::kDevice, max_batch * elements_));
    }
    return absl::OkStatus();
  }
  void Forward(ComputeBackend* backend, const Pass& pass, const float* weights, Inputs x, float* y) override {
    float* const inner = inner_.get();
    backend->Gemm(false, false, pass.n, elements_, elements_, 1, x[0], weights, 0, inner);
    backend->AddBias(pass.n, elements_, weights + elements_ * elements_, inner);
    for (int64_t i = 0; i < pass.n * elements_; ++i) y[i] = x[1][i] * inner[i] + x[0][i];
  }
  void Backward(ComputeBackend* backend, const Pass& pass, const float* weights, Inputs x, const float*,
                const float* dy, Gradients dx, float* gradients) override {
    const int64_t all = pass.n * elements_;
    const float* const inner = inner_.get();
    float* const slope = slope_.get();
    for (int64_t i = 0; i < all; ++i) slope[i] = dy[i] * x[1][i];
    backend->Gemm(true, false, elements_, elements_, pass.n, 1, x[0], slope, 1, gradients);
    backend->BiasGradient(pass.n, elements_, slope, gradients + elements_ * elements_);
    if (dx[0] != nullptr) {
      std::copy_n(dy, all, dx[0]);
      backend->Gemm(false, true, pass.n, elements_, elements_, 1, slope, weights, 1, dx[0]);
    }
    if (dx[1] != nullptr) {
      for (int64_t i = 0; i < all; ++i) dx[1][i] = dy[i] * inner[i];
    }
  }

 private:
  const std::string name_;
  const int64_t elements_;
  const Initializer init_;
  // W x + b of the current pass, and its gradient.
  Buffer<float> inner_, slope_;
};

class FactorizationMachine final : public Layer {
 public:
  FactorizationMachine(std::string name, int64_t inputs, int64_t dim)
      : Layer({1}), name_(std::move(name)), inputs_(static_cast<size_t>(inputs)), dim_(dim) {}

  std::vector<TensorSpec> Tensors() const override {
    return {{name_ + "/bias", {1}, TensorKind::kParameter, Initializer::Zeros()}};
  }
  absl::Status Reserve(ComputeBackend* backend, int64_t max_batch) override {
    WEIR_ASSIGN_OR_RETURN(sums_,
                          Buffer<float>::Make(backend, ComputeBackend::Memory::kDevice, max_batch * dim_));
    return absl::OkStatus();
  }
  // The pairs of all inputs, in linear time: half of (the square of the sum - the sum of the squares).
  void Forward(ComputeBackend*, const Pass& pass, const float* weights, Inputs x, float* y) override {
    float* sum = sums_.get();
    for (int64_t i = 0; i < pass.n; ++i, sum += dim_) {
      std::fill(sum, sum + dim_, 0.0f);
      float squares = 0;
      for (size_t j = 0; j < inputs_; ++j) {
        const float* const row = x[j] + i * dim_;
        sum[0] += row[0];
        for (int64_t c = 1; c < dim_; ++c) {
          sum[c] += row[c];
          squares += row[c] * row[c];
        }
      }
      float pairs = 0;
      for (int64_t c = 1; c < dim_; ++c) pairs += sum[c] * sum[c];
      y[i] = weights[0] + sum[0] + (pairs - squares) / 2;
    }
  }
  void Backward(ComputeBackend*, const Pass& pass, const float*, Inputs x, const float*, const float* dy,
                Gradients dx, float* gradients) override {
    const float* sum = sums_.get();
    for (int64_t i = 0; i < pass.n; ++i, sum += dim_) {
      gradients[0] += dy[i];
      for (size_t j = 0; j < inputs_; ++j) {
        if (dx[j] == nullptr) continue;
        const float* const row = x[j] + i * dim_;
        float* const slope = dx[j] + i * dim_;
        slope[0] = dy[i];
        for (int64_t c = 1; c < dim_; ++c) slope[c] = dy[i] * (sum[c] - row[c]);
      }
    }
  }

 private:
  const std::string name_;
  const size_t inputs_;
  const int64_t dim_;
  Buffer<float> sums_;  // [n, dim], over the inputs, of the current pass
};

}  // namespace

std::unique_ptr<Layer> MakeEmbeddingLayer(const EmbeddingSource& source, bool mean) {
  return std::make_unique<EmbeddingLayer>(source, mean);
}
std::unique_ptr<Layer> MakeConcat(const std::vector<Shape>& shapes) {
  std::vector<int64_t> widths;
  for (const Shape& shape : shapes) widths.push_back(shape[0]);
  return std::make_unique<Concat>(std::move(widths));
}
std::unique_ptr<Layer> MakeCross(const std::string& name, int64_t elements, Initializer init) {
  return std::make_unique<Cross>(name, elements, init);
}
std::unique_ptr<Layer> MakeFactorizationMachine(const std::string& name, int64_t inputs, int64_t dim) {
  return std::make_unique<FactorizationMachine>(name, inputs, dim);
}

}  // namespace weir

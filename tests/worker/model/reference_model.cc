#include "tests/worker/model/reference_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "common/base/random.h"

namespace weir {
namespace {

using v1::LayerConfig;

// One example between two layers; an image where height > 0, else flat with all values as channels.
struct Values {
  int64_t channels = 0, height = 0, width = 0;
  std::vector<double> x;

  double at(int64_t c, int64_t y, int64_t z) const {
    if (y < 0 || y >= height || z < 0 || z >= width) return 0;
    return x[static_cast<size_t>((c * height + y) * width + z)];
  }
};

const double* Dense(int64_t units, const double* w, Values* v) {
  const int64_t inputs = static_cast<int64_t>(v->x.size());
  std::vector<double> out;
  for (int64_t u = 0; u < units; ++u) {
    double sum = w[inputs * units + u];
    for (int64_t i = 0; i < inputs; ++i) sum += v->x[static_cast<size_t>(i)] * w[i * units + u];
    out.push_back(sum);
  }
  *v = {units, 0, 0, out};
  return w + inputs * units + units;
}

const double* Conv2d(const LayerConfig& layer, const double* w, Values* v) {
  const int64_t kernel = layer.kernel(), stride = layer.has_stride() ? layer.stride() : 1,
                padding = layer.padding();
  const int64_t filters = layer.filters(), patch = v->channels * kernel * kernel;
  Values out{filters,
             (v->height + 2 * padding - kernel) / stride + 1,
             (v->width + 2 * padding - kernel) / stride + 1,
             {}};
  for (int64_t f = 0; f < filters; ++f) {
    for (int64_t y = 0; y < out.height; ++y) {
      for (int64_t x = 0; x < out.width; ++x) {
        double sum = w[filters * patch + f];
        for (int64_t p = 0; p < patch; ++p) {
          const int64_t c = p / (kernel * kernel), ky = p / kernel % kernel, kx = p % kernel;
          sum += w[f * patch + p] * v->at(c, y * stride + ky - padding, x * stride + kx - padding);
        }
        out.x.push_back(sum);
      }
    }
  }
  *v = out;
  return w + filters * patch + filters;
}

void MaxPool(const LayerConfig& layer, Values* v) {
  const int64_t kernel = layer.kernel(), stride = layer.has_stride() ? layer.stride() : kernel;
  Values out{v->channels, (v->height - kernel) / stride + 1, (v->width - kernel) / stride + 1, {}};
  for (int64_t c = 0; c < out.channels; ++c) {
    for (int64_t y = 0; y < out.height; ++y) {
      for (int64_t x = 0; x < out.width; ++x) {
        double best = -std::numeric_limits<double>::infinity();
        for (int64_t k = 0; k < kernel * kernel; ++k) {
          best = std::max(best, v->at(c, y * stride + k / kernel, x * stride + k % kernel));
        }
        out.x.push_back(best);
      }
    }
  }
  *v = out;
}

}  // namespace

double ReferenceLoss(const v1::ModelConfig& config, const std::vector<int64_t>& input_shape,
                     absl::Span<const double> weights, const Batch& batch, const RandomContext& random) {
  const size_t elements = batch.features.size() / static_cast<size_t>(batch.n);
  double total = 0;
  for (int64_t i = 0; i < batch.n; ++i) {
    const auto first = batch.features.begin() + i * static_cast<int64_t>(elements);
    Values v;
    v.x.assign(first, first + static_cast<int64_t>(elements));
    if (input_shape.size() == 3)
      v.channels = input_shape[0], v.height = input_shape[1], v.width = input_shape[2];
    const double* w = weights.data();
    for (int l = 0; l < config.layers_size(); ++l) {
      const LayerConfig& layer = config.layers(l);
      switch (layer.type()) {
        case LayerConfig::LAYER_DENSE:
          w = Dense(layer.units(), w, &v);
          break;
        case LayerConfig::LAYER_CONV2D:
          w = Conv2d(layer, w, &v);
          break;
        case LayerConfig::LAYER_MAX_POOL:
          MaxPool(layer, &v);
          break;
        case LayerConfig::LAYER_RELU:
          for (double& x : v.x) x = std::max(x, 0.0);
          break;
        case LayerConfig::LAYER_GELU:
          for (double& x : v.x) x *= 0.5 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
          break;
        case LayerConfig::LAYER_TANH:
          for (double& x : v.x) x = std::tanh(x);
          break;
        case LayerConfig::LAYER_DROPOUT: {
          const uint64_t key = RandomKey(random.seed, "dropout/dropout_" + std::to_string(l));
          const uint64_t start = static_cast<uint64_t>(random.first_example + i) * v.x.size();
          for (size_t j = 0; j < v.x.size(); ++j) {
            const float u = UniformFloat(Philox(key, random.batch, (start + j) / 4)[(start + j) % 4]);
            v.x[j] = u < layer.rate() ? 0 : v.x[j] / (1 - double{layer.rate()});
          }
          break;
        }
        default:
          break;  // flatten: the values stay in their order
      }
    }
    if (config.loss() == v1::ModelConfig::LOSS_MEAN_SQUARED_ERROR) {
      total += std::pow(v.x[0] - batch.targets[static_cast<size_t>(i)], 2);
    } else {
      double sum = 0;
      for (const double x : v.x) sum += std::exp(x);
      total += std::log(sum) - v.x[static_cast<size_t>(batch.labels[static_cast<size_t>(i)])];
    }
  }
  return total;
}

}  // namespace weir

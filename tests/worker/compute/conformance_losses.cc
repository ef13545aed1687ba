#include "tests/worker/compute/conformance_tensor.h"

namespace weir::conformance {

void CheckLosses(ComputeBackend* b) {
  for (const int64_t n : {1, 7, 31, 33, 1000}) {
    for (const int64_t classes : {1, 2, 10, 33, 1000}) {
      if (n * classes > 50000) continue;
      for (const float reach : {1.0f, 200.0f}) {
        CAPTURE(n, classes, reach);
        const std::vector<float> logits = Random(n * classes, 10, reach),
                                 targets = Random(n * classes, 11, reach);
        std::vector<int32_t> labels, largest;
        Doubles losses, dlogits, errors, dpredictions;
        for (int64_t i = 0; i < n; ++i) {
          const auto row = logits.begin() + i * classes;
          labels.push_back(static_cast<int32_t>((i * 7) % classes));
          largest.push_back(static_cast<int32_t>(std::max_element(row, row + classes) - row));
          double sum = 0, error = 0;
          for (int64_t c = 0; c < classes; ++c) sum += std::exp(double{row[c]} - row[largest.back()]);
          losses.push_back(std::log(sum) + row[largest.back()] - row[labels.back()]);
          for (int64_t c = 0; c < classes; ++c) {
            dlogits.push_back(0.25 *
                              (std::exp(double{row[c]} - row[largest.back()]) / sum - (c == labels.back())));
            const double difference = double{row[c]} - targets[static_cast<size_t>(i * classes + c)];
            error += difference * difference / static_cast<double>(classes);
            dpredictions.push_back(0.25 * 2 * difference / static_cast<double>(classes));
          }
          errors.push_back(error);
        }
        Floats device_logits(b, logits), device_targets(b, targets);
        Tensor<int32_t> device_labels(b, labels), argmax(b, n);
        b->Argmax(n, classes, device_logits.get(), argmax.get());
        CHECK(argmax.Read() == largest);
        for (const bool gradient : {true, false}) {
          Floats out(b, n), slope(b, n * classes), squared(b, n), squared_slope(b, n * classes);
          b->SoftmaxCrossEntropy(n, classes, device_logits.get(), device_labels.get(), 0.25f, out.get(),
                                 gradient ? slope.get() : nullptr);
          b->MeanSquaredError(n, classes, device_logits.get(), device_targets.get(), 0.25f, squared.get(),
                              gradient ? squared_slope.get() : nullptr);
          CheckClose(out.Read(), losses, 1e-5);
          CheckClose(squared.Read(), errors, 1e-5);
          if (gradient) CheckClose(slope.Read(), dlogits, 1e-5);
          if (gradient) CheckClose(squared_slope.Read(), dpredictions, 1e-5);
        }
      }
    }
  }
  for (const int64_t n : {1, 33, 1000}) {
    for (const float reach : {1.0f, 200.0f}) {
      CAPTURE(n, reach);
      const std::vector<float> logits = Random(n, 12, reach);
      std::vector<float> targets;
      Doubles losses, dlogits;
      for (int64_t i = 0; i < n; ++i) {
        const double x = logits[static_cast<size_t>(i)], target = i % 3 == 0 ? 1 : 0;
        targets.push_back(static_cast<float>(target));
        // Of the wrong class: log(1 + exp(z)), where z is how far the logit is on its side.
        const double z = target == 1 ? -x : x;
        losses.push_back(std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z))));
        dlogits.push_back(0.25 * (1 / (1 + std::exp(-x)) - target));
      }
      Floats device_logits(b, logits), device_targets(b, targets);
      for (const bool gradient : {true, false}) {
        Floats out(b, n), slope(b, n);
        b->SigmoidCrossEntropy(n, device_logits.get(), device_targets.get(), 0.25f, out.get(),
                               gradient ? slope.get() : nullptr);
        CheckClose(out.Read(), losses, 1e-5);
        if (gradient) CheckClose(slope.Read(), dlogits, 1e-5);
      }
    }
  }
  Floats equal(b, std::vector<float>{3, 3, 3});
  Tensor<int32_t> first(b, 1);
  b->Argmax(1, 3, equal.get(), first.get());
  CHECK(first.Read()[0] == 0);
}

}  // namespace weir::conformance

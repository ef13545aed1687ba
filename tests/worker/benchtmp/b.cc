#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "google/protobuf/text_format.h"
#include "worker/data/example_order.h"
#include "worker/data/load_data.h"
#include "worker/model/model.h"
using namespace weir;
static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
int main(int argc, char** argv) {
  v1::DataConfig dc;
  dc.set_format(v1::DataConfig::FORMAT_IDX);
  std::string d = "/usr/share/datasets/fashion-mnist/";
  dc.mutable_train()->set_images(d + "train-images-idx3-ubyte.gz");
  dc.mutable_train()->set_labels(d + "train-labels-idx1-ubyte.gz");
  dc.mutable_test()->set_images(d + "t10k-images-idx3-ubyte.gz");
  dc.mutable_test()->set_labels(d + "t10k-labels-idx1-ubyte.gz");
  double t = now();
  auto data = LoadData(dc, "", v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY);
  if (!data.ok()) {
    puts(std::string(data.status().message()).c_str());
    return 1;
  }
  printf("load %.2f s\n", now() - t);
  std::string R = "layers{type:LAYER_RELU}", F = "layers{type:LAYER_FLATTEN}";
  auto D = [](int u) { return "layers{type:LAYER_DENSE units:" + std::to_string(u) + "}"; };
  auto C = [](int f) { return "layers{type:LAYER_CONV2D kernel:5 filters:" + std::to_string(f) + "}"; };
  std::string P = "layers{type:LAYER_MAX_POOL kernel:2}";
  std::string G = "layers{type:LAYER_GELU}", O = "layers{type:LAYER_DROPOUT rate:0.2}";
  std::string O3 = "layers{type:LAYER_DROPOUT rate:0.3}";
  auto C2 = [](int f) {
    return "layers{type:LAYER_CONV2D kernel:5 padding:2 filters:" + std::to_string(f) + "}";
  };
  std::vector<std::string> texts = {C(8) + R + P + C(16) + R + P + F + O3 + D(128) + R + D(10),
                                    C(8) + R + P + C(16) + R + P + F + D(128) + R + O3 + D(10),
                                    C2(8) + R + P + C2(16) + R + P + F + O3 + D(128) + R + D(10),
                                    C(16) + R + P + C(32) + R + P + F + O3 + D(128) + R + D(10)};
  (void)G;
  (void)O;
  int epochs = argc > 1 ? atoi(argv[1]) : 1;
  int only = argc > 2 ? atoi(argv[2]) : -1;
  for (int m = 0; m < 4; ++m) {
    if (only >= 0 && m != only) continue;
    v1::ModelConfig mc;
    google::protobuf::TextFormat::ParseFromString(texts[m], &mc);
    auto be = *MakeComputeBackend("cpu", 1);
    const int64_t B = 64;
    auto model = *Model::Create(mc, data->train.shape(), 10, B, be.get());
    auto& spec = model->spec();
    for (size_t i = 0; i < spec.tensors.size(); ++i)
      FillInitialValues(1, spec.tensors[i], 0,
                        model->weights().subspan(spec.offset(i), spec.tensors[i].elements()));
    ExampleOrder order(60000, 1);
    std::vector<float> v(model->weights().size());
    std::vector<int32_t> ix(B);
    Batch b;
    double tf = 0, tg = 0, tu = 0;
    int64_t steps = epochs * 60000 / B;

    for (int64_t s = 0; s < steps; ++s) {
      double t0 = now();
      order.Fill(s * B, absl::MakeSpan(ix));
      data->train.Gather(ix, &b);
      double t1 = now();
      model->ZeroGradients();
      (void)*model->ForwardBackward(b, B, {1, (uint64_t)s, 0});
      double t2 = now();
      float *w = model->weights().data(), *g = model->gradients().data();
      double lr = 0.05 * (s < steps * 0.8 ? 1 : 0.1);
      for (size_t i = 0; i < v.size(); ++i) {
        v[i] = 0.9f * v[i] + g[i];
        w[i] -= float(lr) * v[i];
      }
      double t3 = now();
      tg += t1 - t0;
      tf += t2 - t1;
      tu += t3 - t2;
    }
    double t0 = now();
    auto ev = *model->Evaluate(*data->test);
    double te = now() - t0;
    printf(
        "model %d P=%zu: fwd+bwd %.0f ex/s (%.0f us/step) gather %.0f us update %.0f us; test acc %.4f loss "
        "%.3f eval %.2fs\n",
        m, v.size(), steps * B / tf, tf / steps * 1e6, tg / steps * 1e6, tu / steps * 1e6, *ev.accuracy,
        ev.loss, te);
  }
}

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "google/protobuf/text_format.h"
#include "worker/data/example_order.h"
#include "worker/data/load_data.h"
#include "worker/model/model.h"
using namespace weir;
int main(int argc, char** argv) {
  v1::DataConfig dc;
  dc.set_format(v1::DataConfig::FORMAT_DIGITS);
  auto data = LoadData(dc, "", v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY);
  std::string R = "layers{type:LAYER_RELU}", F = "layers{type:LAYER_FLATTEN}";
  auto D = [](int u) { return "layers{type:LAYER_DENSE units:" + std::to_string(u) + "}"; };
  auto C = [](int f) {
    return "layers{type:LAYER_CONV2D kernel:3 padding:1 filters:" + std::to_string(f) + "}";
  };
  auto O = [](double r) { return "layers{type:LAYER_DROPOUT rate:" + std::to_string(r) + "}"; };
  std::string P = "layers{type:LAYER_MAX_POOL kernel:2}";
  struct {
    const char* n;
    std::string t;
  } ms[] = {{"mlp64", F + D(64) + R + D(10)},
            {"mlp128", F + D(128) + R + D(10)},
            {"mlp256-drop.2", F + D(256) + R + O(0.2) + D(10)},
            {"conv16-pool-conv32-pool-dense", C(16) + R + P + C(32) + R + P + F + O(0.25) + D(10)}};
  for (auto& mt : ms)
    for (int B : {32, 128})
      for (double lr : {0.02, 0.05, 0.1}) {
        printf("%s B=%d lr=%.2f:", mt.n, B, lr);
        for (int seed = 1; seed <= 5; ++seed) {
          v1::ModelConfig mc;
          google::protobuf::TextFormat::ParseFromString(mt.t, &mc);
          auto be = *MakeComputeBackend("cpu", 1);
          auto model = *Model::Create(mc, data->train.shape(), 10, B, be.get());
          auto& spec = model->spec();
          for (size_t i = 0; i < spec.tensors.size(); ++i)
            FillInitialValues(seed, spec.tensors[i], 0,
                              model->weights().subspan(spec.offset(i), spec.tensors[i].elements()));
          ExampleOrder order(1500, seed);
          std::vector<float> v(model->weights().size());
          std::vector<int32_t> ix(B);
          Batch b;
          int64_t steps = 30 * 1500 / B;
          for (int64_t s = 0; s < steps; ++s) {
            order.Fill(s * B, absl::MakeSpan(ix));
            data->train.Gather(ix, &b);
            model->ZeroGradients();
            (void)*model->ForwardBackward(b, B, {(uint64_t)seed, (uint64_t)s, 0});
            float *w = model->weights().data(), *g = model->gradients().data();
            double l = lr * 0.5 * (1 + cos(3.14159 * s / steps));
            for (size_t i = 0; i < v.size(); ++i) {
              v[i] = 0.9f * v[i] + g[i];
              w[i] -= float(l) * v[i];
            }
          }
          printf(" %.4f", *model->Evaluate(*data->test)->accuracy);
          fflush(stdout);
        }
        puts("");
      }
}

// A training job on ps-lite, for `./dev bench peers`: peers.py builds this file with ps-lite's sources and
// starts it once for each process. The environment says which (DMLC_ROLE, as ps-lite reads it). The model is
// the MLP 784-128-10 with ReLU and softmax cross-entropy; the servers apply plain SGD.
//
//   pslite_driver async|sync|none DATA STEPS WARMUP BATCH LEARNING_RATE
//
// DATA is a folder with the files "images" (bytes, 784 an example) and "labels" (a byte each). A worker
// prints a line of JSON. "none" is one worker that only computes, without ps-lite.
//
// The exchange is ps-lite's fastest: one key for each server, that is, one message each way with all that the
// server holds, gradient and weights in one call (ZPushPull), no copy of either on the server. So an async
// worker may be sent weights while another worker's gradient changes them.
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ps/ps.h"

namespace {

constexpr int kInputs = 784, kHidden = 128, kClasses = 10;
// The parameters, end to end.
constexpr int kW1 = 0, kB1 = kW1 + kInputs * kHidden, kW2 = kB1 + kHidden, kB2 = kW2 + kHidden * kClasses;
constexpr int kParameters = kB2 + kClasses;
constexpr int kInit = 1;  // the command of a push that brings the first weights

struct Flags {
  std::string mode, data;
  int steps, warmup, batch;
  float learning_rate;
};

std::vector<uint8_t> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(1);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

// Batches of a training set in random order, and the gradient of the loss over each.
class Model {
 public:
  Model(const Flags& flags, int seed)
      : batch_(flags.batch),
        images_(ReadFile(flags.data + "/images")),
        labels_(ReadFile(flags.data + "/labels")),
        random_(static_cast<uint32_t>(seed)),
        order_(labels_.size()),
        x_(Floats(kInputs)),
        hidden_(Floats(kHidden)),
        hidden_slope_(Floats(kHidden)),
        out_(Floats(kClasses)) {
    for (size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    next_ = order_.size();
  }

  static std::vector<float> InitialWeights() {
    std::mt19937 random(1);
    std::vector<float> weights(kParameters, 0.0f);
    std::normal_distribution<float> first(0, std::sqrt(2.0f / kInputs)), second(0, std::sqrt(2.0f / kHidden));
    std::generate(weights.begin() + kW1, weights.begin() + kB1, [&] { return first(random); });
    std::generate(weights.begin() + kW2, weights.begin() + kB2, [&] { return second(random); });
    return weights;
  }

  // The gradient of the mean loss over the next batch; returns that loss.
  float Compute(const float* w, float* gradient) {
    GatherBatch();
    Layer(kInputs, kHidden, x_.data(), w + kW1, w + kB1, hidden_.data());
    for (float& h : hidden_) h = std::max(h, 0.0f);
    Layer(kHidden, kClasses, hidden_.data(), w + kW2, w + kB2, out_.data());
    const float loss = SoftmaxCrossEntropy();
    // out_ is the slope of the loss now.
    LayerGradient(kHidden, kClasses, hidden_.data(), out_.data(), gradient + kW2, gradient + kB2);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, batch_, kHidden, kClasses, 1, out_.data(), kClasses,
                w + kW2, kClasses, 0, hidden_slope_.data(), kHidden);
    for (size_t i = 0; i < hidden_.size(); ++i) {
      if (hidden_[i] <= 0) hidden_slope_[i] = 0;
    }
    LayerGradient(kInputs, kHidden, x_.data(), hidden_slope_.data(), gradient + kW1, gradient + kB1);
    return loss;
  }

 private:
  std::vector<float> Floats(int width) const {
    return std::vector<float>(static_cast<size_t>(batch_ * width));
  }

  void GatherBatch() {
    if (next_ + static_cast<size_t>(batch_) > order_.size()) {
      std::shuffle(order_.begin(), order_.end(), random_);
      next_ = 0;
    }
    for (int i = 0; i < batch_; ++i) {
      const uint8_t* image = images_.data() + order_[next_ + static_cast<size_t>(i)] * kInputs;
      for (int j = 0; j < kInputs; ++j)
        x_[static_cast<size_t>(i * kInputs + j)] = static_cast<float>(image[j]) / 255;
    }
    first_ = next_;
    next_ += static_cast<size_t>(batch_);
  }

  // y = x w + b
  void Layer(int in, int out, const float* x, const float* w, const float* b, float* y) const {
    for (int i = 0; i < batch_; ++i) std::copy_n(b, out, y + i * out);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, batch_, out, in, 1, x, in, w, out, 1, y, out);
  }

  void LayerGradient(int in, int out, const float* x, const float* slope, float* dw, float* db) const {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, in, out, batch_, 1, x, in, slope, out, 0, dw, out);
    std::fill_n(db, out, 0.0f);
    for (int i = 0; i < batch_; ++i) {
      for (int j = 0; j < out; ++j) db[j] += slope[i * out + j];
    }
  }

  // The mean loss of out_, which becomes its slope.
  float SoftmaxCrossEntropy() {
    double loss = 0;
    for (int i = 0; i < batch_; ++i) {
      float* z = out_.data() + i * kClasses;
      const int label = labels_[order_[first_ + static_cast<size_t>(i)]];
      const float top = *std::max_element(z, z + kClasses);
      float sum = 0;
      for (int j = 0; j < kClasses; ++j) sum += z[j] = std::exp(z[j] - top);
      loss -= std::log(z[label] / sum);
      for (int j = 0; j < kClasses; ++j) z[j] /= sum * static_cast<float>(batch_);
      z[label] -= 1.0f / static_cast<float>(batch_);
    }
    return static_cast<float>(loss / batch_);
  }

  const int batch_;
  const std::vector<uint8_t> images_, labels_;
  std::mt19937 random_;
  std::vector<size_t> order_;
  size_t next_ = 0, first_ = 0;  // in order_: the next batch, the current one
  std::vector<float> x_, hidden_, hidden_slope_, out_;
};

// A server's half of the weights.
class Shard {
 public:
  Shard(bool sync, float learning_rate) : sync_(sync), learning_rate_(learning_rate) {}

  void operator()(const ps::KVMeta& request, const ps::KVPairs<float>& data, ps::KVServer<float>* server) {
    if (request.cmd == kInit) {
      weights_.CopyFrom(data.vals);
      sum_.assign(data.vals.size(), 0.0f);
      server->Response(request);
      return;
    }
    const auto n = static_cast<int>(data.vals.size());
    if (!request.push) {
      Answer(request, data.keys, server);
    } else if (!sync_) {
      cblas_saxpy(n, -learning_rate_, data.vals.data(), 1, weights_.data(), 1);
      Answer(request, data.keys, server);
    } else {
      cblas_saxpy(n, 1, data.vals.data(), 1, sum_.data(), 1);
      waiting_.push_back(request);
      if (static_cast<int>(waiting_.size()) < ps::NumWorkers()) return;
      cblas_saxpy(n, -learning_rate_ / static_cast<float>(waiting_.size()), sum_.data(), 1, weights_.data(),
                  1);
      std::fill(sum_.begin(), sum_.end(), 0.0f);
      for (const ps::KVMeta& worker : waiting_) Answer(worker, data.keys, server);
      waiting_.clear();
    }
  }

 private:
  void Answer(const ps::KVMeta& request, const ps::SArray<ps::Key>& keys, ps::KVServer<float>* server) const {
    ps::KVPairs<float> answer;
    answer.keys = keys;
    answer.vals = weights_;  // shared, not copied
    answer.lens = ps::SArray<int>(1, static_cast<int>(weights_.size()));
    server->Response(request, answer);
  }

  const bool sync_;
  const float learning_rate_;
  ps::SArray<float> weights_;
  std::vector<float> sum_;
  std::vector<ps::KVMeta> waiting_;
};

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void Work(const Flags& flags) {
  Model model(flags, ps::MyRank() + 1);
  ps::KVWorker<float> kv(0, 0);
  const std::vector<float> initial = Model::InitialWeights();
  ps::SArray<float> weights(kParameters), gradient(kParameters);
  ps::SArray<ps::Key> keys;
  ps::SArray<int> lengths;
  const int servers = ps::NumServers();
  for (int i = 0; i < servers; ++i) {
    keys.push_back(ps::Postoffice::Get()->GetServerKeyRanges()[static_cast<size_t>(i)].begin());
    lengths.push_back(kParameters * (i + 1) / servers - kParameters * i / servers);
  }
  if (ps::MyRank() == 0) kv.Wait(kv.ZPush(keys, ps::SArray<float>(initial), lengths, kInit));
  ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
  kv.Wait(kv.ZPull(keys, &weights, &lengths));
  auto start = Clock::now();
  float loss = 0;
  for (int step = 0; step < flags.warmup + flags.steps; ++step) {
    if (step == flags.warmup) {
      ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
      start = Clock::now();
    }
    loss = model.Compute(weights.data(), gradient.data());
    kv.Wait(kv.ZPushPull(keys, gradient, &weights, &lengths));
  }
  std::printf("{\"steps\": %d, \"seconds\": %.6f, \"loss\": %.4f}\n", flags.steps, Since(start), loss);
}

void ComputeOnly(const Flags& flags) {
  Model model(flags, 1);
  const std::vector<float> weights = Model::InitialWeights();
  std::vector<float> gradient(kParameters);
  auto start = Clock::now();
  for (int step = 0; step < flags.warmup + flags.steps; ++step) {
    if (step == flags.warmup) start = Clock::now();
    model.Compute(weights.data(), gradient.data());
  }
  std::printf("{\"steps\": %d, \"seconds\": %.6f}\n", flags.steps, Since(start));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: pslite_driver async|sync|none DATA STEPS WARMUP BATCH LEARNING_RATE\n");
    return 64;
  }
  const Flags flags = {argv[1],
                       argv[2],
                       std::atoi(argv[3]),
                       std::atoi(argv[4]),
                       std::atoi(argv[5]),
                       static_cast<float>(std::atof(argv[6]))};
  if (flags.mode == "none") {
    ComputeOnly(flags);
    return 0;
  }
  ps::Start(0);
  std::unique_ptr<ps::KVServer<float>> server;
  if (ps::IsServer()) {
    server = std::make_unique<ps::KVServer<float>>(0);
    server->set_request_handle(Shard(flags.mode == "sync", flags.learning_rate));
  }
  if (ps::IsWorker()) Work(flags);
  ps::Finalize(0, true);
  return 0;
}

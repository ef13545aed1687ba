#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/client.h"
#include "common/model/model_spec.h"
#include "proto/job_config.pb.h"

namespace weir {

// An async job of two workers whose weights count their updates. They begin at zero, and each push adds one
// to every element (plain SGD; the gradient and minus the rate are one). This is exact in float32.
// `overrides` as for --set.
v1::JobConfig CountingJob(const std::vector<std::string>& overrides);
// Some MB on each of two shards: several chunks, the last of them short.
ModelSpec CountingModel();

// A program that trains or reads such a job. For one thread.
class CountingClient {
 public:
  static absl::StatusOr<std::unique_ptr<CountingClient>> Join(const v1::JobConfig& config,
                                                              const std::vector<std::string>& servers,
                                                              uint32_t rank, bool reader = false);

  // Takes the next work, pushes ones for it and pulls the result. False: the job is done.
  absl::StatusOr<bool> Step();
  // Pull() at clock 0, which any worker may have at any time in async, and PullSnapshot().
  absl::Status Pull();
  absl::Status PullSnapshot();
  // Steps and pulls with views: StepInPlace() and PullInPlace() release the old view when they have the next.
  // StepInPlace()'s gradient lies where servers may read it.
  absl::StatusOr<bool> StepInPlace();
  absl::Status PullInPlace();
  const WeightsView& view() const { return view_; }
  // The gradient of all tensors that StepInPlace() pushes: ones, unless the test writes other values.
  float* gradient_in_place() { return ones_in_place_.get(); }

  // TornElements() of the view.
  int64_t TornElementsOfView() const { return TornElementsOf(view_); }
  static int64_t TornElementsOf(const WeightsView& view);
  // The elements of the last pull that are not the count of their shard's version. 0: not torn.
  int64_t TornElements() const;
  const PushResult& last_push() const { return push_; }
  const std::vector<uint64_t>& versions() const { return base_.versions; }
  Client& client() { return *client_; }

 private:
  CountingClient(std::unique_ptr<Client> client, uint32_t shards);
  std::vector<MutableTensor> Weights();
  // The gradient's tensors, as slices of `all`.
  std::vector<ConstTensor> Gradient(const float* all) const;

  const std::unique_ptr<Client> client_;
  const ModelSpec model_ = CountingModel();
  const uint32_t shards_;
  std::vector<float> weights_;
  const std::vector<float> ones_;
  const std::shared_ptr<float> ones_in_place_;
  PullResult base_;
  WeightsView view_;
  PushResult push_;
};

}  // namespace weir

// What a worker declares as it joins: its config, its model, the servers it knows (JoinRequest), as ps:0
// checks them before it takes anything over.
#include "common/config/job_config.h"
#include "common/config/server_memory.h"
#include "common/model/partition.h"
#include "common/model/wire_model.h"
#include "proto/coordinator.pb.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {
namespace {

const v1::JobConfig& OwnConfig() {
  static const v1::JobConfig config =
      ParseJobConfig(R"({"model": {"layers": [{"type": "dense", "units": 10}]},
                         "optimizer": {"type": "adam", "learning_rate": 0.1},
                         "data": {"format": "digits", "batch_size": 32}, "consistency": {"mode": "sync"},
                         "train": {"epochs": 1}})",
                     "own")
          .value();
  return config;
}

ModelSpec OwnModel() {
  return {{{"dense_0/weight", {64, 10}, TensorKind::kParameter, Initializer::GlorotUniform(64, 10)},
           {"dense_0/bias", {10}, TensorKind::kParameter, Initializer::Zeros()}}};
}

}  // namespace

bool ReadInput(absl::string_view input) {
  v1::JoinRequest request;
  v1::JobConfig config;
  v1::Model declared;
  if (!request.ParseFromArray(input.data(), static_cast<int>(input.size())) ||
      !config.ParseFromString(request.job_config()) || !declared.ParseFromString(request.model())) {
    return false;
  }
  const std::string difference = FirstDifference(OwnConfig(), config);
  const absl::StatusOr<ModelSpec> model = FromProto(declared);
  if (!model.ok()) return false;
  FuzzCheck(model->Validate().ok(), "a model that was taken is valid");
  FuzzCheck(model->elements() >= 1 && model->elements() <= kMaxElements,
            "a model's size is within the limits");
  const absl::StatusOr<ModelSpec> again = FromProto(ToProto(*model));
  FuzzCheck(again.ok() && model->FirstDifference(*again).empty(),
            "a model that was written reads back equal");
  FuzzCheck(model->Hash() == again->Hash(), "and has the same hash");
  const auto shards = static_cast<uint32_t>(std::clamp(request.ps_addresses_size(), 1, 1024));
  const Partition partition(model->elements(), shards);
  int64_t elements = 0;
  for (uint32_t shard = 0; shard < shards; ++shard) elements += partition.shard_elements(shard);
  FuzzCheck(elements == model->elements(), "the shards hold the whole model");
  FuzzCheck(CheckServerMemory(OwnConfig(), 2, model->elements(), shards, 0).ok(), "no limit refuses nothing");
  CheckServerMemory(OwnConfig(), 1024, model->elements(), shards, uint64_t{1} << 30).IgnoreError();
  return difference.empty();
}

std::vector<std::string> Seeds() {
  v1::JoinRequest request;
  request.set_role(v1::WORKER);
  request.set_task("worker:0");
  request.set_job_config(OwnConfig().SerializeAsString());
  request.set_model(ToProto(OwnModel()).SerializeAsString());
  request.add_ps_addresses("a:2222");
  request.add_ps_addresses("b:2222");
  return {request.SerializeAsString()};
}

std::vector<std::string> Words() {
  return {"dense_0/weight", "worker:0", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"};
}

}  // namespace weir

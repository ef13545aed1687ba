// A job's config as people write it, and overrides of --set: the lines after the first zero byte, one each.
#include "absl/strings/str_split.h"
#include "common/config/job_config.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {

bool ReadInput(absl::string_view input) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(input, absl::MaxSplits(absl::ByChar('\0'), 1));
  std::vector<std::string> overrides = absl::StrSplit(parts.second, '\n', absl::SkipEmpty());
  const absl::StatusOr<v1::JobConfig> config = ParseJobConfig(parts.first, "input", overrides);
  if (!config.ok()) {
    FuzzCheck(!config.status().message().empty(), "a refusal has a reason");
    return false;
  }
  // Without the schema's defaults, and with them.
  const absl::StatusOr<v1::JobConfig> again =
      ParseJobConfig(ToJson(*config, /*with_defaults=*/false), "again");
  FuzzCheck(again.ok(), "a config that was written can be read");
  // An empty section, which is not written, is as good as none.
  FuzzCheck(FirstDifference(*config, *again).empty() && ToJson(*config, false) == ToJson(*again, false),
            "and reads back equal");
  const absl::StatusOr<v1::JobConfig> with_defaults = ParseJobConfig(ToJson(*config, true), "defaults");
  FuzzCheck(with_defaults.ok(), "a config that was written with its defaults can be read");
  FuzzCheck(FirstDifference(*config, *with_defaults).empty(), "and trains with the other");
  return true;
}

std::vector<std::string> Seeds() {
  const std::string mlp = R"({
  // Comments are allowed.
  "name": "digits",
  "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 128}, {"type": "relu"}, {"type": "dense", "units": 10}],
            "loss": "softmax_cross_entropy"},
  "data": {"format": "digits", "batch_size": 16},
  "train": {"epochs": 300},
  "consistency": {"mode": "sync", "parts": 4},
  "optimizer": {"type": "adam", "learning_rate": 0.002},
  "server": {"min_shard_kib": 0},
  "checkpoint": {"directory": "../c", "every_seconds": 1, "keep": 3}
})";
  return {
      mlp,
      mlp + std::string(1, '\0') +
          "optimizer.learning_rate=0.01\nmodel.layers[1].units=64\ncheckpoint=null\n",
      R"({
  "model": {"layers": [{"type": "conv2d", "filters": 8, "kernel": 5, "padding": 2}, {"type": "relu"},
                       {"type": "max_pool", "kernel": 2}, {"type": "flatten"}, {"type": "dropout", "rate": 0.3},
                       {"type": "dense", "units": 10}]},
  "data": {"format": "idx", "train": {"images": "/a", "labels": "/b"}, "test": {"images": "/c", "labels": "/d"},
           "batch_size": 64},
  "train": {"epochs": 8},
  "consistency": {"mode": "bounded", "staleness": 3},
  "optimizer": {"type": "sgd", "learning_rate": 0.002, "schedule": {"type": "cosine", "final_factor": 0.05}}
})",
  };
}

std::vector<std::string> Words() {
  return {"\"model\"",
          "\"layers\"",
          "\"type\"",
          "\"dense\"",
          "\"conv2d\"",
          "\"max_pool2d\"",
          "\"units\"",
          "\"optimizer\"",
          "\"momentum\"",
          "\"adam\"",
          "\"schedule\"",
          "\"data\"",
          "\"csv\"",
          "\"idx\"",
          "\"consistency\"",
          "\"async\"",
          "\"bounded\"",
          "\"staleness\"",
          "\"evaluation\"",
          "\"patience\"",
          "\"server\"",
          "\"durability\"",
          "\"checkpoint\"",
          "\"wire\"",
          "1e308",
          "-0",
          "null",
          "[0].",
          "/*",
          "\\u0000"};
}

}  // namespace weir

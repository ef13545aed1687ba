// What needs no servers: errors, configs, initial weights, the order of examples, and the programs.
#include <pthread.h>

#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cli/program.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/config/job_config.h"
#include "common/config/written_text.h"
#include "common/program/exit_codes.h"
#include "common/protocol/handshake.h"
#include "common/protocol/job_failure.h"
#include "ps_server/program.h"
#include "python/capi/handles.h"
#include "worker/data/dataset.h"

struct weir_error {
  absl::Status status;
  std::string message;
};

struct weir_order {
  weir::ExampleOrder order;
};

namespace weir {
namespace {

bool forked = false;
const int watches_forks = pthread_atfork(nullptr, nullptr, [] { forked = true; });

absl::Status SaveWeights(const char* directory, const weir_tensor* tensors, size_t n,
                         const float* const* values) {
  WEIR_ASSIGN_OR_RETURN(const ModelSpec model, ModelOf(tensors, n));
  std::vector<float> weights;
  weights.reserve(static_cast<size_t>(model.elements()));
  for (size_t i = 0; i < n; ++i) {
    weights.insert(weights.end(), values[i], values[i] + model.tensors[i].elements());
  }
  WEIR_ASSIGN_OR_RETURN(const std::string folder, ExpandedPath(directory));
  return WriteInitialWeights(FileSystem::Posix(), folder, model, weights);
}

absl::StatusOr<v1::JobConfig> LoadJob(const char* path, const std::vector<std::string>& overrides) {
  WEIR_ASSIGN_OR_RETURN(const std::string file, ExpandedPath(path));
  return LoadJobConfig(file, overrides);
}

absl::StatusOr<v1::JobConfig> ParseJob(const char* text, const std::vector<std::string>& overrides) {
  WEIR_ASSIGN_OR_RETURN(v1::JobConfig config, ParseJobConfig(text, "the job", overrides));
  WEIR_RETURN_IF_ERROR(MakePathsAbsolute("", &config));
  return config;
}

}  // namespace

weir_error* ErrorOf(const absl::Status& status) {
  return status.ok() ? nullptr : new weir_error{status, std::string(status.message())};
}

bool Forked() { return watches_forks == 0 && forked; }

absl::Status ForkedError() {
  return absl::FailedPreconditionError(
      "this is a child process that was forked after Weir was loaded, and its connections belong to the "
      "parent; call Weir in the parent, or start the child with multiprocessing's \"spawn\" or "
      "\"forkserver\"");
}

absl::StatusOr<ModelSpec> ModelOf(const weir_tensor* tensors, size_t n) {
  ModelSpec model;
  for (size_t i = 0; i < n; ++i) {
    TensorSpec& tensor = model.tensors.emplace_back();
    tensor.name = tensors[i].name;
    tensor.shape.assign(tensors[i].shape, tensors[i].shape + tensors[i].rank);
    if (tensors[i].buffer != 0) tensor.kind = TensorKind::kBuffer;
    tensor.init.value = tensors[i].value;
    tensor.aliases.assign(tensors[i].aliases, tensors[i].aliases + tensors[i].n_aliases);
    switch (tensors[i].initializer) {
      case WEIR_CONSTANT:
        tensor.init.kind = Initializer::Kind::kConstant;
        break;
      case WEIR_NORMAL:
        tensor.init.kind = Initializer::Kind::kNormal;
        break;
      case WEIR_UNIFORM:
        tensor.init.kind = Initializer::Kind::kUniform;
        break;
      case WEIR_UPLOADED:
        tensor.init = Initializer::Uploaded();
        break;
      default:
        return absl::InvalidArgumentError(
            absl::StrCat(tensor.name, ": the initializer must be 0 to 3, got ", tensors[i].initializer));
    }
  }
  WEIR_RETURN_IF_ERROR(model.Validate());
  return model;
}

}  // namespace weir

const char* weir_version() { return weir::kVersion; }

int weir_error_kind(const weir_error* error) { return weir::KindOf(error->status); }
int weir_error_code(const weir_error* error) { return static_cast<int>(error->status.code()); }
int weir_error_exit_code(const weir_error* error) { return weir::ExitCodeOf(error->status); }
const char* weir_error_message(const weir_error* error) { return error->message.c_str(); }
void weir_free_error(weir_error* error) { delete error; }

weir_error* weir_load_job(const char* path, const char* text, const char* const* overrides, size_t n,
                          weir_job** job) {
  const std::vector<std::string> sets(overrides, overrides + n);
  const absl::StatusOr<weir::v1::JobConfig> config =
      path != nullptr ? weir::LoadJob(path, sets) : weir::ParseJob(text, sets);
  if (!config.ok()) return weir::ErrorOf(config.status());
  *job = new weir_job{*config, weir::ToJson(*config, /*with_defaults=*/true)};
  return nullptr;
}

const char* weir_job_json(const weir_job* job) { return job->json.c_str(); }
void weir_free_job(weir_job* job) { delete job; }

weir_error* weir_save_weights(const char* directory, const weir_tensor* tensors, size_t n,
                              const float* const* values) {
  return weir::ErrorOf(weir::SaveWeights(directory, tensors, n, values));
}

weir_error* weir_new_order(uint64_t examples, uint64_t seed, weir_order** order) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  if (examples == 0 || examples > kMost) {
    return weir::ErrorOf(absl::InvalidArgumentError(
        absl::StrCat("a training set has 1 to ", kMost, " examples, got ", examples)));
  }
  *order = new weir_order{weir::ExampleOrder(static_cast<int32_t>(examples), seed)};
  return nullptr;
}

void weir_fill_order(weir_order* order, uint64_t first, size_t n, int32_t* examples) {
  order->order.Fill(static_cast<int64_t>(first), absl::MakeSpan(examples, n));
}

void weir_free_order(weir_order* order) { delete order; }

int weir_run_program(const char* name, int argc, char** argv) {
  weir::EndOnExhaustion();
  const absl::string_view program = name;
  if (program == "ps_server") return weir::RunPsServer(argc, argv);
  if (program == "weir") return weir::RunWeir(argc, argv);
  std::fprintf(stderr, "libweir.so has the programs ps_server and weir, not '%s'\n", name);
  return weir::kExitUsage;
}

#include "cli/commands/import_command.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/report/format.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/initial_weights.h"
#include "common/checkpoint/safetensors.h"
#include "common/codec/bfloat16.h"
#include "common/codec/finite.h"
#include "common/codec/float16.h"
#include "common/config/object_path.h"
#include "common/model/model_spec.h"
#include "common/object_store/object_file_system.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

// The last part of these names is what PyTorch's BatchNorm calls its running statistics.
bool IsRunningStatistic(absl::string_view name) {
  const absl::string_view last = name.substr(name.find_last_of("./") + 1);
  return last == "running_mean" || last == "running_var" || last == "num_batches_tracked";
}

std::vector<int64_t> ShapeOf(const StoredTensor& tensor) {
  return {tensor.shape.begin(), tensor.shape.end()};
}

std::string Describe(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// A safetensors file that is read tensor by tensor. Errors name the file and the tensor.
class WeightsFile {
 public:
  static absl::StatusOr<WeightsFile> Open(const std::string& path) {
    WeightsFile weights(path);
    WEIR_ASSIGN_OR_RETURN(weights.file_, AnyStorage().Open(path));
    WEIR_ASSIGN_OR_RETURN(weights.header_, ReadSafetensorsHeader(*weights.file_, path));
    for (const StoredTensor& tensor : weights.header_.tensors) weights.by_name_[tensor.name] = &tensor;
    return weights;
  }

  // The model that the file's own order and names make.
  absl::StatusOr<ModelSpec> Model() const {
    ModelSpec model;
    for (const StoredTensor& stored : header_.tensors) {
      TensorSpec& tensor = model.tensors.emplace_back();
      tensor.name = stored.name;
      tensor.shape = ShapeOf(stored);
      if (IsRunningStatistic(stored.name)) tensor.kind = TensorKind::kBuffer;
    }
    const absl::Status valid = model.Validate();
    if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat(path_, ": ", valid.message()));
    return model;
  }

  // OK: the file has these tensors and no others. `of` is where the model is from.
  absl::Status CheckHas(const ModelSpec& model, const std::string& of) const {
    for (const TensorSpec& tensor : model.tensors) {
      const auto found = by_name_.find(tensor.name);
      if (found == by_name_.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path_, " has no tensor '", tensor.name, "', which ", of, " has"));
      }
      if (ShapeOf(*found->second) != tensor.shape) {
        return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor '", tensor.name, "' has the shape ",
                                                       Describe(ShapeOf(*found->second)), ", and in ", of,
                                                       " ", Describe(tensor.shape)));
      }
    }
    if (by_name_.size() == model.tensors.size()) return absl::OkStatus();
    for (const StoredTensor& stored : header_.tensors) {
      const bool known = std::any_of(model.tensors.begin(), model.tensors.end(),
                                     [&](const TensorSpec& tensor) { return tensor.name == stored.name; });
      if (!known) {
        return absl::InvalidArgumentError(
            absl::StrCat(path_, " has the tensor '", stored.name, "', which ", of, " has not"));
      }
    }
    return absl::OkStatus();
  }

  // The tensors of a model that CheckHas() or Model() has found good, end to end.
  absl::StatusOr<std::vector<float>> Read(const ModelSpec& model) const {
    std::vector<float> weights(static_cast<size_t>(model.elements()));
    absl::Span<float> rest = absl::MakeSpan(weights);
    for (const TensorSpec& tensor : model.tensors) {
      const auto elements = static_cast<size_t>(tensor.elements());
      WEIR_RETURN_IF_ERROR(ReadTensor(*by_name_.at(tensor.name), rest.first(elements)));
      rest.remove_prefix(elements);
    }
    return weights;
  }

 private:
  explicit WeightsFile(std::string path) : path_(std::move(path)) {}

  absl::Status ReadTensor(const StoredTensor& tensor, absl::Span<float> values) const {
    const auto bad = [&](const char* type, int64_t element, const std::string& what) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": tensor '", tensor.name, "' (", type, "): element ", element, " is ", what));
    };
    const char* floats = nullptr;
    switch (tensor.type) {
      case TensorType::kF32:
        floats = "F32";
        WEIR_RETURN_IF_ERROR(ReadBytes(tensor, values.data()));
        break;
      case TensorType::kBF16:
      case TensorType::kF16: {
        std::vector<uint16_t> halves(values.size());
        WEIR_RETURN_IF_ERROR(ReadBytes(tensor, halves.data()));
        const bool brain = tensor.type == TensorType::kBF16;
        floats = brain ? "BF16" : "F16";
        (brain ? FromBfloat16 : FromFloat16)(halves.data(), values.data(), values.size());
        break;
      }
      case TensorType::kI64:
      case TensorType::kU64:
        break;
    }
    if (floats != nullptr) {
      const auto elements = static_cast<int64_t>(values.size());
      const int64_t wrong = FirstNonFinite(values.data(), elements);
      if (wrong == elements) return absl::OkStatus();
      return bad(floats, wrong,
                 absl::StrCat(values[static_cast<size_t>(wrong)], ", but weights must be finite"));
    }
    // Counts, such as num_batches_tracked.
    const bool is_signed = tensor.type == TensorType::kI64;
    std::vector<uint64_t> counts(values.size());
    WEIR_RETURN_IF_ERROR(ReadBytes(tensor, counts.data()));
    for (size_t i = 0; i < counts.size(); ++i) {
      const auto number = static_cast<int64_t>(counts[i]);
      constexpr int64_t kMost = int64_t{1} << std::numeric_limits<float>::digits;
      const bool exact = is_signed ? number >= -kMost && number <= kMost : counts[i] <= uint64_t{kMost};
      if (!exact) {
        return bad(is_signed ? "I64" : "U64", static_cast<int64_t>(i),
                   absl::StrCat(is_signed ? absl::StrCat(number) : absl::StrCat(counts[i]),
                                ", but a job's values are float32, which has integers up to ", kMost));
      }
      values[i] = static_cast<float>(number);
    }
    return absl::OkStatus();
  }

  // All of the tensor, to where there is room for it.
  absl::Status ReadBytes(const StoredTensor& tensor, void* out) const {
    return file_->Read(header_.bytes + tensor.offset, absl::MakeSpan(static_cast<char*>(out), tensor.bytes));
  }

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  SafetensorsHeader header_;
  // Point into the header.
  std::map<std::string, const StoredTensor*> by_name_;
};

absl::StatusOr<ModelSpec> ModelOf(const WeightsFile& file, const std::string& like) {
  if (like.empty()) return file.Model();
  FileSystem& storage = AnyStorage();
  WEIR_ASSIGN_OR_RETURN(const FoundCheckpoint found, ResolveCheckpoint(storage, like));
  WEIR_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(storage, found.folder));
  WEIR_RETURN_IF_ERROR(file.CheckHas(reader.model(), found.folder));
  return reader.model();
}

absl::StatusOr<size_t> Import(const ImportOptions& options) {
  if (IsObjectPath(options.directory)) {
    return absl::InvalidArgumentError(
        absl::StrCat("DIR must be a folder on a disk, got '", options.directory,
                     "'; copy the checkpoint to object storage when it is there"));
  }
  WEIR_ASSIGN_OR_RETURN(const WeightsFile file, WeightsFile::Open(options.file));
  WEIR_ASSIGN_OR_RETURN(const ModelSpec model, ModelOf(file, options.like));
  WEIR_ASSIGN_OR_RETURN(const std::vector<float> weights, file.Read(model));
  WEIR_RETURN_IF_ERROR(WriteInitialWeights(FileSystem::Posix(), options.directory, model, weights));
  return model.tensors.size();
}

}  // namespace

int RunImport(const ImportOptions& options) {
  const absl::StatusOr<size_t> tensors = Import(options);
  if (!tensors.ok()) {
    std::fprintf(stderr, "error: %s\n", Printable(tensors.status().message()).c_str());
    return absl::IsResourceExhausted(tensors.status()) ? kExitStorage
           : absl::IsUnavailable(tensors.status())     ? kExitPeerLost
                                                       : kExitConfig;
  }
  std::printf("%s\n", Printable(absl::StrCat(options.directory, ": ", *tensors, " tensors of ", options.file,
                                             ", for checkpoint.init_from"))
                          .c_str());
  return kExitOk;
}

}  // namespace weir

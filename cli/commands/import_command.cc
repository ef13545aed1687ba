// `weir import`: makes the weights of a safetensors file the initial weights of a job. Writes a checkpoint
// that holds the file's tensors and embedding tables, as `weir export` writes them, and no training, for
// checkpoint.init_from.
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/report/format.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/checkpoint/safetensors.h"
#include "common/codec/floats.h"
#include "common/config/written_text.h"
#include "common/model/model_spec.h"
#include "common/object_store/object_file_system.h"
#include "common/program/exit_codes.h"

namespace weir {
namespace {

// PyTorch's BatchNorm gives these names to its running statistics.
bool IsRunningStatistic(absl::string_view name) {
  const absl::string_view last = name.substr(name.find_last_of("./") + 1);
  return last == "running_mean" || last == "running_var" || last == "num_batches_tracked";
}

// `weir export` appends these to the name of a table.
constexpr const char* kKeys = "/keys";
constexpr const char* kValues = "/values";

bool IsFloat(TensorType type) { return type != TensorType::kI64 && type != TensorType::kU64; }

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
    WEIR_RETURN_IF_ERROR(weights.FindAliases());
    return weights;
  }

  // A table as `weir export` writes it: NAME/keys, whole numbers of 64 bits, and NAME/values, a row for each
  // key.
  bool HasTable(const std::string& name) const {
    const auto keys = by_name_.find(name + kKeys), values = by_name_.find(name + kValues);
    if (keys == by_name_.end() || values == by_name_.end()) return false;
    const StoredTensor &k = *keys->second, &v = *values->second;
    return !IsFloat(k.type) && IsFloat(v.type) && k.shape.size() == 1 && v.shape.size() == 2 &&
           k.shape[0] == v.shape[0] && v.shape[1] > 0 && v.shape[1] <= std::numeric_limits<uint32_t>::max();
  }
  // The names of all tables, in the file's order.
  std::vector<std::string> Tables() const {
    std::vector<std::string> names;
    for (const StoredTensor& stored : header_.tensors) {
      std::string name = stored.name;
      if (!absl::EndsWith(name, kKeys)) continue;
      name.resize(name.size() - std::strlen(kKeys));
      if (HasTable(name)) names.push_back(name);
    }
    return names;
  }
  // From now on the tensors of these tables are no tensors of the model.
  // Requires: HasTable() for each table.
  void SetTables(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      for (const char* column : {kKeys, kValues}) of_tables_.insert(name + column);
    }
  }
  uint64_t DimOf(const std::string& table) const { return by_name_.at(table + kValues)->shape[1]; }
  absl::StatusOr<ImportedRows> ReadRows(const std::string& table) const {
    ImportedRows rows;
    rows.table = table;
    rows.dim = static_cast<uint32_t>(DimOf(table));
    const StoredTensor& keys = *by_name_.at(table + kKeys);
    rows.keys.resize(keys.shape[0]);
    WEIR_RETURN_IF_ERROR(ReadBytes(keys, rows.keys.data()));
    rows.values.resize(keys.shape[0] * rows.dim);
    WEIR_RETURN_IF_ERROR(ReadTensor(*by_name_.at(table + kValues), absl::MakeSpan(rows.values)));
    return rows;
  }

  // The model that the file's own order and names make.
  absl::StatusOr<ModelSpec> Model() const {
    ModelSpec model;
    for (const StoredTensor& stored : header_.tensors) {
      if (of_tables_.count(stored.name) > 0 || aliases_.count(stored.name) > 0) continue;
      TensorSpec& tensor = model.tensors.emplace_back();
      tensor.name = stored.name;
      tensor.shape = ShapeOf(stored);
      for (const auto& [alias, name] : aliases_) {
        if (name == stored.name) tensor.aliases.push_back(alias);
      }
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
    std::set<std::string> names = of_tables_;
    for (const TensorSpec& tensor : model.tensors) names.insert(tensor.name);
    for (const StoredTensor& stored : header_.tensors) {
      if (aliases_.count(stored.name) > 0) continue;
      const bool known = names.count(stored.name) > 0;
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
      default:
        return absl::InvalidArgumentError(
            absl::StrCat(path_, ": tensor '", tensor.name, "' is of ", NameOf(tensor.type),
                         "; weights must be F32, BF16 or F16, and counts I64 or U64"));
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

  // Finds the names of tied tensors that `weir export` has written. The file may have lost tensors since; a
  // tensor that is there must have the values of the first one.
  absl::Status FindAliases() {
    for (const auto& [key, name] : header_.metadata) {
      if (!absl::StartsWith(key, kAliasKey)) continue;
      const std::string alias = key.substr(sizeof(kAliasKey) - 1);
      const auto found = by_name_.find(alias), first = by_name_.find(name);
      if (found == by_name_.end() || first == by_name_.end()) continue;
      WEIR_ASSIGN_OR_RETURN(const bool same, Same(*found->second, *first->second));
      if (!same) {
        return absl::InvalidArgumentError(
            absl::StrCat(path_, ": the tensors '", name, "' and '", alias,
                         "' are one in the job that they were exported from, and differ here"));
      }
      aliases_[alias] = name;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Same(const StoredTensor& a, const StoredTensor& b) const {
    if (a.type != b.type || a.shape != b.shape) return false;
    std::vector<char> bytes(a.bytes), others(b.bytes);
    WEIR_RETURN_IF_ERROR(ReadBytes(a, bytes.data()));
    WEIR_RETURN_IF_ERROR(ReadBytes(b, others.data()));
    return bytes == others;
  }

  // Reads the whole tensor to `out`, which has room for it.
  absl::Status ReadBytes(const StoredTensor& tensor, void* out) const {
    return file_->Read(header_.bytes + tensor.offset, absl::MakeSpan(static_cast<char*>(out), tensor.bytes));
  }

  std::string path_;
  std::unique_ptr<ReadableFile> file_;
  SafetensorsHeader header_;
  // Point into the header.
  std::map<std::string, const StoredTensor*> by_name_;
  std::set<std::string> of_tables_;
  // The further names of tied tensors, and their first names.
  std::map<std::string, std::string> aliases_;
};

struct ImportOptions {
  std::string file, directory;
  // A checkpoint (or a folder of them) whose model the job has. It gives the order of the tensors, and tells
  // which of them are running statistics. "": the order is that of the tensors' bytes in the file, and
  // PyTorch's names tell the running statistics.
  std::string like;
};

// The parts of a job that the file holds.
struct Contents {
  ModelSpec model;
  std::vector<std::string> tables;
};

absl::StatusOr<std::vector<std::string>> TablesLike(const CheckpointReader& reader, const std::string& of,
                                                    const std::string& path, const WeightsFile& file) {
  std::vector<std::string> tables;
  for (size_t i = 0; i < reader.NumTables(); ++i) {
    const v1::TableConfig& table = reader.TableAt(i);
    if (!file.HasTable(table.name())) {
      return absl::InvalidArgumentError(absl::StrCat(path, " has not the table '", table.name(), "' (",
                                                     table.name(), kKeys, " and ", table.name(), kValues,
                                                     "), which ", of, " has"));
    }
    if (file.DimOf(table.name()) != table.dim()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": a row of table '", table.name(), "' has ",
                                                     file.DimOf(table.name()), " values, and in ", of, " ",
                                                     table.dim()));
    }
    tables.push_back(table.name());
  }
  return tables;
}

absl::StatusOr<Contents> ContentsOf(const ImportOptions& options, WeightsFile& file) {
  Contents contents;
  if (options.like.empty()) {
    contents.tables = file.Tables();
    file.SetTables(contents.tables);
    WEIR_ASSIGN_OR_RETURN(contents.model, file.Model());
    return contents;
  }
  FileSystem& storage = AnyStorage();
  WEIR_ASSIGN_OR_RETURN(const FoundCheckpoint found, ResolveCheckpoint(storage, options.like));
  WEIR_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(storage, found.folder));
  WEIR_ASSIGN_OR_RETURN(contents.tables, TablesLike(reader, found.folder, options.file, file));
  file.SetTables(contents.tables);
  WEIR_RETURN_IF_ERROR(file.CheckHas(reader.model(), found.folder));
  contents.model = reader.model();
  return contents;
}

// Returns a line for people about what was written.
absl::StatusOr<std::string> Import(const ImportOptions& options) {
  if (IsObjectPath(options.directory)) {
    return absl::InvalidArgumentError(
        absl::StrCat("DIR must be a folder on a disk, got '", options.directory,
                     "'; copy the checkpoint to object storage when it is there"));
  }
  WEIR_ASSIGN_OR_RETURN(WeightsFile file, WeightsFile::Open(options.file));
  WEIR_ASSIGN_OR_RETURN(const Contents contents, ContentsOf(options, file));
  WEIR_ASSIGN_OR_RETURN(const std::vector<float> weights, file.Read(contents.model));
  std::vector<ImportedRows> tables;
  uint64_t rows = 0;
  for (const std::string& table : contents.tables) {
    WEIR_ASSIGN_OR_RETURN(tables.emplace_back(), file.ReadRows(table));
    rows += tables.back().keys.size();
  }
  const absl::Status written =
      WriteInitialWeights(FileSystem::Posix(), options.directory, contents.model, weights, tables);
  if (absl::IsInvalidArgument(written)) {
    return absl::InvalidArgumentError(absl::StrCat(options.file, ": ", written.message()));
  }
  WEIR_RETURN_IF_ERROR(written);
  const std::string tensors = absl::StrCat(contents.model.tensors.size(), " tensors");
  if (tables.empty()) return tensors;
  return absl::StrCat(tensors, " and ", rows, " rows of ", Counted(tables.size(), "table"));
}

int RunImport(const ImportOptions& options) {
  const absl::StatusOr<std::string> written = Import(options);
  if (written.ok()) {
    return Print(Printable(absl::StrCat(options.directory, ": ", *written, " of ", options.file,
                                        ", for checkpoint.init_from")) +
                 "\n");
  }
  const int exit_code = absl::IsResourceExhausted(written.status()) ? kExitStorage
                        : absl::IsUnavailable(written.status())     ? kExitPeerLost
                                                                    : kExitConfig;
  return Refuse(exit_code, Printable(written.status().message()));
}

constexpr const char* kImportExamples = R"(Examples:
  weir import digits.safetensors pretrained
  weir import model.safetensors pretrained --like=runs/model)";

}  // namespace

void AddImportCommand(Commands& commands) {
  const auto options = std::make_shared<ImportOptions>();
  CLI::App* command = commands.Add(
      "import", "Make initial weights of a safetensors file, for checkpoint.init_from", kImportExamples);
  AddNamed(command, "file", &options->file, "FILE", "The safetensors file")->required();
  AddNamed(command, "directory", &options->directory, "DIR",
           "The folder to write, new or without initial weights")
      ->required();
  AddNamed(command, "--like", &options->like, "DIR",
           "A checkpoint of the same model: its order of tensors, and which are running statistics "
           "(default: the order in the file, and PyTorch's names)");
  commands.OnRun(command, [options] { return RunImport(*options); });
}

}  // namespace weir

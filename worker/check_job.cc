#include "worker/check_job.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_reader.h"
#include "common/config/optimizer_slots.h"
#include "common/object_store/object_file_system.h"
#include "worker/data/csv.h"
#include "worker/data/idx.h"
#include "worker/data/inflate.h"
#include "worker/data/load_data.h"
#include "worker/local_rule.h"
#include "worker/local_steps.h"
#include "worker/model/model.h"

namespace weir {
namespace {

// How much of each file to read: enough for its header or some lines.
constexpr size_t kBeginning = 1 << 20;

// Data sets whose files are no larger, all together, are read whole.
constexpr uint64_t kSmall = 16 << 20;

bool IsSmall(const v1::DataConfig& data) {
  uint64_t bytes = 0;
  for (const v1::DataFiles* files : {&data.train(), &data.test(), &data.validation()}) {
    for (const std::string* path : {&files->path(), &files->images(), &files->labels()}) {
      std::error_code error;
      const uint64_t size = path->empty() ? 0 : std::filesystem::file_size(*path, error);
      if (error || size > kSmall) return false;
      bytes += size;
    }
  }
  return bytes <= kSmall;
}

// What is known about one of the two sets.
struct SetShape {
  std::vector<int64_t> shape;  // of an example; empty: the beginning of the file does not say
  std::string text;
  std::optional<int64_t> bytes;  // at most, in memory while the set is read
};

absl::StatusOr<std::string> ReadBeginning(const std::string& field, const std::string& path) {
  std::string bytes(kBeginning, '\0');
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (file) file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.is_open() || file.bad()) {
    const std::string what = absl::StrCat(field, ": cannot read ", path, ": ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(what) : absl::InvalidArgumentError(what);
  }
  bytes.resize(static_cast<size_t>(file.gcount()));
  return bytes;
}

absl::StatusOr<IdxHeader> BeginningOfIdx(const std::string& field, const std::string& path) {
  WEIR_ASSIGN_OR_RETURN(const std::string bytes, ReadBeginning(field, path));
  return ParseIdxHeader(path, bytes);
}

// The bytes of a set in memory, with a label or target of four bytes for each example.
int64_t DatasetBytes(int64_t examples, const std::vector<int64_t>& shape, int64_t value_bytes) {
  return examples * (value_bytes * ShapeElements(shape) + 4);
}

absl::StatusOr<SetShape> CheckIdx(const std::string& prefix, const v1::DataFiles& files) {
  WEIR_ASSIGN_OR_RETURN(const IdxHeader images, BeginningOfIdx(prefix + ".images", files.images()));
  WEIR_ASSIGN_OR_RETURN(const IdxHeader labels, BeginningOfIdx(prefix + ".labels", files.labels()));
  WEIR_RETURN_IF_ERROR(CheckIdxShapes(files.images(), images.shape, files.labels(), labels.shape));
  const int64_t examples = images.shape[0];
  SetShape set;
  set.shape = IdxExampleShape(images.shape);
  set.text = absl::StrCat(examples, " examples of shape ", ShapeString(set.shape));
  set.bytes = DatasetBytes(examples, set.shape, images.value_bytes);
  return set;
}

// `like`: the header of the training set; empty: this is the training set, and `like` becomes its header.
absl::StatusOr<SetShape> CheckCsv(const std::string& prefix, const v1::DataFiles& files,
                                  const v1::DataConfig& config, CsvHeader* like) {
  WEIR_ASSIGN_OR_RETURN(const std::string bytes, ReadBeginning(prefix + ".path", files.path()));
  InflateReader reader(bytes);
  std::string text = bytes;
  if (reader.compressed()) {
    // The data that was read may end anywhere; that is no damage.
    std::vector<uint8_t> content(kBeginning);
    size_t size = 0;
    while (size < content.size()) {
      const absl::StatusOr<size_t> got = reader.Read(absl::MakeSpan(content).subspan(size, 1));
      if (!got.ok() && size == 0) {
        return absl::Status(got.status().code(), absl::StrCat(files.path(), ": ", got.status().message()));
      }
      if (!got.ok() || *got == 0) break;
      size += *got;
    }
    text.assign(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(size));
  }
  if (bytes.size() == kBeginning || text.size() == kBeginning) {
    // The last line may be cut off.
    const size_t end = text.rfind('\n');
    if (end == std::string::npos) return SetShape{{}, "lines of more than 1 MiB", {}};
    text.resize(end + 1);
  }
  WEIR_ASSIGN_OR_RETURN(CsvTable table, ParseCsv(files.path(), text, config, *like));
  if (table.labels.empty()) return absl::InvalidArgumentError(files.path() + ": there are no examples in it");
  if (like->names.empty()) *like = std::move(table.header);
  SetShape set;
  set.shape = {table.features};
  set.text = absl::StrCat("lines of ", table.features, table.features == 1 ? " number" : " numbers",
                          table.keys.empty() ? "" : absl::StrCat(", ", table.keys.size(), " columns of keys"),
                          " and a label");
  return set;
}

absl::StatusOr<SetShape> CheckSet(const std::string& prefix, const v1::DataFiles& files,
                                  const v1::DataConfig& config, CsvHeader* like) {
  return config.format() == v1::DataConfig::FORMAT_IDX ? CheckIdx(prefix, files)
                                                       : CheckCsv(prefix, files, config, like);
}

}  // namespace

absl::StatusOr<JobCheck> CheckJob(const v1::JobConfig& config) {
  const v1::DataConfig& data = config.data();
  JobCheck check;
  if (!config.has_model()) {
    check.data = "of the program that the job is for";
    check.model = check.data;
    check.unchecked.push_back("both");
    return check;
  }
  SetShape train;
  std::optional<int64_t> outputs, dataset_bytes;
  WEIR_RETURN_IF_ERROR(CheckLoss(data, config.model().loss()));
  if (config.model().loss() != v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY) {
    outputs = 1;
  } else if (data.has_classes()) {
    outputs = data.classes();
  }
  if (data.format() == v1::DataConfig::FORMAT_DIGITS) {
    // The digits are compiled in.
    WEIR_ASSIGN_OR_RETURN(const Datasets digits, LoadData(data, "", config.model().loss()));
    train.shape = digits.train.shape();
    outputs = digits.train.outputs();
    dataset_bytes = DatasetBytes(digits.train.size() + digits.test->size(), train.shape, /*value_bytes=*/2);
    check.data =
        absl::StrCat("digits, ", digits.train.size(), " training and ", digits.test->size(),
                     " test examples of shape ", ShapeString(train.shape), ", ", *outputs, " classes");
  } else {
    CsvHeader header;
    WEIR_ASSIGN_OR_RETURN(train, CheckSet("data.train", data.train(), data, &header));
    check.data = absl::StrCat("training set: ", train.text);
    dataset_bytes = train.bytes;
    const auto held_out = [&](const char* field, const v1::DataFiles& files,
                              const char* name) -> absl::Status {
      WEIR_ASSIGN_OR_RETURN(const SetShape set, CheckSet(field, files, data, &header));
      if (!train.shape.empty() && !set.shape.empty()) {
        WEIR_RETURN_IF_ERROR(CheckSameShape(field, train.shape, set.shape));
      }
      absl::StrAppend(&check.data, "; ", name, " set: ", set.text);
      if (dataset_bytes.has_value()) *dataset_bytes += set.bytes.value_or(0);
      return absl::OkStatus();
    };
    if (data.has_test()) {
      WEIR_RETURN_IF_ERROR(held_out("data.test", data.test(), "test"));
    }
    if (data.has_validation()) {
      WEIR_RETURN_IF_ERROR(held_out("data.validation", data.validation(), "validation"));
    }
    if (IsSmall(data)) {
      WEIR_ASSIGN_OR_RETURN(const Datasets sets, LoadData(data, "", config.model().loss()));
      outputs = sets.train.outputs();
    } else {
      check.unchecked.push_back("the values in the data files, and whether the files are whole");
    }
  }
  if (train.shape.empty()) {
    check.model = absl::StrCat(config.model().layers_size(), " layers");
    check.unchecked.push_back("whether the model fits the data");
    return check;
  }
  if (!outputs.has_value()) {
    check.unchecked.push_back(
        "whether the last layer has a logit for each class: the largest label says how many there are, "
        "unless data.classes does");
  }
  WEIR_ASSIGN_OR_RETURN(const ModelNeeds needs,
                        Model::Check(config.model(), ModelInputsOf(config, train.shape), outputs));
  WEIR_RETURN_IF_ERROR(LocalSteps::Check(config, needs.spec));
  check.spec = needs.spec;
  const int64_t parameters = needs.spec.elements();
  check.model = absl::StrCat(config.model().layers_size(), " layers, ", parameters, " parameters");
  if (dataset_bytes.has_value()) {
    // The model's own weights and gradients, two views of weights and two gradients of the client.
    int64_t copies = 6;
    // The weights of its own, and their slots: one set, unless each part of a step has its own.
    if (TakesLocalSteps(config)) {
      const int64_t workers = std::max<int64_t>(config.cluster().workers(), 1);
      const int64_t sets = config.local().keep_state() && config.consistency().has_parts()
                               ? (config.consistency().parts() + workers - 1) / workers
                               : 1;
      copies += 1 + sets * static_cast<int64_t>(OptimizerSlots(config.local().inner()).size());
    }
    // The batch that is computed, and the next.
    const int64_t batch =
        config.data().batch_size() * (needs.floats_per_example + 2 * ShapeElements(train.shape));
    check.worker_bytes = *dataset_bytes + 4 * (copies * parameters + batch + needs.scratch_floats);
  }
  return check;
}

absl::Status CheckInitFrom(const v1::JobConfig& config, const ModelSpec& model) {
  if (!config.checkpoint().has_init_from()) return absl::OkStatus();
  WEIR_ASSIGN_OR_RETURN(const FoundCheckpoint found,
                        ResolveCheckpoint(AnyStorage(), config.checkpoint().init_from()));
  WEIR_ASSIGN_OR_RETURN(const CheckpointReader reader, CheckpointReader::Open(AnyStorage(), found.folder));
  WEIR_RETURN_IF_ERROR(reader.CheckModel(model));
  return reader.CheckTables({config.tables().begin(), config.tables().end()}, /*weights_only=*/true);
}

}  // namespace weir

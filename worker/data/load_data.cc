#include "worker/data/load_data.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/telemetry/logging.h"
#include "worker/data/csv.h"
#include "worker/data/idx.h"
#include "worker/data/inflate.h"

namespace weir {
namespace {

constexpr float kDigitsScale = 1.0f / 16;

const unsigned char kImages[] = {
#include "worker/data/digits/images.inc"
};
const unsigned char kLabels[] = {
#include "worker/data/digits/labels.inc"
};

constexpr int32_t kExamples = 1797;
constexpr int32_t kTrainExamples = 1500;
constexpr size_t kPixels = 64;
constexpr int kClasses = 10;

template <size_t kSize>
std::vector<uint8_t> Unpack(const unsigned char (&bytes)[kSize], size_t expected) {
  auto array = ParseIdx("digits", absl::string_view(reinterpret_cast<const char*>(bytes), kSize));
  if (!array.ok()) std::abort();
  auto* values = std::get_if<std::vector<uint8_t>>(&array->values);
  if (values == nullptr || values->size() != expected) std::abort();
  return std::move(*values);
}

Dataset Take(const std::vector<uint8_t>& images, const std::vector<uint8_t>& labels,
             absl::Span<const int32_t> indexes, float scale) {
  std::vector<uint8_t> values;
  std::vector<int32_t> chosen;
  for (const int32_t index : indexes) {
    const auto image = images.begin() + index * static_cast<int64_t>(kPixels);
    values.insert(values.end(), image, image + kPixels);
    chosen.push_back(labels[static_cast<size_t>(index)]);
  }
  return Dataset({1, 8, 8}, std::move(values), scale, std::move(chosen), kClasses);
}

// The 1,797 handwritten digits of UCI optdigits that are compiled in (worker/data/digits/README.md): images
// of [1, 8, 8] with values 0 .. 16 times `scale`, 10 classes. The file orders them by writer, so they are
// shuffled first, the same way every time. Then the first 1,500 are for training and the last 297 for the
// test.
Datasets LoadDigits(float scale) {
  const std::vector<uint8_t> images = Unpack(kImages, kExamples * kPixels),
                             labels = Unpack(kLabels, kExamples);
  const std::vector<int32_t> order = RandomPermutation(kExamples, RandomKey(0, "digits"), 0);
  const auto all = absl::MakeConstSpan(order);
  return {Take(images, labels, all.first(kTrainExamples), scale),
          Take(images, labels, all.subspan(kTrainExamples), scale), std::nullopt};
}

constexpr int32_t kMostClasses = 1 << 20;
constexpr uint64_t kMostFileBytes = uint64_t{1} << 34;

std::string Resolve(const std::string& path, const std::string& base_dir) {
  if (path[0] == '/' || base_dir.empty()) return path;
  return absl::StrCat(base_dir, base_dir.back() == '/' ? "" : "/", path);
}

absl::StatusOr<std::string> ReadFile(const std::string& field, const std::string& path) {
  const auto error = [&](absl::StatusCode code, absl::string_view what) {
    return absl::Status(code, absl::StrCat(field, ": cannot read ", path, ": ", what));
  };
  std::error_code problem;
  const uint64_t size = std::filesystem::file_size(path, problem);
  if (problem) {
    const bool missing = problem == std::errc::no_such_file_or_directory;
    return error(missing ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
                 problem.message());
  }
  if (size > kMostFileBytes) {
    return error(absl::StatusCode::kInvalidArgument,
                 absl::StrCat("it has ", size, " bytes; at most ", kMostFileBytes, " are allowed"));
  }
  std::string bytes(size, '\0');
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) {
    return error(absl::StatusCode::kInvalidArgument, errno == 0 ? "it became shorter" : std::strerror(errno));
  }
  return bytes;
}

// The text of a file, compressed with gzip or not.
absl::StatusOr<std::string> ReadText(const std::string& field, const std::string& path) {
  WEIR_ASSIGN_OR_RETURN(std::string bytes, ReadFile(field, path));
  InflateReader reader(bytes);
  if (!reader.compressed()) return bytes;
  // Reading one byte more than is allowed shows that there are more.
  const absl::StatusOr<std::vector<uint8_t>> text = reader.ReadUpTo(kMostFileBytes + 1);
  if (!text.ok())
    return absl::Status(text.status().code(), absl::StrCat(path, ": ", text.status().message()));
  if (text->size() > kMostFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": it unpacks to more than ", kMostFileBytes, " bytes, as many as are allowed"));
  }
  return std::string(text->begin(), text->end());
}

absl::StatusOr<IdxArray> ReadIdx(const std::string& field, const std::string& path) {
  WEIR_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(field, path));
  return ParseIdx(path, bytes);
}

// The number of classes (0: as many as the labels show), and the source of that number, for messages.
struct Classes {
  int count = 0;
  absl::string_view said_by;
};

// The labels as classes. where(i) names the place of label i in messages.
template <typename T, typename Where>
absl::StatusOr<std::vector<int32_t>> ToClasses(const std::vector<T>& labels, const Classes& classes,
                                               const Where& where) {
  std::vector<int32_t> result(labels.size());
  for (size_t i = 0; i < labels.size(); ++i) {
    const double label = static_cast<double>(labels[i]);
    if (label < 0 || label >= kMostClasses || label != std::floor(label)) {
      return absl::InvalidArgumentError(absl::StrCat(where(i), ": the label is ", label,
                                                     "; expected a whole number from 0 to ", kMostClasses - 1,
                                                     " (the loss mean_squared_error takes any number)"));
    }
    if (classes.count > 0 && label >= classes.count) {
      return absl::InvalidArgumentError(absl::StrCat(where(i), ": the label is ", label, "; ",
                                                     classes.said_by, " has the classes 0 to ",
                                                     classes.count - 1));
    }
    result[i] = static_cast<int32_t>(label);
  }
  return result;
}

template <typename Where>
absl::Status CheckBinary(const std::vector<double>& labels, const Where& where) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] == 0 || labels[i] == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(where(i), ": the label is ", labels[i],
                                                   "; expected 0 or 1 (model.loss sigmoid_cross_entropy)"));
  }
  return absl::OkStatus();
}

int CountClasses(const std::vector<int32_t>& labels) {
  return *std::max_element(labels.begin(), labels.end()) + 1;
}

absl::StatusOr<Dataset> LoadIdx(const v1::DataFiles& files, const std::string& prefix,
                                const v1::DataConfig& config, const std::string& base_dir,
                                const Classes& classes) {
  const std::string images_path = Resolve(files.images(), base_dir),
                    labels_path = Resolve(files.labels(), base_dir);
  WEIR_ASSIGN_OR_RETURN(IdxArray images, ReadIdx(prefix + ".images", images_path));
  WEIR_ASSIGN_OR_RETURN(const IdxArray labels, ReadIdx(prefix + ".labels", labels_path));
  WEIR_RETURN_IF_ERROR(CheckIdxShapes(images_path, images.shape, labels_path, labels.shape));

  const auto where = [&](size_t i) { return absl::StrCat(labels_path, ": label ", i); };
  WEIR_ASSIGN_OR_RETURN(
      std::vector<int32_t> chosen,
      std::visit([&](const auto& values) { return ToClasses(values, classes, where); }, labels.values));
  const bool bytes = std::holds_alternative<std::vector<uint8_t>>(images.values);
  const float scale = config.has_scale() ? config.scale() : bytes ? 1.0f / 255 : 1.0f;
  const int count = classes.count == 0 ? CountClasses(chosen) : classes.count;
  return Dataset(IdxExampleShape(images.shape), std::move(images.values), scale, std::move(chosen), count);
}

// `like`: the header of the training set; empty: this is the training set, and `like` becomes its header.
absl::StatusOr<Dataset> LoadCsv(const v1::DataFiles& files, const std::string& prefix,
                                const v1::DataConfig& config, const std::string& base_dir,
                                v1::ModelConfig::Loss loss, const Classes& classes, CsvHeader* like) {
  const std::string path = Resolve(files.path(), base_dir);
  WEIR_ASSIGN_OR_RETURN(const std::string text, ReadText(prefix + ".path", path));
  WEIR_ASSIGN_OR_RETURN(CsvTable table, ParseCsv(path, text, config, *like));
  if (table.reordered) {
    LogInfo(path, ":", table.header.line, ": the columns come in a different order from that in ",
            config.columns().empty() ? like->file : "data.columns", "; they are taken by their names");
  }
  if (like->names.empty()) *like = std::move(table.header);
  if (table.labels.empty()) return absl::InvalidArgumentError(path + ": there are no examples in it");
  const auto where = [&](size_t i) { return absl::StrCat(path, ":", table.lines[i]); };
  const float scale = config.has_scale() ? config.scale() : 1.0f;
  std::optional<Dataset> data;
  if (loss == v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY) {
    WEIR_ASSIGN_OR_RETURN(std::vector<int32_t> labels, ToClasses(table.labels, classes, where));
    const int count = classes.count == 0 ? CountClasses(labels) : classes.count;
    data.emplace(std::vector<int64_t>{table.features}, std::move(table.values), scale, std::move(labels),
                 count);
  } else {
    if (loss == v1::ModelConfig::LOSS_SIGMOID_CROSS_ENTROPY) {
      WEIR_RETURN_IF_ERROR(CheckBinary(table.labels, where));
    }
    data.emplace(std::vector<int64_t>{table.features}, std::move(table.values), scale,
                 std::vector<float>(table.labels.begin(), table.labels.end()));
  }
  data->AddKeys(std::move(table.keys));
  return *std::move(data);
}

absl::StatusOr<Dataset> LoadSet(const v1::DataFiles& files, const std::string& prefix,
                                const v1::DataConfig& config, const std::string& base_dir,
                                v1::ModelConfig::Loss loss, const Classes& classes, CsvHeader* like) {
  if (config.format() == v1::DataConfig::FORMAT_IDX) return LoadIdx(files, prefix, config, base_dir, classes);
  return LoadCsv(files, prefix, config, base_dir, loss, classes, like);
}

}  // namespace

absl::Status CheckLoss(const v1::DataConfig& config, v1::ModelConfig::Loss loss) {
  if (config.format() == v1::DataConfig::FORMAT_CSV || loss == v1::ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      loss == v1::ModelConfig::LOSS_SIGMOID_CROSS_ENTROPY
          ? "model.loss sigmoid_cross_entropy needs the labels 0 and 1 of data.format csv; this data has "
            "classes, for softmax_cross_entropy"
          : "model.loss mean_squared_error needs numbers as targets, which only data.format csv has; this "
            "data has classes, for softmax_cross_entropy");
}

absl::Status CheckIdxShapes(const std::string& images_path, const std::vector<int64_t>& images,
                            const std::string& labels_path, const std::vector<int64_t>& labels) {
  const auto bad_shape = [](const std::string& path, const std::vector<int64_t>& shape,
                            absl::string_view expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": its shape is [", absl::StrJoin(shape, ", "), "]; expected ", expected));
  };
  if (labels.size() != 1) return bad_shape(labels_path, labels, "labels, [n]");
  if (images.size() < 2 || *std::min_element(images.begin() + 1, images.end()) < 1) {
    return bad_shape(images_path, images,
                     "images, [n, height, width], [n, channels, height, width] or [n, k]");
  }
  if (images[0] != labels[0]) {
    return absl::InvalidArgumentError(absl::StrCat(images_path, " has ", images[0], " images, but ",
                                                   labels_path, " has ", labels[0],
                                                   " labels; the two must belong together"));
  }
  if (labels[0] == 0) return absl::InvalidArgumentError(images_path + ": there are no examples in it");
  return absl::OkStatus();
}

std::vector<int64_t> IdxExampleShape(const std::vector<int64_t>& images) {
  std::vector<int64_t> shape(images.begin() + 1, images.end());
  if (shape.size() == 2) shape.insert(shape.begin(), 1);  // one channel
  return shape;
}

absl::Status CheckSameShape(const char* field, const std::vector<int64_t>& train,
                            const std::vector<int64_t>& other) {
  if (other == train) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " has examples of shape [",
                                                 absl::StrJoin(other, ", "), "], but data.train of [",
                                                 absl::StrJoin(train, ", "), "]"));
}

absl::StatusOr<Datasets> LoadData(const v1::DataConfig& config, const std::string& base_dir,
                                  v1::ModelConfig::Loss loss) {
  WEIR_RETURN_IF_ERROR(CheckLoss(config, loss));
  if (config.format() == v1::DataConfig::FORMAT_DIGITS) {
    return LoadDigits(config.has_scale() ? config.scale() : kDigitsScale);
  }
  const Classes classes{static_cast<int>(config.classes()), "data.classes"};
  CsvHeader header;
  WEIR_ASSIGN_OR_RETURN(Dataset train,
                        LoadSet(config.train(), "data.train", config, base_dir, loss, classes, &header));
  Datasets sets{std::move(train), std::nullopt, std::nullopt};
  const auto held_out = [&](const char* field, const v1::DataFiles& files) -> absl::StatusOr<Dataset> {
    WEIR_ASSIGN_OR_RETURN(
        Dataset set,
        LoadSet(files, field, config, base_dir, loss,
                config.has_classes() ? classes : Classes{sets.train.classes(), "the training set"}, &header));
    WEIR_RETURN_IF_ERROR(CheckSameShape(field, sets.train.shape(), set.shape()));
    return set;
  };
  if (config.has_test()) {
    WEIR_ASSIGN_OR_RETURN(sets.test, held_out("data.test", config.test()));
  }
  if (config.has_validation()) {
    WEIR_ASSIGN_OR_RETURN(sets.validation, held_out("data.validation", config.validation()));
  }
  return sets;
}

}  // namespace weir

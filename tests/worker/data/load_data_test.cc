#include "worker/data/load_data.h"

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "google/protobuf/text_format.h"
#include "worker/data/csv.h"
#include "worker/data/idx.h"
#include "zlib.h"

namespace weir {
namespace {

using v1::DataConfig;
using v1::ModelConfig;

std::string Folder() {
  static const std::string folder = [] {
    const char* base = std::getenv("TEST_TMPDIR");
    std::string name = absl::StrCat(base == nullptr ? "/tmp" : base, "/load_data_XXXXXX");
    REQUIRE(mkdtemp(name.data()) != nullptr);
    return name;
  }();
  return folder;
}

void Write(const std::string& name, const std::string& bytes) {
  std::ofstream(absl::StrCat(Folder(), "/", name), std::ios::binary) << bytes;
}

std::string Gzip(const std::string& bytes) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(bytes.size() + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string Idx(char type, const std::vector<uint32_t>& shape, const std::string& values) {
  std::string bytes = {0, 0, type, static_cast<char>(shape.size())};
  for (const uint32_t size : shape) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(size >> shift);
  }
  return bytes + values;
}

std::string Bytes(std::initializer_list<int> values) { return std::string(values.begin(), values.end()); }

// Two images of 2 x 2.
const std::string kImages = Idx(8, {2, 2, 2}, Bytes({0, 51, 102, 255, 1, 2, 3, 4}));
const std::string kLabels = Idx(8, {2}, Bytes({1, 0}));

DataConfig IdxConfig(const std::string& images, const std::string& labels) {
  DataConfig config;
  config.set_format(DataConfig::FORMAT_IDX);
  config.mutable_train()->set_images(images);
  config.mutable_train()->set_labels(labels);
  return config;
}

DataConfig CsvConfig(const std::string& path) {
  DataConfig config;
  config.set_format(DataConfig::FORMAT_CSV);
  config.mutable_train()->set_path(path);
  return config;
}

Batch All(const Dataset& data) {
  std::vector<int32_t> indexes(static_cast<size_t>(data.size()));
  std::iota(indexes.begin(), indexes.end(), 0);
  Batch batch;
  data.Gather(indexes, &batch);
  return batch;
}

constexpr auto kCrossEntropy = ModelConfig::LOSS_SOFTMAX_CROSS_ENTROPY;
constexpr auto kSquaredError = ModelConfig::LOSS_MEAN_SQUARED_ERROR;

TEST_CASE("The digits are built in: 1,500 to train, 297 to test") {
  DataConfig config;
  config.set_format(DataConfig::FORMAT_DIGITS);
  const auto data = LoadData(config, "", kCrossEntropy);
  REQUIRE(data.ok());
  REQUIRE(data->test.has_value());
  CHECK(data->train.size() == 1500);
  CHECK(data->test->size() == 297);
  CHECK(data->train.shape() == std::vector<int64_t>{1, 8, 8});
  CHECK(data->train.outputs() == 10);
  const Batch train = All(data->train), test = All(*data->test);
  // The counts of the whole set, as in scikit-learn's table.
  std::vector<int> counts(10), of_test(10);
  for (const int32_t label : train.labels) ++counts[static_cast<size_t>(label)];
  for (const int32_t label : test.labels)
    ++counts[static_cast<size_t>(label)], ++of_test[static_cast<size_t>(label)];
  CHECK(counts == std::vector<int>{178, 182, 177, 183, 181, 182, 181, 179, 174, 180});
  CHECK(*std::min_element(of_test.begin(), of_test.end()) > 15);
  CHECK(*std::max_element(train.features.begin(), train.features.end()) == 1.0f);
  double sum = 0;
  for (const float value : train.features) sum += value;
  for (const float value : test.features) sum += value;
  CHECK(sum * 16 == Approx(561718));
  config.set_scale(1);
  CHECK(All(LoadData(config, "", kCrossEntropy)->train).features[10] == train.features[10] * 16);
}

TEST_CASE("IDX files are read, with gzip and without") {
  Write("images", kImages);
  Write("labels.gz", Gzip(kLabels));
  Write("images.gz", Gzip(kImages.substr(0, 10)) + Gzip(kImages.substr(10)));  // two members
  for (const std::string images : {"images", "images.gz"}) {
    DataConfig config = IdxConfig(images, absl::StrCat(Folder(), "/labels.gz"));
    *config.mutable_test() = config.train();
    const auto data = LoadData(config, Folder(), kCrossEntropy);
    REQUIRE(data.ok());
    CHECK(data->train.shape() == std::vector<int64_t>{1, 2, 2});
    CHECK(data->train.classes() == 2);
    REQUIRE(data->test.has_value());
    const Batch batch = All(*data->test);
    CHECK(batch.labels == std::vector<int32_t>{1, 0});
    CHECK(batch.features[0] == 0);
    CHECK(batch.features[1] == Approx(0.2));
    CHECK(batch.features[3] == 1);
  }
  // Other types keep their values.
  Write("floats",
        Idx(0x0D, {2, 2}, Bytes({0x3f, 0x80, 0, 0, 0xbf, 0x80, 0, 0, 0, 0, 0, 0, 0x40, 0x20, 0, 0})));
  Write("shorts", Idx(0x0B, {2}, Bytes({0, 3, 1, 0})));
  const auto data = LoadData(IdxConfig("floats", "shorts"), Folder(), kCrossEntropy);
  REQUIRE(data.ok());
  CHECK_FALSE(data->test.has_value());
  CHECK(data->train.shape() == std::vector<int64_t>{2});
  CHECK(data->train.classes() == 257);
  CHECK(All(data->train).features == std::vector<float>{1, -1, 0, 2.5});
}

TEST_CASE("A damaged or wrong IDX file is refused with what was seen and expected") {
  const std::string floats_with_nan = Idx(0x0D, {1, 1}, Bytes({0x7f, 0xc0, 0, 0}));
  std::string flipped = Gzip(kImages);
  flipped[flipped.size() - 6] ^= 1;  // in the checksum
  // The content is longer than its header says, and the checksum shows that the file was damaged.
  std::string flipped_content = Gzip(kImages + "x");
  flipped_content[flipped_content.size() - 6] ^= 1;
  const struct {
    std::string bytes, message;
  } cases[] = {
      {"", "f: the file is cut short: it ends after 0 bytes, before the header"},
      {kImages.substr(0, 9), "f: the file is cut short: it ends within the sizes of its 3 dimensions"},
      {kImages.substr(0, 20),
       "f: the file is cut short: 4 bytes follow the header; expected 8 for [2, 2, 2] values of type "
       "unsigned byte"},
      {kImages + "x",
       "f: more bytes than expected follow the header; expected 8 for [2, 2, 2] values of type unsigned "
       "byte"},
      {"P5 8 8",
       "f: not an IDX file: it starts with 50 35 20 38; expected 00 00, a type (08 for bytes), and 1 to 4 "
       "dimensions"},
      {Idx(0x0A, {1}, "x"),
       "f: not an IDX file: it starts with 00 00 0a 01; expected 00 00, a type (08 for bytes), and 1 to 4 "
       "dimensions"},
      {Idx(8, {}, ""),
       "f: not an IDX file: it starts with 00 00 08 00; expected 00 00, a type (08 for bytes), and 1 to 4 "
       "dimensions"},
      {Idx(8, {0xffffffff, 28, 28}, "x"),
       "f: its header announces [4294967295, 28, 28] values of type unsigned byte; at most 2147483647 "
       "examples and 8589934592 bytes are allowed"},
      {Idx(8, {2, 0xffffffff, 0xffffffff, 0xffffffff}, "x"),
       "f: its header announces [2, 4294967295, 4294967295, 4294967295] values of type unsigned byte; at "
       "most 2147483647 examples and "
       "8589934592 bytes are allowed"},
      {Idx(8, {60000, 28, 28}, "x"),
       "f: the file is cut short: 1 bytes follow the header; expected 47040000 for [60000, 28, 28] values of "
       "type unsigned byte"},
      {floats_with_nan, "f: value 0 is nan; values must be finite"},
      {Gzip(kImages).substr(0, 25), "f: the gzip data is cut short"},
      {flipped, "f: the gzip data is damaged: incorrect data check"},
      {flipped_content, "f: the gzip data is damaged: incorrect data check"},
      {Gzip(kImages) + "rest", "f: 4 bytes after the end of the gzip data"},
      {Gzip(kImages + "x"),
       "f: more bytes than expected follow the header; expected 8 for [2, 2, 2] values of type unsigned "
       "byte"},
  };
  for (const auto& c : cases) CHECK(ParseIdx("f", c.bytes).status().message() == c.message);
}

TEST_CASE("Images and labels must belong together") {
  Write("images", kImages);
  Write("labels", kLabels);
  Write("labels3", Idx(8, {3}, Bytes({0, 1, 2})));
  Write("labels07", Idx(8, {2}, Bytes({0, 7})));
  Write("negative", Idx(9, {2}, Bytes({0, -1})));
  Write("none", Idx(8, {0, 2, 2}, ""));
  Write("no_labels", Idx(8, {0}, ""));
  Write("flat", Idx(8, {2, 0}, ""));
  Write("other_images", Idx(8, {2, 1, 2}, Bytes({1, 2, 3, 4})));
  const std::string f = Folder();
  const auto message = [&](const DataConfig& config, ModelConfig::Loss loss = kCrossEntropy) {
    return std::string(LoadData(config, f, loss).status().message());
  };
  CHECK(message(IdxConfig("images", "labels3")) ==
        absl::StrCat(f, "/images has 2 images, but ", f,
                     "/labels3 has 3 labels; the two must belong together"));
  CHECK(message(IdxConfig("labels", "labels")) ==
        absl::StrCat(f,
                     "/labels: its shape is [2]; expected images, [n, height, width], [n, channels, height, "
                     "width] or [n, k]"));
  CHECK(message(IdxConfig("images", "images")) ==
        absl::StrCat(f, "/images: its shape is [2, 2, 2]; expected labels, [n]"));
  CHECK(absl::StartsWith(message(IdxConfig("flat", "labels")),
                         absl::StrCat(f, "/flat: its shape is [2, 0]; expected images")));
  CHECK(message(IdxConfig("none", "no_labels")) == f + "/none: there are no examples in it");
  CHECK(message(IdxConfig("missing", "labels")) ==
        absl::StrCat("data.train.images: cannot read ", f, "/missing: No such file or directory"));
  CHECK(LoadData(IdxConfig("missing", "labels"), f, kCrossEntropy).status().code() ==
        absl::StatusCode::kNotFound);
  CHECK(absl::StrContains(message(IdxConfig(f, "labels")), "Is a directory"));
  CHECK(
      message(IdxConfig("images", "negative")) ==
      absl::StrCat(f,
                   "/negative: label 1: the label is -1; expected a whole number from 0 to 1048575 (the loss "
                   "mean_squared_error takes any number)"));
  DataConfig config = IdxConfig("images", "labels");
  config.mutable_test()->set_images("images");
  config.mutable_test()->set_labels("labels07");
  CHECK(message(config) == f + "/labels07: label 1: the label is 7; the training set has the classes 0 to 1");
  config.mutable_test()->set_images("other_images");
  config.mutable_test()->set_labels("labels");
  CHECK(message(config) == "data.test has examples of shape [1, 1, 2], but data.train of [1, 2, 2]");
  CHECK(absl::StartsWith(message(IdxConfig("images", "labels"), kSquaredError),
                         "model.loss mean_squared_error needs numbers"));

  // If given, the number of classes limits the labels, and may be more than the labels show.
  config.set_classes(10);
  config.mutable_test()->set_labels("labels07");
  config.mutable_test()->set_images("images");
  const auto ten = LoadData(config, f, kCrossEntropy);
  REQUIRE(ten.ok());
  CHECK(ten->train.classes() == 10);
  CHECK(ten->test->classes() == 10);
  config.set_classes(7);
  CHECK(message(config) == f + "/labels07: label 1: the label is 7; data.classes has the classes 0 to 6");
}

TEST_CASE("A CSV file may be compressed") {
  const std::string text = "1,2.5,0\n-3,4e-1,2\n";
  Write("table.csv", text);
  Write("table.csv.gz", Gzip(text));
  const auto plain = LoadData(CsvConfig("table.csv"), Folder(), kCrossEntropy);
  const auto packed = LoadData(CsvConfig("table.csv.gz"), Folder(), kCrossEntropy);
  REQUIRE((plain.ok() && packed.ok()));
  CHECK(All(packed->train).features == All(plain->train).features);
  CHECK(All(packed->train).labels == std::vector<int32_t>{0, 2});
  Write("cut.csv.gz", Gzip(text).substr(0, 15));
  CHECK(LoadData(CsvConfig("cut.csv.gz"), Folder(), kCrossEntropy).status().message() ==
        Folder() + "/cut.csv.gz: the gzip data is cut short");
}

TEST_CASE("CSV files are read as classes or as targets") {
  Write("table.csv",
        "\xEF\xBB\xBF"
        "a,b,label\r\n1, 2.5,0\r\n\r\n-3,4e-1,2");
  DataConfig config = CsvConfig("table.csv");
  config.set_header(true);
  config.set_scale(2);
  const auto classes = LoadData(config, Folder(), kCrossEntropy);
  REQUIRE(classes.ok());
  CHECK(classes->train.shape() == std::vector<int64_t>{2});
  CHECK(classes->train.classes() == 3);
  CHECK(All(classes->train).features == std::vector<float>{2, 5, -6, 0.8f});
  CHECK(All(classes->train).labels == std::vector<int32_t>{0, 2});
  for (const int column : {0, -3}) {
    config.set_label_column(column);
    const auto targets = LoadData(config, Folder(), kSquaredError);
    REQUIRE(targets.ok());
    CHECK(targets->train.classes() == 0);
    CHECK(targets->train.outputs() == 1);
    CHECK(All(targets->train).targets == std::vector<float>{1, -3});
    CHECK(All(targets->train).features == std::vector<float>{5, 0, 0.8f, 4});
    CHECK(All(targets->train).labels.empty());
  }
}

TEST_CASE("A fingerprint is of all examples in their order, however the file holds them") {
  const auto of = [](const std::string& text, bool columns = false) {
    DataConfig config = CsvConfig("fingerprint.csv");
    if (columns) {
      REQUIRE(google::protobuf::TextFormat::MergeFromString(
          "columns { name: 'x' } columns { name: 'c' type: COLUMN_CATEGORICAL vocabulary: 'c' } "
          "columns { name: 'y' type: COLUMN_LABEL }",
          &config));
    }
    Write("fingerprint.csv", text);
    const auto data = LoadData(config, Folder(), kCrossEntropy);
    INFO(data.status());
    REQUIRE(data.ok());
    return data->train.Fingerprint();
  };
  const std::string text = "1,2,0\n3,4,1\n5,6,0\n", fingerprint = of(text);
  CHECK(of("1.0, 2,0\r\n3,4e0,1\r\n\r\n5,6,0") == fingerprint);
  CHECK(of(Gzip(text)) == fingerprint);
  CHECK(of("3,4,1\n1,2,0\n5,6,0\n") != fingerprint);
  CHECK(of("1,2,0\n3,4,1\n5,6,0\n5,6,0\n") != fingerprint);
  // It shows what differs.
  const std::string features = fingerprint.substr(0, fingerprint.find(','));
  CHECK(features.size() == std::string("features 01234567").size());
  const std::string other_label = of("1,2,0\n3,4,1\n5,6,1\n");
  CHECK(absl::StartsWith(other_label, features));
  CHECK(other_label != fingerprint);
  CHECK_FALSE(absl::StartsWith(of("1,2,0\n3,4,1\n5,7,0\n"), features));
  const std::string keys = of("1,a,0\n2,b,1\n", true), other_key = of("1,a,0\n2,c,1\n", true);
  CHECK(keys.substr(0, keys.find(", keys")) == other_key.substr(0, other_key.find(", keys")));
  CHECK(keys != other_key);
}

DataConfig ColumnsConfig() {
  DataConfig config;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(
      "format: FORMAT_CSV train { path: 'keys.csv' } separator: '\t' scale: 2 "
      "columns { name: 'y' type: COLUMN_LABEL } "
      "columns { name: 'user' type: COLUMN_CATEGORICAL vocabulary: 'user' } columns { name: 'x' } "
      "columns { name: 'note' type: COLUMN_IGNORED } columns { name: 'id' type: COLUMN_KEY } "
      "columns { name: 'friends' type: COLUMN_CATEGORICAL separator: '|' vocabulary: 'user' }",
      &config));
  return config;
}

TEST_CASE("Columns of a CSV file are numbers, keys of one or several values, and a label") {
  Write("keys.csv",
        "1\tann\t0.5\t?\t18446744073709551615\tbob|ann\n"
        "0\t bob \t\tany,thing\t7\t\n"
        "1\tann\t-3\t\t7\t | eve\r\n");
  const auto data = LoadData(ColumnsConfig(), Folder(), ModelConfig::LOSS_SIGMOID_CROSS_ENTROPY);
  INFO(data.status());
  REQUIRE(data.ok());
  const Dataset& train = data->train;
  CHECK(train.shape() == std::vector<int64_t>{1});
  CHECK(train.outputs() == 1);
  CHECK(All(train).features == std::vector<float>{1, 0, -6});
  CHECK(All(train).targets == std::vector<float>{1, 0, 1});
  CHECK(All(train).labels.empty());
  const uint64_t ann = CategoryKey("user", "ann"), bob = CategoryKey("user", "bob"),
                 eve = CategoryKey("user", "eve");
  REQUIRE(train.keys().size() == 3);
  CHECK(train.keys()[0].name == "user");
  CHECK(train.keys()[0].keys == std::vector<uint64_t>{ann, bob, ann});
  CHECK(train.keys()[0].offsets.empty());
  CHECK(train.keys()[1].keys == std::vector<uint64_t>{18446744073709551615u, 7, 7});
  CHECK(train.keys()[2].keys == std::vector<uint64_t>{bob, ann, eve});
  CHECK(train.keys()[2].offsets == std::vector<int64_t>{0, 2, 2, 3});
  Batch batch;
  train.Gather({2, 0}, &batch);
  CHECK(batch.keys[0].keys == std::vector<uint64_t>{ann, ann});
  CHECK(batch.keys[2].keys == std::vector<uint64_t>{eve, bob, ann});
  CHECK(batch.keys[2].offsets == std::vector<int64_t>{0, 1, 3});
}

DataConfig NamedConfig() {
  DataConfig config;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(
      "format: FORMAT_CSV header: true train { path: 'train.csv' } test { path: 'test.csv' } "
      "columns { name: 'left' } columns { name: 'note' type: COLUMN_IGNORED } columns { name: 'right' } "
      "columns { name: 'user' type: COLUMN_CATEGORICAL vocabulary: 'u' } "
      "columns { name: 'y' type: COLUMN_LABEL }",
      &config));
  return config;
}

TEST_CASE("With a header the columns of data.columns are found by their names, in any order") {
  Write("train.csv", "left,note,right,user,y\n1,?,2,ann,0\n3,?,4,bob,1\n");
  Write("test.csv",
        "\xEF\xBB\xBF \"y\", user ,\"right\",left\r\n0,ann,2,1\r\n1,bob,4,3\r\n");  // the ignored column is
                                                                                    // not there
  const auto data = LoadData(NamedConfig(), Folder(), kCrossEntropy);
  INFO(data.status());
  REQUIRE(data.ok());
  for (const Dataset* set : {&data->train, &*data->test}) {
    CHECK(All(*set).features == std::vector<float>{1, 2, 3, 4});
    CHECK(All(*set).labels == std::vector<int32_t>{0, 1});
    CHECK(set->keys()[0].keys == std::vector<uint64_t>{CategoryKey("u", "ann"), CategoryKey("u", "bob")});
  }
  // A file may have columns without a name, as the index that pandas writes.
  Write("test.csv", ",left,right,user,y\n0,1,2,ann,0\n1,3,4,bob,1\n");
  CHECK(LoadData(NamedConfig(), Folder(), kCrossEntropy)->test->Fingerprint() == data->test->Fingerprint());
}

TEST_CASE("A header that does not fit data.columns is refused with both names") {
  const struct {
    std::string text, message;
  } cases[] = {
      {"left,Right,user,y\n",
       "f:1:6: the column \"Right\" is not in data.columns, of which the header lacks \"right\""},
      {"left,right,user,y,more\n",
       "f:1:19: the column \"more\" is not in data.columns; add it there, with type \"ignored\" if it is no "
       "input"},
      {"left,y\n", "f:1:1: the header lacks \"right\", \"user\" of data.columns; it has left, y"},
      {"left,right,right,user,y\n",
       "f:1:12: column 2 has the name \"right\", as column 1; the names must differ"},
      {"0.5,0.5,1,ann,0\n",
       "f:1:1: data.header is true, but this line has none of the names of data.columns (left, note, right, "
       "user, "
       "y), and begins with \"0.5\"; take data.header out if the file has no header"},
      {"left;right;user;y\n",
       "f:1:1: data.header is true, but this line has none of the names of data.columns (left, note, right, "
       "user, "
       "y), and begins with \"left;right;user;y\"; take data.header out if the file has no header"},
  };
  for (const auto& c : cases) CHECK(ParseCsv("f", c.text, NamedConfig()).status().message() == c.message);
  // Names may be numbers.
  DataConfig numbers;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(
      "header: true columns { name: '0' } columns { name: '1' type: COLUMN_LABEL }", &numbers));
  const auto table = ParseCsv("f", "1,0\n5,6\n", numbers);
  REQUIRE(table.ok());
  CHECK(table->values == std::vector<float>{6});
  CHECK(table->reordered);
}

TEST_CASE("Without data.columns the columns of the test set are those of the training set's header") {
  DataConfig config = CsvConfig("train.csv");
  config.set_header(true);
  config.mutable_test()->set_path("test.csv");
  Write("train.csv", "a,b,label\n1,2,0\n3,4,1\n");
  Write("test.csv", "label,b,a\n0,2,1\n1,4,3\n");
  const auto data = LoadData(config, Folder(), kCrossEntropy);
  INFO(data.status());
  REQUIRE(data.ok());
  CHECK(data->test->Fingerprint() == data->train.Fingerprint());
  const std::string of = " is not in the header of " + Folder() + "/train.csv";
  const auto message = [&](const std::string& test) {
    Write("test.csv", test);
    return std::string(LoadData(config, Folder(), kCrossEntropy).status().message());
  };
  CHECK(message("a,c,label\n1,2,0\n") ==
        Folder() + "/test.csv:1:3: the column \"c\"" + of + ", of which the header lacks \"b\"");
  CHECK(message(",a,b,label\n0,1,2,0\n") == Folder() + "/test.csv:1:1: the column \"\"" + of);
  CHECK(
      message("1,2,0\n3,4,1\n") ==
      Folder() + "/test.csv:1:1: data.header is true, but this line has none of the names of the header of " +
          Folder() +
          "/train.csv (a, b, label), and begins with \"1\"; take data.header out if the file has no header");
}

TEST_CASE("A key is FNV-1a of the vocabulary, a zero byte and the text") {
  // Of the empty string FNV-1a is the offset basis; a byte is mixed in by an exclusive or and a product.
  CHECK(CategoryKey("", "") == 0xcbf29ce484222325u * 0x100000001b3u);
  CHECK(CategoryKey("user", "ann") != CategoryKey("item", "ann"));
  CHECK(CategoryKey("a", "bc") != CategoryKey("ab", "c"));
  // Computed apart from this code.
  CHECK(CategoryKey("user", "ann") == 0x28bdf2819cccac5du);
}

TEST_CASE("Bad values of columns are refused by line, column and name") {
  const struct {
    std::string text, message;
  } cases[] = {
      {"1\ta\t1\t\t-1\tb\n",
       "f:1:8: value 4 (id) is '-1'; expected a whole number from 0 to 18446744073709551615 (if the first "
       "line "
       "holds names, set data.header)"},
      {"1\ta\t1\t\t1\tb\n1\ta\tx\t\t1\tb\n", "f:2:5: value 2 (x) is 'x'; expected a finite number"},
      {"1\ta\t1\t\t1\tb\n\ta\t1\t\t1\tb\n", "f:2:1: value 0 (y) is ''; expected a finite number"},
      {"1\ta\t1\n", "f:1:1: 3 values; expected 6 as in data.columns"},
  };
  for (const auto& c : cases) CHECK(ParseCsv("f", c.text, ColumnsConfig()).status().message() == c.message);
  Write("keys.csv", "2\tann\t0.5\t?\t1\tbob\n");
  CHECK(LoadData(ColumnsConfig(), Folder(), ModelConfig::LOSS_SIGMOID_CROSS_ENTROPY).status().message() ==
        Folder() + "/keys.csv:1: the label is 2; expected 0 or 1 (model.loss sigmoid_cross_entropy)");
  DataConfig digits;
  digits.set_format(DataConfig::FORMAT_DIGITS);
  CHECK(
      LoadData(digits, "", ModelConfig::LOSS_SIGMOID_CROSS_ENTROPY).status().message() ==
      "model.loss sigmoid_cross_entropy needs the labels 0 and 1 of data.format csv; this data has classes, "
      "for softmax_cross_entropy");
}

TEST_CASE("A bad CSV file is refused with line and column") {
  const struct {
    std::string text;
    std::string config;  // of DataConfig
    std::string message;
  } cases[] = {
      {"1,2\n3,x7\n", "", "f:2:3: value 1 is 'x7'; expected a finite number"},
      {"a,b\n1,2\n", "",
       "f:1:1: value 0 is 'a'; expected a finite number (if the first line holds names, set data.header)"},
      {"a,b\n1,\n", "header: true", "f:2:3: value 1 is ''; expected a finite number"},
      {"1,nan\n", "header: true",
       "f:1:1: data.header is true, but this line has numbers only, as an example has; take data.header out "
       "if the "
       "file has no header, or list the names in data.columns if these are names"},
      {"\n0,0,1\n", "header: true",
       "f:2:1: data.header is true, but this line has numbers only, as an example has; take data.header out "
       "if the "
       "file has no header, or list the names in data.columns if these are names"},
      {"a,b\n1,2,3\n", "header: true", "f:2:1: 3 values; expected 2 as in the header"},
      {"1,2\n\"1,5\",2\n", "",
       "f:2:1: 3 values; expected 2 as in the lines before (a value cannot contain the separator, in quotes "
       "neither)"},
      {"a,b,a\n1,2,3\n", "header: true",
       "f:1:5: column 2 has the name \"a\", as column 0; the names must differ"},
      {"\"a,b\",c\n1,2,3\n", "header: true",
       "f:1:1: the name \"\\\"a\" has a quote in it; a name cannot contain quotes or data.separator"},
      {std::string("a\0,\0b\0", 6), "header: true",
       "f:1:2: a byte of 0; expected text in UTF-8 (is it UTF-16, or no text at all?)"},
      {"1,2\n1,nan\n", "", "f:2:3: value 1 is 'nan'; expected a finite number"},
      {"1,2\n1e39,1\n", "", "f:2:1: value 0 is '1e39'; expected a finite number"},
      {"1,2\n\n1,2,3\n", "", "f:3:1: 3 values; expected 2 as in the lines before"},
      {"1\n", "", "f:1:1: one value; expected at least one feature and the label, separated by commas"},
      {"1,2\n", "label_column: 2",
       "f:1:1: the line has 2 values, so data.label_column must be within [-2, 1]; it is 2"},
      {"1,2\n", "label_column: -3",
       "f:1:1: the line has 2 values, so data.label_column must be within [-2, 1]; it is -3"},
  };
  for (const auto& c : cases) {
    DataConfig config;
    REQUIRE(google::protobuf::TextFormat::ParseFromString(c.config, &config));
    CHECK(ParseCsv("f", c.text, config).status().message() == c.message);
  }

  Write("empty.csv", "a,b\n");
  Write("fraction.csv", "1,0\n1,0.5\n");
  DataConfig config = CsvConfig("empty.csv");
  config.set_header(true);
  CHECK(LoadData(config, Folder(), kCrossEntropy).status().message() ==
        Folder() + "/empty.csv: there are no examples in it");
  CHECK(LoadData(CsvConfig("fraction.csv"), Folder(), kCrossEntropy).status().message() ==
        Folder() +
            "/fraction.csv:2: the label is 0.5; expected a whole number from 0 to 1048575 (the loss "
            "mean_squared_error "
            "takes any number)");
}

}  // namespace
}  // namespace weir

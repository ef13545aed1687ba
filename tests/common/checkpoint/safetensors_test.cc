#include "common/checkpoint/safetensors.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/checksums.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

std::string WithHeader(const std::string& json, const std::string& data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i));
  return out + json + data;
}

absl::StatusOr<SafetensorsHeader> Read(const std::string& content) {
  FaultyFileSystem fs(1);
  (void)*fs.Create("/f");
  fs.SetContents("/f", content);
  return ReadSafetensorsHeader(**fs.Open("/f"), "/f");
}

TEST_CASE("safetensors: what is written is read again, with every checksum") {
  FaultyFileSystem fs(1);
  const std::vector<StoredTensor> tensors = {{"a", TensorType::kF32, {2, 3}},
                                             {"none", TensorType::kU64, {4, 0}},
                                             {"ü \"b\"\n", TensorType::kI64, {}},
                                             {"c", TensorType::kU64, {3}},
                                             {"last", TensorType::kF32, {0}}};
  const std::map<std::string, std::string> metadata = {{"k", "v \"\\"}, {"", "empty"}};
  const auto file = *fs.Create("/f");
  auto writer = SafetensorsWriter::Create(*file, "/f", tensors, metadata);
  REQUIRE(writer.ok());
  std::string data;
  for (int i = 0; i < 24 + 8 + 24; ++i) data += static_cast<char>(i * 7);
  // In pieces of any length.
  REQUIRE((*writer)->Append(data.substr(0, 3)).ok());
  REQUIRE((*writer)->Append(data.substr(3, 40)).ok());
  REQUIRE((*writer)->Append(data.substr(43)).ok());
  const auto sums = (*writer)->Finish();
  REQUIRE(sums.ok());

  const std::string content = fs.Contents("/f");
  CHECK(sums->bytes == content.size());
  CHECK(sums->crc32c == Crc32c(content));
  CHECK(sums->header_bytes % 8 == 0);
  CHECK(content.substr(sums->header_bytes) == data);
  CHECK(sums->header_crc32c == Crc32c(content.substr(0, sums->header_bytes)));
  CHECK(sums->tensors == std::vector<uint32_t>{Crc32c(data.substr(0, 24)), 0, Crc32c(data.substr(24, 8)),
                                               Crc32c(data.substr(32)), 0});

  const auto header = Read(content);
  REQUIRE(header.status() == absl::OkStatus());
  CHECK(header->bytes == sums->header_bytes);
  CHECK(header->metadata == metadata);
  REQUIRE(header->tensors.size() == tensors.size());
  uint64_t end = 0, bytes = 0;
  for (const StoredTensor& tensor : header->tensors) {
    CHECK(tensor.offset == end);
    end += tensor.bytes;
    bytes += tensor.bytes;
    for (const StoredTensor& written : tensors) {
      if (written.name == tensor.name) {
        CHECK((written.shape == tensor.shape && written.type == tensor.type));
      }
    }
  }
  CHECK(bytes == data.size());
}

TEST_CASE("safetensors: a file without tensors") {
  FaultyFileSystem fs(1);
  const auto file = *fs.Create("/f");
  auto writer = SafetensorsWriter::Create(*file, "/f", {}, {});
  REQUIRE(writer.ok());
  REQUIRE((*writer)->Finish().ok());
  CHECK(Read(fs.Contents("/f"))->tensors.empty());
}

TEST_CASE("safetensors: a shape beyond 64 bits is refused by the writer") {
  FaultyFileSystem fs(1);
  const auto file = *fs.Create("/f");
  const auto writer = SafetensorsWriter::Create(*file, "/f", {{"a", TensorType::kF32, {1ull << 62, 2}}}, {});
  CHECK(writer.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(fs.Contents("/f").empty());
}

TEST_CASE("safetensors: headers that lie are refused, with the tensor") {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data(8, 'x');
  REQUIRE(Read(WithHeader(good, data)).ok());
  // A file of another program: any order and padding.
  REQUIRE(Read(WithHeader(R"({ "b":{"shape":[1],"data_offsets":[4,8],"dtype":"F32"},
      "a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}, "__metadata__": {},
      "c":{"dtype":"F16","shape":[1,1],"data_offsets":[2,4]}}   )",
                          data))
              .ok());

  const auto tensor = [](const std::string& inner) { return R"({"a":{)" + inner + "}}"; };
  const std::vector<std::pair<std::string, std::string>> bad = {
      {WithHeader("", ""), "header"},
      {WithHeader("[]", ""), "object"},
      {WithHeader("{", ""), "header"},
      {WithHeader(good, data + "x"), "9 follow the header"},
      {WithHeader(good, data.substr(1)), "\"a\": data_offsets [0, 8]"},
      {WithHeader(tensor(R"("dtype":"C64","shape":[1],"data_offsets":[0,8])"), data), "dtype"},
      {WithHeader(tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), data), "shape [3]"},
      {WithHeader(tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), data), "\"a\""},
      {WithHeader(tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), data), "\"a\""},
      {WithHeader(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), data), "[8, 0]"},
      {WithHeader(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"), data), "\"a\""},
      {WithHeader(tensor(R"("dtype":"F32","shape":[2])"), data), "\"a\""},
      {WithHeader(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1)"), data), "\"a\""},
      {WithHeader(tensor(R"("dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8])"), data),
       "\"a\": shape"},
      {WithHeader(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615])"), data),
       "\"a\": data_offsets"},
      {WithHeader(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), data), "\"a\" begins"},
      {WithHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                      "b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                  data.substr(4)),
       "begins at byte 0"},
      {WithHeader(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
                      "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  data),
       "\"a\" is already there"},
      {WithHeader(R"({"__metadata__":{"k":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data),
       "\"k\" must be a string"},
      {WithHeader(R"({"__metadata__":[]})", ""), "__metadata__"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10), "should have 9223372036854775807 bytes"},
      {std::string("\x03\0\0\0\0\0\0\0{}", 10), "should have 3 bytes"},
      {"short", "5 bytes"},
      {"", "0 bytes"}};
  for (const auto& [content, text] : bad) {
    const absl::Status status = Read(content).status();
    INFO(text << ": " << status);
    CHECK(status.code() == absl::StatusCode::kDataLoss);
    CHECK(absl::StrContains(status.message(), "/f"));
    CHECK(absl::StrContains(status.message(), text));
  }
}

}  // namespace
}  // namespace weir

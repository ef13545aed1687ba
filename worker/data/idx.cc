#include "worker/data/idx.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "worker/data/inflate.h"

namespace weir {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 33;  // of the values
constexpr uint64_t kMostExamples = 0x7fffffff;      // positions are int32
constexpr int kMostDimensions = 4;                  // [n], [n, k], [n, h, w], [n, c, h, w]

struct Type {
  uint8_t code;
  size_t size;
  const char* name;
};
constexpr Type kTypes[] = {{0x08, 1, "unsigned byte"}, {0x09, 1, "signed byte"}, {0x0B, 2, "int16"},
                           {0x0C, 4, "int32"},         {0x0D, 4, "float32"},     {0x0E, 8, "float64"}};

uint64_t BigEndian(const uint8_t* bytes, size_t n) {
  uint64_t value = 0;
  for (size_t i = 0; i < n; ++i) value = value << 8 | bytes[i];
  return value;
}

float Decode(const Type& type, const uint8_t* bytes) {
  const uint64_t bits = BigEndian(bytes, type.size);
  switch (type.code) {
    case 0x09:
      return static_cast<float>(static_cast<int8_t>(bits));
    case 0x0B:
      return static_cast<float>(static_cast<int16_t>(bits));
    case 0x0C:
      return static_cast<float>(static_cast<int32_t>(bits));
    case 0x0D: {
      const uint32_t word = static_cast<uint32_t>(bits);
      float value;
      std::memcpy(&value, &word, sizeof value);
      return value;
    }
    case 0x0E: {
      double value;
      std::memcpy(&value, &bits, sizeof value);
      return static_cast<float>(value);
    }
  }
  std::abort();  // kTypes has no other code that comes here
}

// What comes before the values.
struct Header {
  const Type* type = nullptr;
  std::vector<int64_t> shape;
  uint64_t bytes = 0;  // of the values
};

absl::StatusOr<Header> ParseHeader(InflateReader* reader) {
  WEIR_ASSIGN_OR_RETURN(const std::vector<uint8_t> magic, reader->ReadUpTo(4));
  if (magic.size() < 4) {
    return absl::DataLossError(
        absl::StrCat("the file is cut short: it ends after ", magic.size(), " bytes, before the header"));
  }
  const Type* type =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& t) { return t.code == magic[2]; });
  if (magic[0] != 0 || magic[1] != 0 || type == std::end(kTypes) || magic[3] < 1 ||
      magic[3] > kMostDimensions) {
    return absl::InvalidArgumentError(
        absl::StrFormat("not an IDX file: it starts with %02x %02x %02x %02x; expected 00 00, a type (08 for "
                        "bytes), and 1 to %d dimensions",
                        magic[0], magic[1], magic[2], magic[3], kMostDimensions));
  }
  WEIR_ASSIGN_OR_RETURN(const std::vector<uint8_t> sizes, reader->ReadUpTo(4u * magic[3]));
  if (sizes.size() < 4u * magic[3]) {
    return absl::DataLossError(absl::StrCat("the file is cut short: it ends within the sizes of its ",
                                            int{magic[3]}, " dimensions"));
  }
  Header header;
  header.type = type;
  uint64_t bytes = type->size;
  for (size_t i = 0; i < magic[3]; ++i) {
    const uint64_t size = BigEndian(&sizes[4 * i], 4);
    header.shape.push_back(static_cast<int64_t>(size));
    // Neither factor passes 2^33, so the product of a legal prefix with a size does not overflow.
    bytes = bytes > kMostBytes ? bytes : bytes * size;
  }
  if (static_cast<uint64_t>(header.shape[0]) > kMostExamples || bytes > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "its header announces [", absl::StrJoin(header.shape, ", "), "] values of type ", type->name,
        "; at most ", kMostExamples, " examples and ", kMostBytes, " bytes are allowed"));
  }
  header.bytes = bytes;
  return header;
}

absl::StatusOr<IdxArray> Parse(InflateReader* reader) {
  WEIR_ASSIGN_OR_RETURN(Header header, ParseHeader(reader));
  const Type* const type = header.type;
  const uint64_t bytes = header.bytes;
  IdxArray array;
  array.shape = std::move(header.shape);
  // Reads one byte more than announced, to see whether there is one.
  WEIR_ASSIGN_OR_RETURN(std::vector<uint8_t> values, reader->ReadUpTo(bytes + 1));
  if (values.size() != bytes) {
    const std::string seen = values.size() < bytes
                                 ? absl::StrCat("the file is cut short: ", values.size(), " bytes")
                                 : std::string("more bytes than expected");
    return absl::DataLossError(absl::StrCat(seen, " follow the header; expected ", bytes, " for [",
                                            absl::StrJoin(array.shape, ", "), "] values of type ",
                                            type->name));
  }
  if (type->code == 0x08) {
    array.values = std::move(values);
    return array;
  }
  std::vector<float> floats(values.size() / type->size);
  for (size_t i = 0; i < floats.size(); ++i) {
    floats[i] = Decode(*type, &values[i * type->size]);
    if (!std::isfinite(floats[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("value ", i, " is ", floats[i], "; values must be finite"));
    }
  }
  array.values = std::move(floats);
  return array;
}

}  // namespace

absl::StatusOr<IdxArray> ParseIdx(absl::string_view file, absl::string_view bytes) {
  InflateReader reader(bytes);
  absl::StatusOr<IdxArray> array = Parse(&reader);
  if (array.ok()) return array;
  // The content may be wrong because the gzip data that holds it is damaged.
  const absl::Status damage = reader.Check();
  const absl::Status& cause = damage.ok() ? array.status() : damage;
  return absl::Status(cause.code(), absl::StrCat(file, ": ", cause.message()));
}

absl::StatusOr<IdxHeader> ParseIdxHeader(absl::string_view file, absl::string_view beginning) {
  InflateReader reader(beginning);
  absl::StatusOr<Header> header = ParseHeader(&reader);
  if (header.ok()) {
    // A vector that grows takes up to twice its size. Bytes stay bytes, others become floats beside them.
    const auto size = static_cast<int64_t>(header->type->size);
    const int64_t floats = header->type->code == 0x08 ? 0 : static_cast<int64_t>(sizeof(float));
    return IdxHeader{std::move(header->shape), 2 * size + floats};
  }
  return absl::Status(header.status().code(), absl::StrCat(file, ": ", header.status().message()));
}

}  // namespace weir

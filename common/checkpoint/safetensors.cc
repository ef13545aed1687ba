#include "common/checkpoint/safetensors.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/config/json_document.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are written as they lie in memory");

namespace weir {
namespace {

constexpr const char kMetadata[] = "__metadata__";

struct TypeName {
  TensorType type;
  const char* name;
  uint64_t bytes;
};
constexpr TypeName kTypes[] = {
    {TensorType::kF32, "F32", 4},  {TensorType::kBF16, "BF16", 2}, {TensorType::kF16, "F16", 2},
    {TensorType::kI64, "I64", 8},  {TensorType::kU64, "U64", 8},   {TensorType::kF64, "F64", 8},
    {TensorType::kI32, "I32", 4},  {TensorType::kU32, "U32", 4},   {TensorType::kI16, "I16", 2},
    {TensorType::kU16, "U16", 2},  {TensorType::kI8, "I8", 1},     {TensorType::kU8, "U8", 1},
    {TensorType::kBool, "BOOL", 1}};

const TypeName& Describe(TensorType type) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes),
                       [&](const TypeName& t) { return t.type == type; });
}

// False: the bytes do not fit into 64 bits.
bool BytesOf(TensorType type, const std::vector<uint64_t>& shape, uint64_t* bytes) {
  *bytes = Describe(type).bytes;
  bool empty = false;
  for (uint64_t d : shape) {
    empty = empty || d == 0;
    if (d != 0 && __builtin_mul_overflow(*bytes, d, bytes)) return false;
  }
  if (empty) *bytes = 0;
  return true;
}

// Reads one header. Its errors say what is wrong; the caller says where.
class HeaderReader {
 public:
  explicit HeaderReader(uint64_t data_bytes) : data_bytes_(data_bytes) {}

  absl::Status Read(const JsonValue& json, SafetensorsHeader* header) const {
    if (json.kind != JsonValue::Kind::kObject) return Bad("must be an object");
    for (const JsonMember& member : json.members) {
      if (member.key == kMetadata) {
        WEIR_RETURN_IF_ERROR(ReadMetadata(member.value, header));
      } else {
        header->tensors.emplace_back();
        WEIR_RETURN_IF_ERROR(ReadTensor(member, &header->tensors.back()));
      }
    }
    std::vector<StoredTensor>& tensors = header->tensors;
    // A tensor without bytes goes before the tensor that begins at the same offset.
    std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
      return std::make_pair(a.offset, a.bytes) < std::make_pair(b.offset, b.bytes);
    });
    uint64_t end = 0;
    for (const StoredTensor& tensor : tensors) {
      if (tensor.offset != end) {
        return Bad(absl::StrCat("tensor ", JsonQuote(tensor.name), " begins at byte ", tensor.offset,
                                ", though what lies before it ends at ", end));
      }
      end += tensor.bytes;
    }
    if (end != data_bytes_) {
      return Bad(absl::StrCat("the tensors have ", end, " bytes, and ", data_bytes_, " follow the header"));
    }
    return absl::OkStatus();
  }

 private:
  static absl::Status Bad(absl::string_view what) { return absl::DataLossError(what); }

  static absl::Status ReadMetadata(const JsonValue& json, SafetensorsHeader* header) {
    if (json.kind != JsonValue::Kind::kObject) return Bad("__metadata__ must be an object");
    for (const JsonMember& member : json.members) {
      if (member.value.kind != JsonValue::Kind::kString) {
        return Bad(absl::StrCat("__metadata__ ", JsonQuote(member.key), " must be a string"));
      }
      header->metadata[member.key] = member.value.text;
    }
    return absl::OkStatus();
  }

  static bool ReadNumbers(const JsonMember* member, std::vector<uint64_t>* numbers) {
    if (member == nullptr || member->value.kind != JsonValue::Kind::kArray) return false;
    for (const JsonValue& element : member->value.elements) {
      if (element.kind != JsonValue::Kind::kUnsigned) return false;
      numbers->push_back(element.natural);
    }
    return true;
  }

  absl::Status ReadTensor(const JsonMember& json, StoredTensor* tensor) const {
    const auto bad = [&](absl::string_view what) {
      return Bad(absl::StrCat("tensor ", JsonQuote(json.key), ": ", what));
    };
    tensor->name = json.key;
    const JsonMember* const type = json.value.Find("dtype");
    std::vector<uint64_t> offsets;
    if (json.value.kind != JsonValue::Kind::kObject || json.value.members.size() != 3 || type == nullptr ||
        type->value.kind != JsonValue::Kind::kString ||
        !ReadNumbers(json.value.Find("shape"), &tensor->shape) ||
        !ReadNumbers(json.value.Find("data_offsets"), &offsets) || offsets.size() != 2) {
      return bad("must have a dtype, a shape and two data_offsets, all natural numbers, and nothing else");
    }
    const auto known = std::find_if(std::begin(kTypes), std::end(kTypes),
                                    [&](const TypeName& t) { return type->value.text == t.name; });
    if (known == std::end(kTypes)) {
      const std::string names = absl::StrJoin(
          kTypes, ", ", [](std::string* out, const TypeName& t) { absl::StrAppend(out, t.name); });
      return bad(absl::StrCat("dtype must be one of ", names, "; got ", type->value.Describe()));
    }
    tensor->type = known->type;
    if (offsets[0] > offsets[1] || offsets[1] > data_bytes_) {
      return bad(absl::StrCat("data_offsets [", offsets[0], ", ", offsets[1], "] do not lie within the ",
                              data_bytes_, " bytes that follow the header"));
    }
    tensor->offset = offsets[0];
    if (!BytesOf(tensor->type, tensor->shape, &tensor->bytes) || tensor->bytes != offsets[1] - offsets[0]) {
      return bad(absl::StrCat("shape [", absl::StrJoin(tensor->shape, ", "), "] of ", known->name,
                              " does not have the ", offsets[1] - offsets[0], " bytes of its data_offsets"));
    }
    return absl::OkStatus();
  }

  const uint64_t data_bytes_;
};

std::string EncodeHeader(const std::vector<StoredTensor>& tensors,
                         const std::map<std::string, std::string>& metadata) {
  std::string json =
      absl::StrCat("{\"", kMetadata, "\":{",
                   absl::StrJoin(metadata, ",",
                                 [](std::string* out, const auto& entry) {
                                   absl::StrAppend(out, JsonQuote(entry.first), ":", JsonQuote(entry.second));
                                 }),
                   "}");
  for (const StoredTensor& t : tensors) {
    absl::StrAppend(&json, ",", JsonQuote(t.name), ":{\"dtype\":\"", Describe(t.type).name, "\",\"shape\":[",
                    absl::StrJoin(t.shape, ","), "],\"data_offsets\":[", t.offset, ",", t.offset + t.bytes,
                    "]}");
  }
  json += "}";
  json.resize((json.size() + 7) / 8 * 8, ' ');
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(json.size() >> (8 * i));
  return out + json;
}

}  // namespace

const char* NameOf(TensorType type) { return Describe(type).name; }

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const ReadableFile& file, const std::string& path) {
  const auto bad = [&](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(path, ": ", what));
  };
  unsigned char length[8];
  if (file.size() < sizeof length) {
    return bad(absl::StrCat("has ", file.size(), " bytes, which is no safetensors file"));
  }
  WEIR_RETURN_IF_ERROR(file.Read(0, absl::MakeSpan(reinterpret_cast<char*>(length), sizeof length)));
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | length[i];
  if (header_bytes > kMaxSafetensorsHeader || header_bytes > file.size() - sizeof length) {
    return bad(absl::StrCat("its header should have ", header_bytes, " bytes; allowed are ",
                            std::min(kMaxSafetensorsHeader, file.size() - sizeof length)));
  }
  std::string bytes(sizeof length + header_bytes, '\0');
  WEIR_RETURN_IF_ERROR(file.Read(0, absl::MakeSpan(&bytes[0], bytes.size())));
  const absl::StatusOr<JsonValue> json =
      ParseJson(absl::string_view(bytes).substr(sizeof length), absl::StrCat(path, " (header)"));
  if (!json.ok()) return absl::DataLossError(json.status().message());

  SafetensorsHeader header;
  header.bytes = bytes.size();
  if (const absl::Status status = HeaderReader(file.size() - header.bytes).Read(*json, &header);
      !status.ok()) {
    return bad(absl::StrCat("header: ", status.message()));
  }
  return header;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    WritableFile& file, const std::string& path, std::vector<StoredTensor> tensors,
    const std::map<std::string, std::string>& metadata) {
  uint64_t offset = 0;
  for (StoredTensor& tensor : tensors) {
    if (!BytesOf(tensor.type, tensor.shape, &tensor.bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor '", tensor.name, "' is too large"));
    }
    tensor.offset = offset;
    offset += tensor.bytes;
  }
  const std::string header = EncodeHeader(tensors, metadata);
  if (header.size() > kMaxSafetensorsHeader) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the header has ", header.size(), " bytes; at most ", kMaxSafetensorsHeader, " are allowed"));
  }
  auto writer = absl::WrapUnique(new SafetensorsWriter(file, std::move(tensors)));
  Checksums& sums = writer->sums_;
  sums.bytes = sums.header_bytes = header.size();
  sums.crc32c = sums.header_crc32c = Crc32c(header);
  if (!writer->tensors_.empty()) writer->missing_ = writer->tensors_[0].bytes;
  writer->NoteEnds();
  WEIR_RETURN_IF_ERROR(writer->file_.Append(header));
  return writer;
}

void SafetensorsWriter::NoteEnds() {
  while (missing_ == 0 && sums_.tensors.size() < tensors_.size()) {
    const uint64_t bytes = tensors_[sums_.tensors.size()].bytes;
    sums_.crc32c = ConcatCrc32c(sums_.crc32c, crc_, bytes);
    sums_.bytes += bytes;
    sums_.tensors.push_back(std::exchange(crc_, 0));
    if (sums_.tensors.size() < tensors_.size()) missing_ = tensors_[sums_.tensors.size()].bytes;
  }
}

void SafetensorsWriter::Note(absl::string_view bytes) {
  while (!bytes.empty()) {
    if (missing_ == 0) std::abort();  // the caller's arithmetic is broken
    const size_t n = std::min<uint64_t>(bytes.size(), missing_);
    crc_ = ExtendCrc32c(crc_, bytes.data(), n);
    missing_ -= n;
    bytes.remove_prefix(n);
    NoteEnds();
  }
}

absl::Status SafetensorsWriter::Append(absl::string_view bytes) {
  // A chunk is still in the cache when it is written.
  constexpr size_t kChunk = 1 << 20;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(kChunk, bytes.size()))) {
    Note(bytes.substr(0, kChunk));
    WEIR_RETURN_IF_ERROR(file_.Append(bytes.substr(0, kChunk)));
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsWriter::Checksums> SafetensorsWriter::Finish() {
  if (sums_.tensors.size() != tensors_.size()) std::abort();  // the caller's arithmetic is broken
  WEIR_RETURN_IF_ERROR(file_.Sync());
  WEIR_RETURN_IF_ERROR(file_.Close());
  return sums_;
}

}  // namespace weir

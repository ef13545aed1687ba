// An array in a file of the IDX format, gzip or not.
#include "tests/fuzz/fuzz_target.h"
#include "worker/data/idx.h"

namespace weir {

bool ReadInput(absl::string_view input) {
  const absl::StatusOr<IdxHeader> header = ParseIdxHeader("input", input);
  const absl::StatusOr<IdxArray> array = ParseIdx("input", input);
  if (!array.ok()) return false;
  FuzzCheck(header.ok() && header->shape == array->shape, "the header has the shape of the array");
  uint64_t elements = 1;
  for (const int64_t size : array->shape) elements *= static_cast<uint64_t>(size);
  const size_t values = std::visit([](const auto& v) { return v.size(); }, array->values);
  FuzzCheck(values == elements, "there are as many values as the shape says");
  return true;
}

std::vector<std::string> Seeds() {
  using std::string_literals::operator""s;
  return {
      "\0\0\x08\x01\0\0\0\x03\1\2\3"s,
      "\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x02\1\2\3\4"s,
      "\0\0\x0d\x01\0\0\0\x01\x3f\x80\0\0"s,
      "\0\0\x0e\x01\0\0\0\x01\x3f\xf0\0\0\0\0\0\0"s,
      // The first one, compressed.
      "\x1f\x8b\x08\0\0\0\0\0\x02\xff\x63\x60\xe0\x60\x64\x60\x60\x60\x66\x64\x62\x06\0\x8b\xe5\xbd\xa4\x0b\0\0\0"s,
  };
}

std::vector<std::string> Words() {
  using std::string_literals::operator""s;
  return {"\0\0\x08\x01"s,    "\0\0\x0b\x02"s, "\0\0\x0c\x04"s,
          "\x7f\xff\xff\xff", "\x80\0\0\0"s,   "\x1f\x8b\x08"};
}

}  // namespace weir

#include <elf.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace {

// As the toolchain has compiled this file, it compiles all others: see .bazelrc.
#if !defined(__SSP_STRONG__)
#error "compile with -fstack-protector-strong"
#endif
#if !defined(_FORTIFY_SOURCE) || _FORTIFY_SOURCE < 2
#error "compile with -D_FORTIFY_SOURCE=2"
#endif

// A program or a library of this machine, as the loader reads it.
class Elf {
 public:
  explicit Elf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    INFO(path);
    REQUIRE(bytes_.size() > sizeof(Elf64_Ehdr));
    REQUIRE(std::memcmp(bytes_.data(), ELFMAG, SELFMAG) == 0);
    header_ = At<Elf64_Ehdr>(0);
  }

  int type() const { return header_.e_type; }

  std::optional<Elf64_Phdr> Segment(uint32_t type) const {
    for (int i = 0; i < header_.e_phnum; ++i) {
      const auto segment = At<Elf64_Phdr>(header_.e_phoff + i * sizeof(Elf64_Phdr));
      if (segment.p_type == type) return segment;
    }
    return std::nullopt;
  }

  // 0 if the dynamic section has no such entry.
  uint64_t Dynamic(int64_t tag) const {
    const std::optional<Elf64_Phdr> dynamic = Segment(PT_DYNAMIC);
    REQUIRE(dynamic.has_value());
    for (uint64_t at = 0; at < dynamic->p_filesz; at += sizeof(Elf64_Dyn)) {
      const auto entry = At<Elf64_Dyn>(dynamic->p_offset + at);
      if (entry.d_tag == tag) return entry.d_un.d_val;
    }
    return 0;
  }

 private:
  template <typename T>
  T At(uint64_t offset) const {
    REQUIRE(offset + sizeof(T) <= bytes_.size());
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  std::vector<char> bytes_;
  Elf64_Ehdr header_;
};

TEST_CASE("programs are hardened") {
  for (const char* path : {"cli/weir", "ps_server/ps_server", "worker/worker", "bench/weir_bench"}) {
    INFO(path);
    const Elf program(path);
    // Position-independent, so that each start has other addresses.
    CHECK(program.type() == ET_DYN);
    CHECK((program.Dynamic(DT_FLAGS_1) & DF_1_PIE) != 0);
    // The loader resolves all functions first, and then makes the table of their addresses read-only.
    CHECK(program.Segment(PT_GNU_RELRO).has_value());
    CHECK((program.Dynamic(DT_FLAGS_1) & DF_1_NOW) != 0);
    const std::optional<Elf64_Phdr> stack = program.Segment(PT_GNU_STACK);
    REQUIRE(stack.has_value());
    CHECK((stack->p_flags & PF_X) == 0);
  }
}

TEST_CASE("the libraries for programs in Python and in C++ are hardened") {
  for (const char* path : {"python/capi/libweir.so", "client/libweir_client.so"}) {
    INFO(path);
    const Elf library(path);
    CHECK(library.Segment(PT_GNU_RELRO).has_value());
    CHECK((library.Dynamic(DT_FLAGS_1) & DF_1_NOW) != 0);
    const std::optional<Elf64_Phdr> stack = library.Segment(PT_GNU_STACK);
    REQUIRE(stack.has_value());
    CHECK((stack->p_flags & PF_X) == 0);
  }
}

}  // namespace

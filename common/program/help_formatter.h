#pragma once

#include <string>

#include "CLI/CLI.hpp"

namespace weir {

// An option as people read it, in help and on manual pages.
struct OptionText {
  std::string name;         // "--ps=N", "--restart[=N]", "-h,--help"; "config FILE" for a word without a flag
  std::string description;  // "Servers [1 to 64; default: 1]"
};

OptionText Describe(const CLI::Option& option);

// Lists options as Describe() has them.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool) const override;
  // These are in the name and the description.
  std::string make_option_opts(const CLI::Option*) const override { return ""; }
  std::string make_option_desc(const CLI::Option* option) const override;
  // The words without a flag, in the line of the usage.
  std::string make_option_usage(const CLI::Option* option) const override;
};

}  // namespace weir

// The file of a job's token.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/job_token.h"
#include "common/system/unique_fd.h"
#include "tests/fuzz/fuzz_target.h"

namespace weir {

bool ReadInput(absl::string_view input) {
  const UniqueFd file(memfd_create("token", MFD_CLOEXEC));
  FuzzCheck(file.valid() && fchmod(file.get(), 0600) == 0 &&
                write(file.get(), input.data(), input.size()) == static_cast<ssize_t>(input.size()),
            "this machine has room for a file");
  const absl::StatusOr<JobToken> token = JobToken::Read(absl::StrCat("/proc/self/fd/", file.get()));
  if (!token.ok()) {
    const absl::string_view digits = input.substr(0, 16);
    FuzzCheck(digits.size() < 16 || !std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit) ||
                  !absl::StrContains(token.status().message(), digits),
              "a refusal does not show what the file holds");
    return false;
  }
  FuzzCheck(!token->empty() && token->Authorizes(token->Authorization()), "a token authorizes itself");
  FuzzCheck(!token->Authorizes(token->Authorization() + "0"), "and nothing else");
  return true;
}

std::vector<std::string> Seeds() {
  return {"0123456789abcdef0123456789ABCDEF", "0123456789abcdef0123456789abcdef0123456789abcdef\r\n",
          std::string(512, 'f') + "\n"};
}

std::vector<std::string> Words() { return {"\n", "\r\n", " ", "Bearer "}; }

}  // namespace weir

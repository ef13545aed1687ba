#include "common/rpc/job_token.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>

#include "absl/strings/escaping.h"
#include "catch2/catch.hpp"
#include "tests/skip.h"

namespace weir {
namespace {

using Catch::Contains;

const std::string kDigits(64, 'a');

class Folder {
 public:
  Folder() {
    const char* parent = std::getenv("TEST_TMPDIR");
    path_ = std::string(parent == nullptr ? "/tmp" : parent) + "/token-XXXXXX";
    REQUIRE(mkdtemp(path_.data()) != nullptr);
  }
  ~Folder() { std::filesystem::remove_all(path_); }

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string File(const std::string& text, mode_t mode) const {
    const std::string file = path("token");
    unlink(file.c_str());
    std::ofstream(file) << text;
    REQUIRE(chmod(file.c_str(), mode) == 0);
    return file;
  }

 private:
  std::string path_;
};

std::string Refusal(const std::string& path) {
  const auto token = JobToken::Read(path);
  CHECK(token.status().code() == absl::StatusCode::kFailedPrecondition);
  return std::string(token.status().message());
}

TEST_CASE("a token goes through its file, and authorizes itself alone") {
  const Folder folder;
  const auto token = JobToken::Random();
  REQUIRE(token.ok());
  const std::string path = folder.path("token");
  REQUIRE(token->Write(path).ok());
  struct stat file;
  REQUIRE(stat(path.c_str(), &file) == 0);
  CHECK((file.st_mode & 07777) == 0600);
  const auto read = JobToken::Read(path);
  REQUIRE(read.ok());
  CHECK(read->Authorization() == token->Authorization());
  CHECK(read->Authorization().size() == 7 + 64);
  CHECK(token->Authorizes(read->Authorization()));

  CHECK(absl::IsAlreadyExists(token->Write(path)));
  const auto other = JobToken::Random();
  REQUIRE(other.ok());
  CHECK_FALSE(token->Authorizes(other->Authorization()));
  for (size_t i : {size_t{0}, size_t{7}, size_t{70}}) {
    std::string nearly = token->Authorization();
    nearly[i] = nearly[i] == '0' ? '1' : '0';
    CHECK_FALSE(token->Authorizes(nearly));
  }
  CHECK_FALSE(token->Authorizes(token->Authorization().substr(7)));
  CHECK_FALSE(token->Authorizes(token->Authorization().substr(0, 70)));
  CHECK_FALSE(token->Authorizes(""));
  // An empty token authorizes no caller, not even one without a token.
  CHECK(JobToken().empty());
  CHECK_FALSE(JobToken().Authorizes(JobToken().Authorization()));
}

TEST_CASE("over HTTP a token is a bearer's, or the password of any user") {
  const Folder folder;
  const auto token = JobToken::Read(folder.File(kDigits, 0600));
  REQUIRE(token.ok());
  const auto basic = [&](const std::string& text) {
    return token->AuthorizesHttp("Basic " + absl::Base64Escape(text));
  };
  CHECK(token->AuthorizesHttp("Bearer " + kDigits));
  CHECK(basic("user:" + kDigits));
  CHECK(basic(":" + kDigits));
  for (const std::string& text : {std::string(), kDigits, std::string("user:"), "user:" + kDigits + "a",
                                  kDigits + ":user", "user:x:" + kDigits, "user:Bearer " + kDigits}) {
    INFO(text);
    CHECK_FALSE(basic(text));
  }
  for (const std::string& authorization :
       {std::string(), kDigits, "Basic " + kDigits, "Basic user:" + kDigits, std::string("Basic \xff"),
        "Digest " + absl::Base64Escape("user:" + kDigits)}) {
    INFO(authorization);
    CHECK_FALSE(token->AuthorizesHttp(authorization));
  }
  CHECK_FALSE(JobToken().AuthorizesHttp("Bearer "));
  CHECK_FALSE(JobToken().AuthorizesHttp("Basic " + absl::Base64Escape("user:")));
}

TEST_CASE("a token file holds hexadecimal digits, enough of them") {
  const Folder folder;
  CHECK(JobToken::Read(folder.File(kDigits, 0600)).ok());
  CHECK(JobToken::Read(folder.File(kDigits + "\r\n", 0400)).ok());
  CHECK(JobToken::Read(folder.File(std::string(32, '0') + "\n", 0600)).ok());
  for (const std::string& text :
       {std::string(), std::string(31, '0'), std::string(513, '0'), std::string(100000, '0'),
        std::string(32, 'g'), std::string(16, '0') + "\n" + std::string(16, '0'),
        kDigits + std::string(1, '\0')}) {
    const std::string why = Refusal(folder.File(text, 0600));
    CHECK_THAT(why, Contains("32 to 512 hexadecimal digits"));
    // The file may hold nearly a token: the error must not show it.
    if (text.size() > 8) CHECK_THAT(why, !Contains(text.substr(0, 8)));
  }
}

TEST_CASE("a token file that others may use is refused") {
  const Folder folder;
  for (mode_t mode : {0644, 0604, 0602, 0601, 0620, 0610, 0666, 0777}) {
    const std::string why = Refusal(folder.File(kDigits, mode));
    CHECK_THAT(why, Contains("0600"));
    CHECK_THAT(why, !Contains(kDigits));
  }
}

TEST_CASE("a token file is a file, and there") {
  const Folder folder;
  CHECK_THAT(Refusal(folder.path("none")), Contains("No such file"));
  CHECK_THAT(Refusal(folder.path(".")), Contains("no regular file"));
  REQUIRE(mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  CHECK_THAT(Refusal(folder.path("pipe")), Contains("no regular file"));
  CHECK(JobToken::ReadIfGiven("").value().empty());
  CHECK_FALSE(JobToken::ReadIfGiven(folder.path("none")).ok());
  // As Kubernetes mounts a Secret.
  REQUIRE(symlink(folder.File(kDigits, 0400).c_str(), folder.path("link").c_str()) == 0);
  CHECK(JobToken::Read(folder.path("link")).ok());
}

// Runs `check` as "nobody", in root's group.
bool AsNobody(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) _exit(setuid(65534) == 0 && check() ? 0 : 1);
  int status = 1;
  return waitpid(child, &status, 0) == child && status == 0;
}

TEST_CASE("of other users only root may own a token file, and let a group read it") {
  if (geteuid() != 0) {
    SaySkipped("only root can become another user");
    return;
  }
  const Folder folder;
  const std::string path = folder.File(kDigits, 0440);
  std::filesystem::permissions(folder.path("."), std::filesystem::perms(0755));
  // By a relative name, since some of the folders above may be closed.
  REQUIRE(chdir(folder.path(".").c_str()) == 0);
  const auto readable = [] { return JobToken::Read("token").ok(); };
  CHECK(readable());
  CHECK(AsNobody(readable));
  const auto own = [&path](uid_t user, mode_t mode) {
    REQUIRE(chown(path.c_str(), user, 0) == 0);
    REQUIRE(chmod(path.c_str(), mode) == 0);
  };
  own(65534, 0440);
  CHECK_FALSE(AsNobody(readable));
  own(65534, 0400);
  CHECK(AsNobody(readable));
  // Root could read the file, but another user owns it.
  CHECK_THAT(Refusal(path), Contains("user 65534's"));
  own(1234, 0440);
  CHECK_FALSE(AsNobody(readable));
}

}  // namespace
}  // namespace weir

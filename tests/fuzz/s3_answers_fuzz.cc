// What object storage answers to requests for objects, and AWS's STS to one for keys: heads, errors in XML,
// the answers to uploads in parts. The input is a sequence of messages. The first says what is asked of the
// storage; each further one is an answer as it goes over the connection, which ends with it. "{token}" stands
// for the token of the last put.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/net/tcp.h"
#include "common/object_store/object_store.h"
#include "common/system/unique_fd.h"
#include "common/threads/mutex.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/messages.h"

namespace weir {
namespace {

constexpr size_t kMostCalls = 16;
constexpr char kData[] = "data!";
const ObjectName kObject{"b", "p/k"};

// What follows a header's name in a request, or "".
absl::string_view HeaderIn(absl::string_view head, absl::string_view name) {
  const size_t at = head.find(absl::StrCat("\r\n", name, ": "));
  if (at == absl::string_view::npos) return "";
  head.remove_prefix(at + 2 + name.size() + 2);
  return head.substr(0, head.find("\r\n"));
}

// Gives the first request the first answer, and so on; those without one, none.
class Storage {
 public:
  Storage() : listener_(ListenTcp("127.0.0.1", 0).value()), thread_([this] { Run(); }) {}

  std::string Url() const {
    sockaddr_in address{};
    socklen_t length = sizeof address;
    getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length);
    return absl::StrCat("http://127.0.0.1:", ntohs(address.sin_port));
  }

  void Answer(std::vector<std::string> answers) {
    MutexLock lock(mutex_);
    answers_ = std::move(answers);
    next_ = 0;
  }

 private:
  void Run() {
    while (true) {
      pollfd waiting{listener_.get(), POLLIN, 0};
      poll(&waiting, 1, -1);
      const UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (client.valid() && TakeRequest(client)) SendAnswer(client);
    }
  }

  // False: the client is gone.
  bool TakeRequest(const UniqueFd& client) {
    std::string request;
    size_t head = std::string::npos, body = 0;
    while (head == std::string::npos || request.size() < head + 4 + body) {
      char buffer[4096];
      const ssize_t got = recv(client.get(), buffer, sizeof buffer, 0);
      if (got <= 0) return false;
      request.append(buffer, static_cast<size_t>(got));
      head = request.find("\r\n\r\n");
      if (head != std::string::npos && !absl::SimpleAtoi(HeaderIn(request, "Content-Length"), &body))
        body = 0;
    }
    const absl::string_view token = HeaderIn(request, "x-amz-meta-weir-put");
    if (!token.empty()) token_ = std::string(token);
    return true;
  }

  void SendAnswer(const UniqueFd& client) {
    std::string answer;
    {
      MutexLock lock(mutex_);
      if (next_ == answers_.size()) return;
      answer = absl::StrReplaceAll(answers_[next_++], {{"{token}", token_}});
    }
    absl::string_view left = answer;
    while (!left.empty()) {
      const ssize_t sent = send(client.get(), left.data(), left.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      left.remove_prefix(static_cast<size_t>(sent));
    }
  }

  const UniqueFd listener_;
  Mutex mutex_;
  std::vector<std::string> answers_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string token_;  // the thread's
  std::thread thread_;
};

ObjectStore::Options StoreOptions(const std::string& url) {
  ObjectStore::Options options;
  options.settings.endpoint = url;
  options.settings.region = "us-east-1";
  options.settings.keys = {"key", "key", ""};
  // Three tries, one right after another.
  options.limit = absl::Nanoseconds(1);
  options.first_wait = absl::ZeroDuration();
  return options;
}

// The same with keys from STS.
ObjectStore::Options WebIdentityOptions(const std::string& url) {
  static const int token = memfd_create("token", MFD_CLOEXEC);
  FuzzCheck(pwrite(token, "t", 1, 0) == 1, "this machine has room for a file");
  ObjectStore::Options options = StoreOptions(url);
  options.settings.web_identity = {absl::StrCat("/proc/self/fd/", token), "role", "session", url};
  return options;
}

absl::Status UploadInParts(ObjectStore& store) {
  absl::StatusOr<ObjectStore::Upload> upload = store.Begin(kObject);
  if (!upload.ok()) return upload.status();
  FuzzCheck(!upload->id.empty(), "an upload has an id");
  const absl::StatusOr<ObjectStore::Upload::Part> part = store.PutPart(*upload, 1, kData);
  if (!part.ok()) {
    store.Abort(*upload).IgnoreError();
    return part.status();
  }
  upload->parts.push_back(*part);
  return store.Complete(*upload, {ObjectStore::Condition::kNothing, ""});
}

absl::Status Ask(ObjectStore& store, char call) {
  using Condition = ObjectStore::Condition;
  switch (call) {
    case 'p':
      return store.Put(kObject, kData, {});
    case 'n':
      return store.Put(kObject, kData, {Condition::kNothing, ""});
    case 'v':
      return store.Put(kObject, kData, {Condition::kThisVersion, "\"e\""});
    case 's':
      return store.Reserve(kObject);
    case 'd':
      return store.Remove(kObject);
    case 'r': {
      char data[5];
      return store.Read(kObject, "\"e\"", 3, absl::MakeSpan(data));
    }
    case 'm':
      return UploadInParts(store);
    default: {
      const absl::StatusOr<ObjectStore::Info> info = store.Look(kObject);
      FuzzCheck(!info.ok() || !info->etag.empty(), "an object has a version");
      return info.status();
    }
  }
}

bool MayFailWith(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

std::string Answer(absl::string_view status, absl::string_view headers, absl::string_view body) {
  return absl::StrCat("HTTP/1.1 ", status, "\r\n", headers, "Content-Length: ", body.size(), "\r\n\r\n",
                      body);
}

std::string Error(absl::string_view status, absl::string_view code) {
  return Answer(status, "Retry-After: 1\r\n",
                absl::StrCat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>", code,
                             "</Code><Message>m</Message><RequestId>r</RequestId></Error>"));
}

}  // namespace

// Takes it: the storage did one of the things.
bool ReadInput(absl::string_view input) {
  static Storage& storage = *new Storage;
  static ObjectStore& store = *new ObjectStore(StoreOptions(storage.Url()));
  std::vector<std::string> answers = SplitMessages(input);
  if (answers.empty()) return false;
  const std::string calls = answers[0].substr(0, kMostCalls);
  answers.erase(answers.begin());
  storage.Answer(std::move(answers));
  bool done = false;
  std::unique_ptr<ObjectStore> with_temporary_keys;
  for (const char call : calls) {
    if (call == 't') with_temporary_keys = std::make_unique<ObjectStore>(WebIdentityOptions(storage.Url()));
    const absl::Status status = Ask(with_temporary_keys == nullptr ? store : *with_temporary_keys, call);
    done = done || status.ok();
    if (status.ok()) continue;
    FuzzCheck(MayFailWith(status.code()), "a failure is of a kind that the header names");
    FuzzCheck(absl::StrContains(status.message(), kObject.ToString()), "an error names the object");
  }
  return done;
}

std::vector<std::string> Seeds() {
  const std::string ok = Answer("200 OK", "ETag: \"e\"\r\n", ""),
                    found =
                        "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nx-amz-meta-weir-put: {token}\r\n"
                        "Content-Length: 8\r\n\r\n";
  const std::string begun = Answer("200 OK", "",
                                   "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>p/k</Key>"
                                   "<UploadId>id</UploadId></InitiateMultipartUploadResult>");
  return {
      JoinMessages({"pvl", ok, ok, found}),
      JoinMessages({"r", Answer("206 Partial Content", "Content-Range: bytes 3-7/8\r\n", kData)}),
      // A try that took effect, though it was said to have failed.
      JoinMessages({"n", Error("500 Internal Server Error", "InternalError"),
                    Error("412 Precondition Failed", "PreconditionFailed"), found}),
      JoinMessages({"sd", Error("503 Slow Down", "SlowDown"), Answer("204 No Content", "", "")}),
      JoinMessages({"m", begun, ok,
                    Answer("200 OK", "",
                           "<CompleteMultipartUploadResult><ETag>&quot;e&quot;</ETag>"
                           "</CompleteMultipartUploadResult>")}),
      JoinMessages(
          {"m", begun, ok, Error("200 OK", "InternalError"), Error("404 Not Found", "NoSuchUpload"), found}),
      JoinMessages({"rpd", Error("403 Forbidden", "AccessDenied"),
                    Answer("301 Moved Permanently", "x-amz-bucket-region: eu-west-1\r\n", ""),
                    Error("404 Not Found", "NoSuchKey")}),
      JoinMessages({"t",
                    Answer("200 OK", "",
                           "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
                           "<AccessKeyId>a</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
                           "<SessionToken>t</SessionToken><Expiration>2126-01-01T00:00:00Z</Expiration>"
                           "</Credentials></AssumeRoleWithWebIdentityResult>"
                           "</AssumeRoleWithWebIdentityResponse>"),
                    found}),
  };
}

std::vector<std::string> Words() {
  return {"HTTP/1.1 100 Continue\r\n\r\n",
          "HTTP/1.1 501 ",
          "HTTP/1.1 429 ",
          "Transfer-Encoding: chunked\r\n",
          "Content-Length: 18446744073709551615\r\n",
          "Retry-After: 99999999999\r\n",
          "ETag: \r\n",
          "<Code>ExpiredToken</Code>",
          "<Code>NoSuchBucket</Code>",
          "<Code>AuthorizationHeaderMalformed</Code>",
          "<Code>RequestTimeout</Code>",
          "<Code>BadDigest</Code>",
          "<ErrorResponse><Error><Code>Throttling</Code></Error>",
          "<Expiration>2000-01-01T00:00:00Z</Expiration>",
          "<![CDATA[",
          "<!DOCTYPE",
          "&#0;",
          "\r\n\r\n"};
}

}  // namespace weir

#include "common/object_store/http_client.h"

#include <curl/curl.h>

#include <cstdlib>
#include <new>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace weir {
namespace {

constexpr long kStalledBytesPerSecond = 1024;

// An answer that arrives.
struct Arriving {
  HttpAnswer answer;
  uint64_t max_bytes = 0;
  bool too_long = false;
};

size_t TakeBody(char* data, size_t, size_t bytes, void* to) {
  Arriving& arriving = *static_cast<Arriving*>(to);
  if (bytes > arriving.max_bytes - arriving.answer.body.size()) {
    arriving.too_long = true;
    return 0;
  }
  arriving.answer.body.append(data, bytes);
  return bytes;
}

size_t TakeHeader(char* data, size_t, size_t bytes, void* to) {
  HttpAnswer& answer = static_cast<Arriving*>(to)->answer;
  const absl::string_view line(data, bytes);
  // "100 Continue" and its like precede the answer itself.
  if (absl::StartsWith(line, "HTTP/")) answer.headers.clear();
  const size_t colon = line.find(':');
  if (colon != absl::string_view::npos) {
    answer.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return bytes;
}

bool IsMistake(CURLcode code) {
  switch (code) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string HttpAnswer::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

// One connection, and the options of one transfer.
class HttpClient::Handle {
 public:
  Handle() : curl_(curl_easy_init()) {
    if (curl_ == nullptr) throw std::bad_alloc();
  }
  ~Handle() { curl_easy_cleanup(curl_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  absl::StatusOr<HttpAnswer> Send(const Options& options, const HttpRequest& request) {
    curl_easy_reset(curl_);  // keeps the connection
    Arriving arriving;
    arriving.max_bytes = request.max_answer;
    char error[CURL_ERROR_SIZE] = "";
    curl_slist* headers = nullptr;
    for (const std::string& header : request.headers) headers = curl_slist_append(headers, header.c_str());
    const std::string provider = absl::StrCat("aws:amz:", options.region, ":", options.service);

    Set(CURLOPT_NOSIGNAL, 1L);
    Set(CURLOPT_PROTOCOLS_STR, "http,https");
    Set(CURLOPT_URL, request.url.c_str());
    // The signature is made of the path as it is sent.
    Set(CURLOPT_PATH_AS_IS, 1L);
    Set(CURLOPT_HTTPHEADER, headers);
    Set(CURLOPT_ERRORBUFFER, error);
    // How long a longer body waits for "100 Continue", which not every server says.
    Set(CURLOPT_EXPECT_100_TIMEOUT_MS, 100L);
    Set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(options.connect_timeout)));
    Set(CURLOPT_LOW_SPEED_LIMIT, kStalledBytesPerSecond);
    Set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(absl::ToInt64Seconds(options.stall_timeout)));
    Set(CURLOPT_WRITEFUNCTION, &TakeBody);
    Set(CURLOPT_WRITEDATA, &arriving);
    Set(CURLOPT_HEADERFUNCTION, &TakeHeader);
    Set(CURLOPT_HEADERDATA, &arriving);
    if (!options.key_id.empty()) {
      Set(CURLOPT_AWS_SIGV4, provider.c_str());
      Set(CURLOPT_USERNAME, options.key_id.c_str());
      Set(CURLOPT_PASSWORD, options.secret_key.c_str());
    }
    if (request.method == "HEAD") {
      Set(CURLOPT_NOBODY, 1L);
    } else {
      if (request.method == "PUT" || request.method == "POST") {
        Set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
        Set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
      }
      Set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }

    const CURLcode code = curl_easy_perform(curl_);
    curl_slist_free_all(headers);
    if (arriving.too_long) {
      return absl::UnavailableError(
          absl::StrCat("the answer has more than the ", request.max_answer, " bytes that are allowed"));
    }
    if (code != CURLE_OK) {
      const std::string why = error[0] != '\0' ? error : curl_easy_strerror(code);
      return IsMistake(code) ? absl::FailedPreconditionError(why) : absl::UnavailableError(why);
    }
    long status = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
    arriving.answer.status = static_cast<int>(status);
    return std::move(arriving.answer);
  }

 private:
  // Fails only for an option that this libcurl does not have.
  template <typename Value>
  void Set(CURLoption option, Value value) {
    if (curl_easy_setopt(curl_, option, value) != CURLE_OK) std::abort();
  }

  CURL* const curl_;
};

HttpClient::HttpClient(Options options) : options_(std::move(options)) {
  static const CURLcode once = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (once != CURLE_OK) std::abort();
}

HttpClient::~HttpClient() = default;

absl::StatusOr<HttpAnswer> HttpClient::Send(const HttpRequest& request) {
  std::unique_ptr<Handle> handle;
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      handle = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (handle == nullptr) handle = std::make_unique<Handle>();
  absl::StatusOr<HttpAnswer> answer = handle->Send(options_, request);
  MutexLock lock(mutex_);
  idle_.push_back(std::move(handle));
  return answer;
}

}  // namespace weir

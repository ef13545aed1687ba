#include "common/object_store/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace weir {
namespace {

constexpr long kUploadBuffer = 512 << 10;
// WatchTransfer() is called so often, or more.
constexpr int kPollMs = 1000;

using Clock = std::chrono::steady_clock;

// A request on its way, and its answer as far as that has come.
struct Transfer {
  Transfer(const HttpRequest& request, const HttpClient& client) : request(request), client(client) {}

  const HttpRequest& request;
  const HttpClient& client;
  const Clock::time_point begun = Clock::now();
  HttpAnswer answer;
  // When a byte last moved; how many had then.
  Clock::time_point moved = begun;
  curl_off_t bytes = 0;
  // Why it was given up; empty: it was not.
  std::string failure;
};

size_t TakeBody(char* data, size_t, size_t bytes, void* to) {
  Transfer& transfer = *static_cast<Transfer*>(to);
  if (bytes > transfer.request.max_answer - transfer.answer.body.size()) {
    transfer.failure =
        absl::StrCat("the answer has more than the ", transfer.request.max_answer, " bytes that are allowed");
    return 0;
  }
  transfer.answer.body.append(data, bytes);
  return bytes;
}

size_t TakeHeader(char* data, size_t, size_t bytes, void* to) {
  Transfer& transfer = *static_cast<Transfer*>(to);
  transfer.moved = Clock::now();
  HttpAnswer& answer = transfer.answer;
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

// Called once a second, or more often.
int WatchTransfer(void* of, curl_off_t, curl_off_t received, curl_off_t, curl_off_t sent) {
  Transfer& transfer = *static_cast<Transfer*>(of);
  const Clock::time_point now = Clock::now();
  if (received + sent != transfer.bytes) transfer.moved = now;
  transfer.bytes = received + sent;
  const HttpRequest& request = transfer.request;
  if (transfer.client.ended()) {
    transfer.failure = "this process ends";
  } else if (absl::FromChrono(now - transfer.moved) > request.silence) {
    transfer.failure = absl::StrCat("no byte moved for ", absl::FormatDuration(request.silence));
  } else if (absl::FromChrono(now - transfer.begun) > request.limit) {
    transfer.failure = absl::StrCat("it was not over after ", absl::FormatDuration(request.limit), ", with ",
                                    transfer.bytes, " bytes sent and received");
  }
  return transfer.failure.empty() ? 0 : 1;
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

// What to do about a certificate that is not trusted: "; ...". Empty: that is not the trouble.
std::string AboutCas(CURLcode code, const CaBundle& ca) {
  if (code == CURLE_SSL_CACERT_BADFILE) {
    return absl::StrCat("; ", ca.variable.empty() ? "the system's CAs" : ca.variable, ": ", ca.file,
                        " cannot be read, or holds no certificates in PEM");
  }
  if (code != CURLE_PEER_FAILED_VERIFICATION) return "";
  const std::string now = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone());
  return absl::StrCat(
      "; the server's certificate is checked with ",
      ca.file.empty()
          ? "the CAs of this system: if it comes from another CA, set AWS_CA_BUNDLE to a file with "
            "that CA's certificate, in PEM"
          : absl::StrCat("the CAs in ", ca.file, " (", ca.variable,
                         "), which must have the CA that it comes from"),
      "; this machine's clock says ", now);
}

}  // namespace

std::string HttpAnswer::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

std::string PercentEncode(absl::string_view text, absl::string_view keep) {
  std::string out;
  for (const char c : text) {
    const absl::string_view one(&c, 1);
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("-_.~", one) ||
        absl::StrContains(keep, one)) {
      out += c;
    } else {
      absl::StrAppendFormat(&out, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return out;
}

// A connection that stays open, for one transfer at a time. The connection is a multi handle's, and each
// transfer has an easy handle of its own. libcurl before 8.1.1 reads freed memory when an easy handle is used
// again and the first header of the answer begins with a blank (issue 11101 of curl).
class HttpClient::Handle {
 public:
  Handle() : multi_(curl_multi_init()) {
    if (multi_ == nullptr) throw std::bad_alloc();
  }
  ~Handle() { curl_multi_cleanup(multi_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  absl::StatusOr<HttpAnswer> Send(const HttpClient& client, const HttpRequest& request,
                                  absl::Duration ahead) {
    const Options& options = client.options_;
    Transfer transfer(request, client);
    char error[CURL_ERROR_SIZE] = "";
    const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> easy(curl_easy_init(), &curl_easy_cleanup);
    if (easy == nullptr) throw std::bad_alloc();
    // Fails only for an option that this libcurl does not have.
    const auto set = [&easy](CURLoption option, auto value) {
      if (curl_easy_setopt(easy.get(), option, value) != CURLE_OK) std::abort();
    };
    curl_slist* headers = nullptr;
    for (const std::string& header : request.headers) headers = curl_slist_append(headers, header.c_str());
    if (request.keys != nullptr && !request.keys->session_token.empty()) {
      headers = curl_slist_append(
          headers, absl::StrCat("x-amz-security-token: ", request.keys->session_token).c_str());
    }
    if (request.keys != nullptr && ahead != absl::ZeroDuration()) {
      // libcurl signs with this time instead of its own.
      const std::string time = absl::FormatTime("%Y%m%dT%H%M%SZ", absl::Now() + ahead, absl::UTCTimeZone());
      headers = curl_slist_append(headers, absl::StrCat("x-amz-date: ", time).c_str());
    }
    const std::string provider = absl::StrCat("aws:amz:", options.region, ":", options.service);

    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_URL, request.url.c_str());
    // The signature is made of the path as it is sent.
    set(CURLOPT_PATH_AS_IS, 1L);
    set(CURLOPT_HTTPHEADER, headers);
    set(CURLOPT_ERRORBUFFER, error);
    // How long a longer body waits for "100 Continue", which not every server says.
    set(CURLOPT_EXPECT_100_TIMEOUT_MS, 100L);
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(absl::ToInt64Milliseconds(options.connect_timeout)));
    set(CURLOPT_FRESH_CONNECT, request.once ? 1L : 0L);
    // The default of 64 KiB costs many calls of the system.
    set(CURLOPT_UPLOAD_BUFFERSIZE, kUploadBuffer);
    // A server that is gone answers no probe, also while it may be silent for long.
    set(CURLOPT_TCP_KEEPALIVE, 1L);
    set(CURLOPT_TCP_KEEPIDLE, 15L);
    set(CURLOPT_TCP_KEEPINTVL, 5L);
    if (!options.ca.file.empty()) set(CURLOPT_CAINFO, options.ca.file.c_str());
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION, &WatchTransfer);
    set(CURLOPT_XFERINFODATA, &transfer);
    set(CURLOPT_WRITEFUNCTION, &TakeBody);
    set(CURLOPT_WRITEDATA, &transfer);
    set(CURLOPT_HEADERFUNCTION, &TakeHeader);
    set(CURLOPT_HEADERDATA, &transfer);
    if (request.keys != nullptr) {
      set(CURLOPT_AWS_SIGV4, provider.c_str());
      set(CURLOPT_USERNAME, request.keys->key_id.c_str());
      set(CURLOPT_PASSWORD, request.keys->secret_key.c_str());
    }
    if (request.method == "HEAD") {
      set(CURLOPT_NOBODY, 1L);
    } else {
      if (request.method == "PUT" || request.method == "POST") {
        set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
        set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
      }
      set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    }

    const CURLcode code = Perform(easy.get());
    curl_slist_free_all(headers);
    if (!transfer.failure.empty()) return absl::UnavailableError(transfer.failure);
    if (code != CURLE_OK) {
      const std::string why = error[0] != '\0' ? error : curl_easy_strerror(code);
      if (!IsMistake(code)) return absl::UnavailableError(why);
      return absl::FailedPreconditionError(absl::StrCat(why, AboutCas(code, options.ca)));
    }
    long status = 0;
    curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
    transfer.answer.status = static_cast<int>(status);
    return std::move(transfer.answer);
  }

 private:
  // As curl_easy_perform() does it.
  CURLcode Perform(CURL* easy) {
    CURLMcode code = curl_multi_add_handle(multi_, easy);
    for (int running = 1; code == CURLM_OK && running > 0;) {
      code = curl_multi_perform(multi_, &running);
      if (code == CURLM_OK && running > 0) code = curl_multi_poll(multi_, nullptr, 0, kPollMs, nullptr);
    }
    int left = 0;
    const CURLMsg* const message = curl_multi_info_read(multi_, &left);
    const CURLcode result = message == nullptr ? CURLE_OUT_OF_MEMORY : message->data.result;
    curl_multi_remove_handle(multi_, easy);
    return result;
  }

  CURLM* const multi_;
};

HttpClient::HttpClient(Options options) : options_(std::move(options)) {
  static const CURLcode once = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (once != CURLE_OK) std::abort();
}

HttpClient::~HttpClient() = default;

absl::StatusOr<HttpAnswer> HttpClient::Send(const HttpRequest& request) {
  std::unique_ptr<Handle> handle;
  absl::Duration ahead;
  {
    MutexLock lock(mutex_);
    ahead = ahead_;
    if (!idle_.empty()) {
      handle = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (handle == nullptr) handle = std::make_unique<Handle>();
  absl::StatusOr<HttpAnswer> answer = handle->Send(*this, request, ahead);
  MutexLock lock(mutex_);
  idle_.push_back(std::move(handle));
  return answer;
}

void HttpClient::SetClock(absl::Duration ahead) {
  MutexLock lock(mutex_);
  ahead_ = ahead;
}

absl::Time HttpClient::Now() const {
  MutexLock lock(mutex_);
  return absl::Now() + ahead_;
}

void HttpClient::EndWithin(absl::Duration time) {
  MutexLock lock(mutex_);
  end_ = std::min(end_, Clock::now() + absl::ToChronoNanoseconds(time));
  changed_.NotifyAll();
}

bool HttpClient::ended() const {
  MutexLock lock(mutex_);
  return Clock::now() >= end_;
}

void HttpClient::Sleep(absl::Duration time) {
  const Clock::time_point until = Clock::now() + absl::ToChronoNanoseconds(time);
  MutexLock lock(mutex_);
  while (Clock::now() < std::min(until, end_)) changed_.WaitUntil(mutex_, std::min(until, end_));
}

}  // namespace weir

#include "common/object_store/object_store.h"

#include <algorithm>
#include <pugixml.hpp>
#include <random>

#include "absl/random/random.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/object_store/s3_errors.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

constexpr char kTokenHeader[] = "x-amz-meta-weir-put";
// From this many failures on, each one is logged. So many tries are made however long one takes, since the
// whole process may have been stopped meanwhile.
constexpr int kPatience = 3;
// Of one list; a page has 1000 entries. A store that always says that there is more would keep its caller for
// ever.
constexpr int kMostPages = 1000;

std::string Unescape(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int byte = 0;
    if (text[i] == '%' && absl::SimpleHexAtoi(text.substr(i + 1, 2), &byte)) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

std::string RandomToken() {
  std::random_device random;
  return absl::StrFormat("%08x%08x%08x%08x", random(), random(), random(), random());
}

std::string Base64Crc32c(absl::string_view data) {
  const uint32_t crc = Crc32c(data);
  const char bytes[] = {static_cast<char>(crc >> 24), static_cast<char>(crc >> 16),
                        static_cast<char>(crc >> 8), static_cast<char>(crc)};
  return absl::Base64Escape(absl::string_view(bytes, sizeof bytes));
}

// The root of an answer in XML. Empty: the answer is not whole, or is something else.
pugi::xml_node ParseXml(const HttpAnswer& answer, const char* root, pugi::xml_document* xml) {
  const bool whole = xml->load_buffer(answer.body.data(), answer.body.size());
  return whole ? xml->child(root) : pugi::xml_node();
}

// Whether to continue a list that is truncated after so many pages. `moves`: it says where it continues, and
// that is not where it was.
absl::Status CheckGoesOn(const std::string& what, bool moves, int pages) {
  if (!moves) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": the answer is truncated and does not say how to go on"));
  }
  if (pages == kMostPages) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": the list goes on after ", kMostPages,
                                                      " pages; remove what is old, or use another folder"));
  }
  return absl::OkStatus();
}

void AddCondition(const ObjectStore::Condition& condition, std::vector<std::string>* headers) {
  if (condition.kind == ObjectStore::Condition::kNothing) headers->push_back("if-none-match: *");
  if (condition.kind == ObjectStore::Condition::kThisVersion) {
    headers->push_back(absl::StrCat("if-match: ", condition.etag));
  }
}

}  // namespace

// One request, however often it is sent.
struct ObjectStore::Call {
  // `what` is done to what has this name: "put", "begin the upload of".
  Call(absl::string_view what, const char* method, const ObjectName& name)
      : what(absl::StrCat("cannot ", what, " ", name.ToString())),
        method(method),
        bucket(name.bucket),
        key(name.key) {}

  std::string what;  // "cannot put s3://b/k"
  std::string method;
  std::string bucket, key;
  // In the order of their names, as the signature needs them.
  std::vector<std::pair<std::string, std::string>> query;
  std::vector<std::string> headers;
  absl::string_view body;
  // What a success brings: so many bytes of an object, or XML with this root. Neither: nothing that counts.
  uint64_t data_bytes = 0;
  const char* root = nullptr;
  // The store may be silent for long before it answers.
  bool long_silence = false;
  // There is one try.
  bool once = false;
};

ObjectStore::ObjectStore(Options options)
    : options_(std::move(options)),
      http_({options_.settings.region, "s3", options_.connect_timeout, options_.settings.ca}),
      credentials_(options_.settings, &http_) {}

absl::StatusOr<HttpAnswer> ObjectStore::Try(const Call& call, HttpRequest& request, bool* renewed) {
  WEIR_ASSIGN_OR_RETURN(const SigningKeys keys, credentials_.Get());
  request.keys = &keys;
  absl::StatusOr<HttpAnswer> answer = http_.Send(request);
  if (!answer.ok()) {
    return absl::Status(answer.status().code(),
                        absl::StrCat("no answer from ", options_.settings.BucketUrl(call.bucket), ": ",
                                     answer.status().message()));
  }
  const S3Error error = ErrorIn(*answer, call.method, http_.Now(), options_.settings, call.bucket);
  if (answer->status / 100 == 2 && error.code.empty()) {
    pugi::xml_document xml;
    if (call.data_bytes > 0 && answer->body.size() != call.data_bytes) {
      return absl::UnavailableError(absl::StrCat("got ", answer->body.size(), " bytes of ", call.data_bytes));
    }
    if (call.root != nullptr && !ParseXml(*answer, call.root, &xml)) {
      return absl::UnavailableError(absl::StrCat("the answer is no whole ", call.root));
    }
    return answer;
  }
  if (error.skewed) return absl::UnavailableError(absl::StrCat(error.text, SetClock(*answer)));
  const bool renews = error.expired && !std::exchange(*renewed, true) && credentials_.OnExpired(keys);
  if (renews || error.may_pass) return absl::UnavailableError(error.text);
  return absl::Status(error.refusal.code(), absl::StrCat(error.text, error.refusal.message()));
}

std::string ObjectStore::SetClock(const HttpAnswer& answer) {
  const absl::Time theirs = TimeOf(answer), here = absl::Now();
  if (theirs == absl::InfinitePast()) return "; this machine's clock is wrong, and the answer has no time";
  http_.SetClock(theirs - here);
  const auto text = [](absl::Time time) {
    return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", time, absl::UTCTimeZone());
  };
  return absl::StrCat("; this machine's clock says ", text(here), ", the store's ", text(theirs),
                      ": requests bear the store's time from now on, but set the clock (NTP)");
}

absl::StatusOr<HttpAnswer> ObjectStore::Exchange(const Call& call) {
  HttpRequest request;
  request.method = call.method;
  request.url = absl::StrCat(options_.settings.BucketUrl(call.bucket), "/", PercentEncode(call.key, "/"));
  const char* separator = "?";
  for (const auto& [name, value] : call.query) {
    absl::StrAppend(&request.url, separator, PercentEncode(name), "=", PercentEncode(value));
    separator = "&";
  }
  request.headers = call.headers;
  request.headers.push_back(absl::StrCat("x-amz-content-sha256: ", Sha256Hex(call.body)));
  if (call.method == "PUT" || call.method == "POST") {
    request.headers.push_back("content-type: application/octet-stream");
  }
  request.body = call.body;
  request.max_answer += call.data_bytes;
  request.once = call.once;
  const auto bytes = static_cast<double>(call.body.size() + call.data_bytes);
  request.silence = call.long_silence ? options_.complete_limit : options_.silence;
  request.limit = call.long_silence ? options_.complete_limit
                                    : options_.try_limit + absl::Seconds(bytes / options_.slowest);

  const absl::Time start = absl::Now();
  absl::Duration wait = options_.first_wait;
  thread_local absl::BitGen random;
  bool renewed = false;
  for (int failures = 1;; ++failures) {
    absl::StatusOr<HttpAnswer> answer = Try(call, request, &renewed);
    if (answer.ok()) return answer;
    const absl::string_view why = answer.status().message();
    if (!absl::IsUnavailable(answer.status())) {
      return absl::Status(answer.status().code(), absl::StrCat(call.what, ": ", why));
    }
    const absl::Duration passed = absl::Now() - start;
    const absl::Duration varied = wait * absl::Uniform(random, 0.5, 1.0);
    const bool once = call.once || options_.limit == absl::ZeroDuration() || http_.ended();
    if (once || (failures >= kPatience && passed + varied > options_.limit)) {
      if (failures == 1) return absl::UnavailableError(absl::StrCat(call.what, ": ", why));
      return absl::UnavailableError(
          absl::StrCat(call.what, ": tried ", failures, " times in ",
                       absl::FormatDuration(absl::Trunc(passed, absl::Milliseconds(1))), "; at last: ", why));
    }
    if (failures >= kPatience) {
      LogWarning(call.what, " yet: ", why, "; tries again in ",
                 absl::FormatDuration(absl::Trunc(varied, absl::Milliseconds(1))));
    }
    http_.Sleep(varied);
    wait = std::min(2 * wait, options_.longest_wait);
  }
}

absl::Status ObjectStore::Settle(const ObjectName& name, const std::string& token, const Condition& condition,
                                 const absl::Status& sent) {
  const bool refused = absl::IsAborted(sent) || absl::IsNotFound(sent);
  if (!refused && !absl::IsUnavailable(sent)) return sent;
  const absl::StatusOr<Info> there = Look(name);
  if (there.ok() && there->token == token) return absl::OkStatus();  // one of the tries took effect
  if (!refused) return sent;
  if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
  return condition.kind == Condition::kNothing
             ? absl::AlreadyExistsError(absl::StrCat(sent.message(), "; the name is taken"))
             : absl::AbortedError(
                   absl::StrCat(sent.message(), "; what was there has been replaced or removed"));
}

absl::Status ObjectStore::Put(const ObjectName& name, absl::string_view data, const Condition& condition) {
  const std::string token = RandomToken();
  Call call("put", "PUT", name);
  call.headers = {absl::StrCat("x-amz-checksum-crc32c: ", Base64Crc32c(data)),
                  absl::StrCat(kTokenHeader, ": ", token)};
  AddCondition(condition, &call.headers);
  call.body = data;
  const absl::Status sent = Exchange(call).status();
  return condition.kind == Condition::kAnything ? sent : Settle(name, token, condition, sent);
}

absl::Status ObjectStore::Reserve(const ObjectName& name) {
  Call call("put", "PUT", name);
  AddCondition({Condition::kNothing, ""}, &call.headers);
  call.once = true;
  const absl::Status sent = Exchange(call).status();
  return absl::IsAborted(sent) ? absl::AlreadyExistsError(absl::StrCat(sent.message(), "; the name is taken"))
                               : sent;
}

absl::StatusOr<ObjectStore::Info> ObjectStore::Look(const ObjectName& name) {
  Call call("find", "HEAD", name);
  WEIR_ASSIGN_OR_RETURN(const HttpAnswer answer, Exchange(call));
  Info info;
  info.etag = answer.header("etag");
  info.token = answer.header(kTokenHeader);
  if (!absl::SimpleAtoi(answer.header("content-length"), &info.bytes) || info.etag.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(call.what, ": the answer has no Content-Length or no ETag; this is no S3 server"));
  }
  return info;
}

absl::Status ObjectStore::Read(const ObjectName& name, const std::string& etag, uint64_t offset,
                               absl::Span<char> out) {
  if (out.empty()) return absl::OkStatus();
  Call call("read", "GET", name);
  call.headers = {absl::StrCat("range: bytes=", offset, "-", offset + out.size() - 1),
                  absl::StrCat("if-match: ", etag)};
  call.data_bytes = out.size();
  const absl::StatusOr<HttpAnswer> answer = Exchange(call);
  if (absl::IsAborted(answer.status())) {
    return absl::AbortedError(
        absl::StrCat(answer.status().message(), "; it has been replaced since it was opened"));
  }
  WEIR_RETURN_IF_ERROR(answer.status());
  std::copy(answer->body.begin(), answer->body.end(), out.begin());
  return absl::OkStatus();
}

absl::Status ObjectStore::Remove(const ObjectName& name) {
  Call call("remove", "DELETE", name);
  const absl::Status removed = Exchange(call).status();
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

absl::StatusOr<ObjectStore::Listing> ObjectStore::List(const std::string& bucket, const std::string& prefix) {
  Listing listing;
  std::string next;
  int pages = 0;
  do {
    Call call("list", "GET", {bucket, prefix});
    call.key.clear();  // the bucket is asked
    if (!next.empty()) call.query.emplace_back("continuation-token", next);
    call.query.emplace_back("delimiter", "/");
    call.query.emplace_back("encoding-type", "url");
    call.query.emplace_back("list-type", "2");
    call.query.emplace_back("prefix", prefix);
    call.root = "ListBucketResult";
    WEIR_ASSIGN_OR_RETURN(const HttpAnswer answer, Exchange(call));
    pugi::xml_document xml;
    const pugi::xml_node result = ParseXml(answer, call.root, &xml);
    for (const pugi::xml_node object : result.children("Contents")) {
      const std::string key = Unescape(object.child_value("Key"));
      uint64_t bytes = 0;
      if (!absl::StartsWith(key, prefix) || !absl::SimpleAtoi(object.child_value("Size"), &bytes)) {
        return absl::FailedPreconditionError(absl::StrCat(call.what, ": the answer lists key '", key, "' of ",
                                                          object.child_value("Size"),
                                                          " bytes, which was not asked for"));
      }
      if (key.size() > prefix.size()) listing.objects.emplace_back(key.substr(prefix.size()), bytes);
    }
    for (const pugi::xml_node folder : result.children("CommonPrefixes")) {
      const std::string key = Unescape(folder.child_value("Prefix"));
      if (!absl::StartsWith(key, prefix) || key.size() < prefix.size() + 2) continue;
      listing.folders.push_back(key.substr(prefix.size(), key.size() - prefix.size() - 1));
    }
    const bool more = absl::string_view(result.child_value("IsTruncated")) == "true";
    const std::string before = std::exchange(next, more ? result.child_value("NextContinuationToken") : "");
    if (more) WEIR_RETURN_IF_ERROR(CheckGoesOn(call.what, !next.empty() && next != before, ++pages));
  } while (!next.empty());
  return listing;
}

absl::StatusOr<ObjectStore::Upload> ObjectStore::Begin(const ObjectName& name) {
  Upload upload;
  upload.name = name;
  upload.token = RandomToken();
  Call call("begin the upload of", "POST", name);
  call.query = {{"uploads", ""}};
  call.headers = {"x-amz-checksum-algorithm: CRC32C", absl::StrCat(kTokenHeader, ": ", upload.token)};
  call.root = "InitiateMultipartUploadResult";
  WEIR_ASSIGN_OR_RETURN(const HttpAnswer answer, Exchange(call));
  pugi::xml_document xml;
  upload.id = ParseXml(answer, call.root, &xml).child_value("UploadId");
  if (upload.id.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(call.what, ": the answer has no UploadId"));
  }
  return upload;
}

absl::StatusOr<ObjectStore::Upload::Part> ObjectStore::PutPart(const Upload& upload, size_t number,
                                                               absl::string_view data) {
  Upload::Part part;
  part.crc32c = Base64Crc32c(data);
  Call call(absl::StrCat("put part ", number, " of"), "PUT", upload.name);
  call.query = {{"partNumber", absl::StrCat(number)}, {"uploadId", upload.id}};
  call.headers = {absl::StrCat("x-amz-checksum-crc32c: ", part.crc32c)};
  call.body = data;
  WEIR_ASSIGN_OR_RETURN(const HttpAnswer answer, Exchange(call));
  part.etag = answer.header("etag");
  return part;
}

absl::Status ObjectStore::Complete(const Upload& upload, const Condition& condition) {
  std::string body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (size_t i = 0; i < upload.parts.size(); ++i) {
    absl::StrAppend(&body, "<Part><ChecksumCRC32C>", upload.parts[i].crc32c, "</ChecksumCRC32C><ETag>",
                    upload.parts[i].etag, "</ETag><PartNumber>", i + 1, "</PartNumber></Part>");
  }
  body += "</CompleteMultipartUpload>";
  Call call("complete the upload of", "POST", upload.name);
  call.query = {{"uploadId", upload.id}};
  AddCondition(condition, &call.headers);
  call.body = body;
  call.root = "CompleteMultipartUploadResult";
  call.long_silence = true;
  // NotFound: the upload is gone, since it was completed by an earlier try, or was aborted.
  return Settle(upload.name, upload.token, condition, Exchange(call).status());
}

absl::Status ObjectStore::Abort(const Upload& upload) {
  Call call("abort the upload of", "DELETE", upload.name);
  call.query = {{"uploadId", upload.id}};
  const absl::Status removed = Exchange(call).status();
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

absl::StatusOr<std::vector<ObjectStore::Upload>> ObjectStore::Unfinished(const std::string& bucket,
                                                                         const std::string& prefix) {
  std::vector<Upload> uploads;
  std::string next_key, next_id;
  bool more = false;
  int pages = 0;
  do {
    Call call("list the uploads of", "GET", {bucket, prefix});
    call.key.clear();  // the bucket is asked
    call.query = {{"encoding-type", "url"}};
    if (more) call.query.emplace_back("key-marker", next_key);
    call.query.emplace_back("prefix", prefix);
    if (more) call.query.emplace_back("upload-id-marker", next_id);
    call.query.emplace_back("uploads", "");
    call.root = "ListMultipartUploadsResult";
    WEIR_ASSIGN_OR_RETURN(const HttpAnswer answer, Exchange(call));
    pugi::xml_document xml;
    const pugi::xml_node result = ParseXml(answer, call.root, &xml);
    for (const pugi::xml_node upload : result.children("Upload")) {
      uploads.push_back(
          {{bucket, Unescape(upload.child_value("Key"))}, upload.child_value("UploadId"), "", {}});
    }
    more = absl::string_view(result.child_value("IsTruncated")) == "true";
    const std::string key = std::exchange(next_key, Unescape(result.child_value("NextKeyMarker")));
    const std::string id = std::exchange(next_id, result.child_value("NextUploadIdMarker"));
    if (more) WEIR_RETURN_IF_ERROR(CheckGoesOn(call.what, key != next_key || id != next_id, ++pages));
  } while (more && !next_key.empty());
  return uploads;
}

}  // namespace weir

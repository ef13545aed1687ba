#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/config/written_text.h"
#include "common/object_store/http_client.h"
#include "common/object_store/s3_settings.h"

namespace weir {

// Object storage that speaks S3: whole objects under keys, which are replaced, read and removed, and, which
// all else rests on, are put only if a condition holds. Thread-safe; calls block.
//
// If a request fails in a way that may pass, it is sent again, after waits that grow and vary, up to
// Options::limit. Such failures are no connection, a cut or stalled one, 500, 503 SlowDown and their like;
// s3_errors.cc has a table of them. A conditional put whose answer was lost would then find its own object in
// its way: each put bears a random token, which tells that object apart from any other.
//
// Errors name the object, the server's reason and, where there is something to do, what. NotFound: no such
// object. AlreadyExists, Aborted: the condition did not hold. PermissionDenied. FailedPrecondition: no such
// bucket, wrong region or the like: the same request would fail again. Unavailable: all tries failed; a put
// or a removal may have taken effect, or may yet. DataLoss: what was sent arrived damaged, each time.
class ObjectStore {
 public:
  struct Options {
    S3Settings settings;
    absl::Duration connect_timeout = absl::Seconds(5);
    // Each try of a request has failed when no byte has moved for `silence`, or when it is not over after
    // `try_limit` and the time that its bytes take at `slowest` bytes a second.
    absl::Duration silence = absl::Seconds(20);
    absl::Duration try_limit = absl::Seconds(30);
    double slowest = 256 << 10;
    // `silence` and `try_limit` of the request that ends an upload in parts: a store may be silent while it
    // joins the parts.
    absl::Duration complete_limit = absl::Minutes(5);
    // From the fourth on, no try begins later than this after the first. 0: there is one try.
    absl::Duration limit = absl::Seconds(30);
    // The wait after the first failure is about this; each further one about twice the one before.
    absl::Duration first_wait = absl::Milliseconds(50);
    absl::Duration longest_wait = absl::Seconds(5);
  };
  explicit ObjectStore(Options options);

  // The condition under which a put takes effect: the object that is there under the key.
  struct Condition {
    enum Kind { kAnything, kNothing, kThisVersion };
    Kind kind = kAnything;
    std::string etag;  // kThisVersion
  };
  struct Info {
    uint64_t bytes = 0;
    std::string etag;   // of this version of the object, quoted as the server gave it
    std::string token;  // of the put that made the object; empty: not ours
  };

  absl::Status Put(const ObjectName& name, absl::string_view data, const Condition& condition);
  // Puts an empty object if there is none of the name. Sent once: after Unavailable the object may be there,
  // or come later, but never a second time.
  absl::Status Reserve(const ObjectName& name);
  absl::StatusOr<Info> Look(const ObjectName& name);
  // Fills `out` from this offset on. Aborted: the object is of another version by now.
  absl::Status Read(const ObjectName& name, const std::string& etag, uint64_t offset, absl::Span<char> out);
  // OK also if there is no such object.
  absl::Status Remove(const ObjectName& name);

  struct Listing {
    // Keys that begin with the prefix and have no further '/', without the prefix.
    std::vector<std::pair<std::string, uint64_t>> objects;  // and their sizes
    // Of all other keys, the part from the prefix up to the next '/'.
    std::vector<std::string> folders;
  };
  // FailedPrecondition: there are too many, more than a million or so.
  absl::StatusOr<Listing> List(const std::string& bucket, const std::string& prefix);

  // An object that is put in parts, which are no object until Complete(). Each part but the last has at least
  // 5 MiB; there are at most 10,000, which may be put side by side.
  struct Upload {
    ObjectName name;
    std::string id, token;
    struct Part {
      std::string etag, crc32c;
    };
    std::vector<Part> parts;  // from the first on, for Complete()
  };
  absl::StatusOr<Upload> Begin(const ObjectName& name);
  // Numbers begin with 1.
  absl::StatusOr<Upload::Part> PutPart(const Upload& upload, size_t number, absl::string_view data);
  absl::Status Complete(const Upload& upload, const Condition& condition);
  // Frees what the parts take.
  absl::Status Abort(const Upload& upload);
  // The parts of uploads that were begun under this prefix and that nobody has completed or aborted.
  absl::StatusOr<std::vector<Upload>> Unfinished(const std::string& bucket, const std::string& prefix);

  // From so much later on all calls fail with Unavailable, those under way within a second.
  void EndWithin(absl::Duration time) { http_.EndWithin(time); }

 private:
  struct Call;
  absl::StatusOr<HttpAnswer> Exchange(const Call& call);
  // Sends a request once. Unavailable: the next try may be better. `renewed`: other keys were asked for
  // already, since the store called those of an earlier try expired.
  absl::StatusOr<HttpAnswer> Try(const Call& call, HttpRequest& request, bool* renewed);
  // The store calls this machine's clock wrong: later requests bear the store's time. Returns both times, ";
  // ...".
  std::string SetClock(const HttpAnswer& answer);
  // The outcome of a conditional put that was sent with this token and ended with `sent`: an earlier try, or
  // one without an answer, may have taken effect.
  absl::Status Settle(const ObjectName& name, const std::string& token, const Condition& condition,
                      const absl::Status& sent);

  const Options options_;
  HttpClient http_;
  Credentials credentials_;
};

}  // namespace weir

#include "ps_server/push_log/push_log.h"

#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/checksums.h"
#include "common/base/random.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

const char kFolder[] = "/log";

v1::LogSegment Description() {
  v1::LogSegment description;
  description.set_shard(1);
  description.set_num_shards(3);
  description.set_model_hash(0xfeed);
  return description;
}

std::vector<float> GradientOf(uint64_t version) {
  std::vector<float> values(5 + version % 7);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(version * 100 + i);
  return values;
}

// A log whose thread is the caller of Run().
class Fixture {
 public:
  explicit Fixture(uint64_t seed = 1) : files(seed) {}

  // install 0: as in logs from before installs were counted.
  absl::Status Begin(const LogEnd& end = {}, uint64_t install = 0) {
    PushLog::Options options;
    options.files = &files;
    options.folder = kFolder;
    options.segment = end.next_segment;
    options.description = Description();
    options.description.set_previous_bytes(end.previous_bytes);
    options.description.set_coordinator(install == 0 ? 0 : 7);
    options.description.set_install(install);
    options.executor = [this](std::function<void()> work) { work_.push_back(std::move(work)); };
    auto begun = PushLog::Begin(std::move(options));
    if (begun.ok()) log = *std::move(begun);
    return begun.status();
  }
  absl::Status Claim(uint64_t install) {
    v1::LogSegment description = Description();
    description.set_coordinator(7);
    description.set_install(install);
    return ClaimPushLog(files, kFolder, description);
  }
  void Append(uint64_t version) {
    v1::LoggedPush push;
    push.set_version(version);
    push.set_outcome(v1::OK);
    push.mutable_push()->set_clock(version - 1);
    const auto values = std::make_shared<std::vector<float>>(GradientOf(version));
    log->Append(push, {values, values->data()}, values->size(), [this, version](absl::Status status) {
      if (status.ok()) {
        acknowledged = version;
      } else {
        failure = status;
      }
    });
  }
  void Run() {
    while (!work_.empty()) {
      auto work = std::move(work_.front());
      work_.pop_front();
      work();
    }
  }
  // The versions in the log, with their gradients, one after another from `first`; or the error.
  absl::StatusOr<LogEnd> Read(uint64_t* last, uint64_t from_segment = 1, uint64_t first = 1) {
    *last = first - 1;
    return ReadPushLog(
        files, kFolder, Description(), from_segment,
        [&](const v1::LoggedPush& push, absl::Span<const float> gradient) {
          if (push.version() != *last + 1 || gradient != absl::MakeConstSpan(GradientOf(push.version()))) {
            return absl::InternalError(absl::StrCat("wrong record ", push.version(), " after ", *last));
          }
          ++*last;
          return absl::OkStatus();
        });
  }

  FaultyFileSystem files;
  std::shared_ptr<PushLog> log;
  uint64_t acknowledged = 0;
  absl::Status failure;

 private:
  std::deque<std::function<void()>> work_;
};

TEST_CASE("a log tells whose it is, and no other job reads it") {
  FaultyFileSystem files(1);
  std::vector<std::function<void()>> work;
  PushLog::Options options;
  options.files = &files;
  options.folder = kFolder;
  options.description = Description();
  options.description.mutable_job()->set_id(7);
  options.description.mutable_job()->set_name("digits");
  options.executor = [](const std::function<void()>& function) { function(); };
  v1::LogSegment of = options.description;
  REQUIRE(ClaimPushLog(files, kFolder, of).ok());
  REQUIRE(PushLog::Begin(std::move(options)).ok());
  const auto read = [&] {
    return ReadPushLog(files, kFolder, of, 1,
                       [](const v1::LoggedPush&, absl::Span<const float>) { return absl::OkStatus(); })
        .status();
  };
  CHECK(read().ok());
  // A reader of an earlier version does not know its job.
  of.clear_job();
  CHECK(read().ok());
  of.mutable_job()->set_id(8);
  of.mutable_job()->set_name("another");
  const absl::Status refused = read();
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK_THAT(std::string(refused.message()),
             Catch::Contains("the log of job 'digits' (0000000000000007); this is job 'another' "
                             "(0000000000000008)"));
}

TEST_CASE("PushLog: what was appended is read, over segments and incarnations") {
  Fixture f;
  uint64_t last = 7;
  REQUIRE(f.Read(&last).ok());
  CHECK(last == 0);
  REQUIRE(f.Begin().ok());
  for (uint64_t v = 1; v <= 3; ++v) f.Append(v);
  CHECK(f.acknowledged == 0);  // not before it is durable
  f.Run();
  CHECK(f.acknowledged == 3);
  CHECK(f.log->Rotate(0, nullptr) == 2);
  f.Append(4);
  f.Run();
  absl::StatusOr<LogEnd> end = f.Read(&last);
  REQUIRE(end.ok());
  CHECK(last == 4);
  CHECK(end->next_segment == 3);
  CHECK(end->dropped_bytes == 0);

  REQUIRE(f.Begin(*end).ok());
  f.Append(5);
  f.Run();
  REQUIRE(f.Read(&last).ok());
  CHECK(last == 5);
  REQUIRE(f.Read(&last, 2, 4).ok());
  CHECK(last == 5);
  f.log->DropBefore(2);
  f.Run();
  CHECK(f.files.List(kFolder)->size() == 2);
  REQUIRE(f.Read(&last, 2, 4).ok());
  CHECK(last == 5);
  CHECK(absl::IsDataLoss(f.Read(&last, 1, 4).status()));
  f.log->DropBefore(3);
  f.Run();
  CHECK(absl::IsDataLoss(f.Read(&last, 2, 4).status()));
}

// Makes the log's only segment begin with this record, in the documented framing.
void BeginWith(Fixture& f, const std::string& head) {
  const std::string path = JoinPath(kFolder, "00000001.log");
  const std::string old = f.files.Contents(path);
  uint32_t length;
  std::memcpy(&length, &old[8], sizeof(length));
  std::string frame = old.substr(0, 32);
  length = static_cast<uint32_t>(head.size());
  std::memcpy(&frame[8], &length, sizeof(length));
  const uint32_t checksum = Crc32c(frame.substr(8) + head);
  std::memcpy(&frame[4], &checksum, sizeof(checksum));
  std::memcpy(&length, &old[8], sizeof(length));
  f.files.SetContents(path, frame + head + old.substr(32 + length));
}

TEST_CASE("PushLog: an incarnation that was replaced cannot take a segment from the one that goes on") {
  Fixture f;
  REQUIRE(f.Begin().ok());
  f.Append(1);
  f.Run();
  const std::shared_ptr<PushLog> replaced = f.log;
  uint64_t last = 0;
  const absl::StatusOr<LogEnd> end = f.Read(&last);
  REQUIRE(f.Begin(*end).ok());
  f.Append(2);
  f.Run();
  absl::Status rotated;
  CHECK(replaced->Rotate(9, [&](absl::Status status) { rotated = std::move(status); }) == 2);
  f.Run();
  CHECK(rotated.code() == absl::StatusCode::kAlreadyExists);
  f.Append(3);
  f.Run();
  REQUIRE(f.Read(&last).ok());
  CHECK(last == 3);
  CHECK(f.Begin(*end).code() == absl::StatusCode::kAlreadyExists);
}

TEST_CASE("PushLog: two incarnations begin the same segment: the later one has it, whoever comes first") {
  Fixture f;
  REQUIRE(f.Claim(2).ok());
  uint64_t last = 0;
  const absl::StatusOr<LogEnd> end = f.Read(&last);
  REQUIRE(f.Claim(3).ok());
  SECTION("the later one, which has written nothing yet") {
    REQUIRE(f.files.Create("/log/00000001.log").ok());
    CHECK(f.Begin(*end, 2).code() == absl::StatusCode::kAlreadyExists);
    CHECK(f.files.Open("/log/00000001.log").ok());
  }
  SECTION("the later one") {
    REQUIRE(f.Begin(*end, 3).ok());
    const std::shared_ptr<PushLog> later = f.log;
    CHECK(f.Begin(*end, 2).code() == absl::StatusCode::kAlreadyExists);
    f.log = later;
  }
  SECTION("the earlier one") {
    REQUIRE(f.Begin(*end, 2).ok());
    const std::shared_ptr<PushLog> earlier = f.log;
    REQUIRE(f.Begin(*end, 3).ok());
    const std::shared_ptr<PushLog> later = std::exchange(f.log, earlier);
    f.Append(1);
    f.Run();
    CHECK(f.acknowledged == 0);
    f.log = later;
  }
  if (f.log == nullptr) REQUIRE(f.Begin(*end, 3).ok());
  f.Append(1);
  f.Run();
  CHECK(f.acknowledged == 1);
  REQUIRE(f.Read(&last).ok());
  CHECK(last == 1);
}

TEST_CASE("PushLog: a segment that a replaced incarnation begins behind its successor's counts for nothing") {
  Fixture f;
  REQUIRE(f.Begin({}, 2).ok());
  f.Append(1);
  f.Run();
  const std::shared_ptr<PushLog> successor = f.log;
  // The predecessor had hung, and looks for a free number now.
  uint64_t last = 0;
  absl::StatusOr<LogEnd> end = f.Read(&last);
  REQUIRE(end.ok());
  REQUIRE(f.Begin(*end, 1).ok());
  f.Append(2);
  f.Run();
  SECTION("to readers, who go on from where the other one ends") {
    end = f.Read(&last);
    REQUIRE(end.ok());
    CHECK(last == 1);
    REQUIRE(f.Begin(*end, 3).ok());
  }
  SECTION("to the other one, which takes its number") {
    f.log = successor;
    f.log->Rotate(1, [](absl::Status status) { CHECK(status.ok()); });
  }
  f.Append(2);
  f.Append(3);
  f.Run();
  CHECK(f.failure.ok());
  REQUIRE(f.Read(&last).ok());
  CHECK(last == 3);
}

TEST_CASE("PushLog: what an incarnation appends whose log was taken over is not acknowledged") {
  Fixture f;
  REQUIRE(f.Claim(1).ok());
  REQUIRE(f.Begin({}, 1).ok());
  f.Append(1);
  f.Run();
  CHECK(f.acknowledged == 1);
  // When its successor claims the log, this process has not begun to write the record, or has written it
  // without acknowledging it: the successor reads the record or it is not acknowledged.
  f.Append(2);
  REQUIRE(f.Claim(2).ok());
  SECTION("before the successor reads") { f.Run(); }
  uint64_t last = 0;
  const absl::StatusOr<LogEnd> end = f.Read(&last);
  REQUIRE(end.ok());
  f.Run();
  CHECK(f.acknowledged == 1);
  CHECK(absl::IsAlreadyExists(f.failure));
  CHECK(absl::StrContains(f.failure.message(), "taken the log over (/log/claim-00000007-00000002)"));
  f.Append(3);
  f.Run();
  CHECK(f.acknowledged == 1);
  // Whatever the successor read, it goes on behind it.
  REQUIRE(f.Begin(*end, 2).ok());
  f.failure = absl::OkStatus();
  f.Append(last + 1);
  f.Run();
  CHECK(f.failure == absl::OkStatus());
  CHECK(f.acknowledged == last + 1);
  uint64_t now = 0;
  REQUIRE(f.Read(&now).ok());
  CHECK(now == last + 1);
}

TEST_CASE(
    "PushLog: the claim of an incarnation that was replaced harms nobody, and the highest stays alone") {
  Fixture f;
  REQUIRE(f.Claim(5).ok());
  REQUIRE(f.Begin({}, 5).ok());
  // This claim comes late, since its process had hung.
  REQUIRE(f.Claim(4).ok());
  f.Append(1);
  f.Run();
  CHECK(f.acknowledged == 1);
  REQUIRE(f.Claim(6).ok());
  REQUIRE(f.Claim(6).ok());
  std::vector<std::string> names = *f.files.List(kFolder);
  CHECK(names == std::vector<std::string>{"00000001.log", "claim-00000007-00000006"});
  f.Append(2);
  f.Run();
  CHECK(f.acknowledged == 1);
  CHECK(absl::IsAlreadyExists(f.failure));
}

TEST_CASE("PushLog: a log of an earlier or a later minor version is read, one of a later major refused") {
  Fixture f;
  REQUIRE(f.Begin().ok());
  f.Append(1);
  f.Run();
  v1::LogSegment segment = Description();
  uint64_t last = 0;
  BeginWith(f, segment.SerializeAsString());  // from before there were versions
  REQUIRE(f.Read(&last).ok());
  CHECK(last == 1);
  segment.set_format(1);
  segment.set_format_minor(9);
  segment.GetReflection()->MutableUnknownFields(&segment)->AddVarint(1000, 5);
  BeginWith(f, segment.SerializeAsString());
  REQUIRE(f.Read(&last).ok());
  CHECK(last == 1);
  segment.set_format(2);
  BeginWith(f, segment.SerializeAsString());
  const absl::Status newer = f.Read(&last).status();
  CHECK(newer.code() == absl::StatusCode::kUnimplemented);
  CHECK_THAT(
      std::string(newer.message()),
      Catch::Contains("/log/00000001.log: this log has format 2.9; this Weir reads formats up to 1.x"));
  CHECK(last == 0);
}

TEST_CASE("PushLog: a machine that stops at any operation keeps every acknowledged record") {
  uint64_t torn = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (uint64_t stop = 0;; ++stop) {
      Fixture f(seed);
      f.files.SetFault([stop](const FaultyFileSystem::Operation& operation) {
        return operation.number >= stop ? absl::UnavailableError("power lost") : absl::OkStatus();
      });
      bool begun = f.Begin().ok();
      uint64_t appended = 0;
      for (int batch = 0; begun && batch < 4; ++batch) {
        for (int i = 0; i <= batch; ++i) f.Append(++appended);
        if (batch == 2) f.log->Rotate(0, nullptr);
        f.Run();
      }
      const bool finished = begun && f.failure.ok() && f.acknowledged == appended;
      f.files.Crash();
      f.files.SetFault(nullptr);
      uint64_t last = 0;
      absl::StatusOr<LogEnd> end = f.Read(&last);
      CAPTURE(seed, stop, end.status().ToString(), f.acknowledged, appended);
      REQUIRE(end.ok());
      REQUIRE(last >= f.acknowledged);
      REQUIRE(last <= appended);
      torn += end->dropped_bytes > 0;
      // The next incarnation goes on behind the records, and the torn end does no harm.
      REQUIRE(f.Begin(*end).ok());
      for (uint64_t v = last + 1; v <= last + 3; ++v) f.Append(v);
      f.Run();
      const uint64_t want = last + 3;
      REQUIRE(f.Read(&last).ok());
      REQUIRE(last == want);
      if (finished) break;
    }
  }
  CHECK(torn > 10);  // otherwise the test tried nothing
}

TEST_CASE("PushLog: what somebody left unsynced who died is on the disk before anybody goes on from it") {
  for (const bool counts : {true, false}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Fixture f(seed);
      REQUIRE(f.Begin().ok());
      f.Append(1);
      f.Run();
      f.files.SetFault([](const FaultyFileSystem::Operation& operation) {
        return operation.kind == FaultyFileSystem::Kind::kSync ? absl::CancelledError("killed")
                                                               : absl::OkStatus();
      });
      f.Append(2);
      f.Run();
      REQUIRE(f.acknowledged == 1);
      f.files.SetFault(nullptr);

      // The next incarnation sees the record in the system's memory, or skips the segment, which a checkpoint
      // covers.
      uint64_t last = 0;
      v1::LogSegment of = Description();
      of.set_checkpoint(counts ? 0 : 7);
      const absl::StatusOr<LogEnd> end =
          ReadPushLog(f.files, kFolder, of, counts ? 1 : 0,
                      [](const v1::LoggedPush&, absl::Span<const float>) { return absl::OkStatus(); });
      REQUIRE(end.ok());
      REQUIRE(f.Begin(*end).ok());
      f.files.Crash();
      REQUIRE(f.Read(&last).status() == absl::OkStatus());
      CHECK(last == 2);
    }
  }
}

TEST_CASE("PushLog: damage to what was on the disk is found, and named") {
  Fixture f;
  REQUIRE(f.Begin().ok());
  for (uint64_t v = 1; v <= 6; ++v) {
    f.Append(v);
    if (v == 4) f.log->Rotate(0, nullptr);
    f.Run();
  }
  uint64_t last = 0;
  size_t found = 0, cut = 0;
  const absl::StatusOr<std::vector<std::string>> names = f.files.List(kFolder);
  for (const std::string& name : *names) {
    const std::string path = JoinPath(kFolder, name), whole = f.files.Contents(path);
    for (size_t byte = 0; byte < whole.size(); ++byte) {
      std::string damaged = whole;
      damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << byte % 8));
      f.files.SetContents(path, damaged);
      const absl::StatusOr<LogEnd> end = f.Read(&last);
      CAPTURE(path, byte, end.status().ToString());
      if (end.ok()) {
        // No later record proves that the last one was on the disk: a crash may have cut it.
        REQUIRE(last >= 4);
        REQUIRE(last <= 5);
        REQUIRE(end->dropped_bytes > 0);
        ++cut;
      } else {
        REQUIRE(absl::IsDataLoss(end.status()));
        REQUIRE_THAT(std::string(end.status().message()), Catch::Contains(kFolder));
        ++found;
      }
    }
    f.files.SetContents(path, whole);
  }
  CHECK(found > 300);
  CHECK(cut > 0);
}

TEST_CASE("PushLog: a record that no reader would take is not written, and not acknowledged") {
  constexpr size_t kMost = 1 << 20;
  for (const bool fits : {true, false}) {
    Fixture f;
    REQUIRE(f.Begin().ok());
    v1::LoggedPush push;
    push.set_version(1);
    push.set_outcome(v1::REFUSED);
    // Its tag and length take 4 bytes.
    push.set_reason(std::string(kMost - push.ByteSizeLong() - 4 + (fits ? 0 : 1), 'x'));
    REQUIRE(push.ByteSizeLong() == kMost + (fits ? 0 : 1));
    absl::Status written = absl::UnknownError("no answer");
    f.log->Append(push, nullptr, 0, [&](absl::Status status) { written = std::move(status); });
    f.Run();
    CHECK(written.ok() == fits);
    int read = 0;
    const absl::StatusOr<LogEnd> end = ReadPushLog(
        f.files, kFolder, Description(), 1, [&](const v1::LoggedPush& record, absl::Span<const float>) {
          CHECK(record.reason() == push.reason());
          ++read;
          return absl::OkStatus();
        });
    CHECK(end.ok());
    CHECK(read == (fits ? 1 : 0));
  }
}

TEST_CASE(
    "PushLog: whatever a gradient holds, the search for a record behind it reads each byte about twice") {
  Fixture f;
  REQUIRE(f.Begin().ok());
  f.Append(1);
  f.Run();
  // Each four bytes are the beginning of a record with a long head, as far as the sizes say.
  constexpr uint32_t kMagic = 0x474f4c57;
  const size_t elements = 1 << 20;
  const auto values = std::make_shared<std::vector<float>>(elements);
  for (float& value : *values) std::memcpy(&value, &kMagic, sizeof(value));
  const uint32_t bytes = 1 << 19, zero = 0;
  for (size_t i = 0; i + 8 <= elements; i += 8) {
    std::memcpy(&(*values)[i + 2], &bytes, sizeof(bytes));
    for (const size_t at : {4, 5, 7}) std::memcpy(&(*values)[i + at], &zero, sizeof(zero));
  }
  v1::LoggedPush push;
  push.set_version(2);
  push.set_outcome(v1::OK);
  f.log->Append(push, {values, values->data()}, elements, nullptr);
  f.Run();
  const std::string path = JoinPath(kFolder, "00000001.log");
  std::string whole = f.files.Contents(path);
  // Cut: a crash may have done that. The record before it stays.
  f.files.SetContents(path, whole.substr(0, whole.size() - 1));
  const uint64_t before = f.files.operations();
  uint64_t last = 0;
  const absl::StatusOr<LogEnd> end = f.Read(&last);
  REQUIRE(end.ok());
  CHECK(last == 1);
  CHECK(f.files.operations() - before < 30);
  // A record behind it shows that it was on the disk.
  f.files.SetContents(path, whole);
  f.Append(3);
  f.Run();
  whole = f.files.Contents(path);
  whole[whole.size() / 2] ^= 1;
  f.files.SetContents(path, whole);
  CHECK(absl::IsDataLoss(f.Read(&last).status()));
}

TEST_CASE("PushLog: another shard's log is refused, and after an error nothing is acknowledged") {
  Fixture f;
  REQUIRE(f.Begin().ok());
  v1::LogSegment other = Description();
  other.set_num_shards(2);
  const auto ignore = [](const v1::LoggedPush&, absl::Span<const float>) { return absl::OkStatus(); };
  const absl::Status refused = ReadPushLog(f.files, kFolder, other, 1, ignore).status();
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK_THAT(std::string(refused.message()), Catch::Contains("shard 1 of 3"));

  f.Append(1);
  f.Run();
  f.files.SetCapacity(f.files.bytes_used() + 40);
  f.Append(2);
  f.Run();
  CHECK(f.acknowledged == 1);
  CHECK(absl::IsResourceExhausted(f.failure));
  f.files.SetCapacity(UINT64_MAX);
  f.failure = absl::OkStatus();
  f.Append(3);
  f.Run();
  CHECK(absl::IsResourceExhausted(f.failure));
  CHECK(f.acknowledged == 1);
}

}  // namespace
}  // namespace weir

#include "ps_server/push_log/push_log.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/checksums.h"
#include "common/base/status_macros.h"
#include "common/protocol/handshake.h"
#include "common/telemetry/logging.h"

namespace weir {
namespace {

// The limit of a head, which describes a push. The model's size limits gradients.
constexpr uint64_t kMaxHeadBytes = 1 << 20;

constexpr uint32_t kMagic = 0x474f4c57;

// The bytes before the head. Little-endian, like every supported machine.
struct Frame {
  uint32_t magic = kMagic;
  uint32_t checksum = 0;
  uint32_t head_bytes = 0;
  uint32_t gradient_checksum = 0;
  uint64_t gradient_bytes = 0;
  uint64_t synced_bytes = 0;
};
static_assert(sizeof(Frame) == 32, "as in the file");

uint32_t ChecksumOf(const Frame& frame, absl::string_view head) {
  const uint32_t fixed = ExtendCrc32c(0, &frame.head_bytes, sizeof(frame) - offsetof(Frame, head_bytes));
  return ExtendCrc32c(fixed, head.data(), head.size());
}

std::string SegmentName(uint64_t number) { return absl::StrFormat("%08d.log", number); }

std::optional<uint64_t> SegmentNumber(absl::string_view name) {
  uint64_t number;
  const size_t digits = name.find('.');
  if (digits == absl::string_view::npos || name.substr(digits) != ".log" ||
      !absl::SimpleAtoi(name.substr(0, digits), &number) || SegmentName(number) != name) {
    return std::nullopt;
  }
  return number;
}

absl::StatusOr<std::vector<uint64_t>> Segments(FileSystem& files, const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = files.List(folder);
  if (absl::IsNotFound(names.status())) return std::vector<uint64_t>();
  if (!names.ok()) return names.status();
  std::vector<uint64_t> numbers;
  for (const std::string& name : *names) {
    if (const auto number = SegmentNumber(name); number.has_value()) numbers.push_back(*number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

// The order of Installs in time: by coordinator incarnation, then by the coordinator's count.
using Rank = std::pair<uint64_t, uint64_t>;
Rank RankOf(const v1::LogSegment& of) { return {of.coordinator(), of.install()}; }

constexpr absl::string_view kClaim = "claim-";

// The name of an empty file. The name contains the whole claim, so a crash cannot leave half of it.
std::string ClaimName(const Rank& rank) {
  return absl::StrFormat("%s%08d-%08d", kClaim, rank.first, rank.second);
}

std::optional<Rank> ClaimRank(absl::string_view name) {
  Rank rank;
  if (!absl::ConsumePrefix(&name, kClaim)) return std::nullopt;
  const std::pair<absl::string_view, absl::string_view> numbers =
      absl::StrSplit(name, absl::MaxSplits('-', 1));
  if (!absl::SimpleAtoi(numbers.first, &rank.first) || !absl::SimpleAtoi(numbers.second, &rank.second)) {
    return std::nullopt;
  }
  return rank;
}

// The checksums of any parts of a text, each in about the same short time.
class PrefixCrcs {
 public:
  explicit PrefixCrcs(absl::string_view text) : text_(text) {
    uint32_t crc = 0;
    for (size_t at = 0; at < text.size(); at += kStride) {
      marks_.push_back(crc);
      crc = ExtendCrc32c(crc, text.data() + at, std::min(kStride, text.size() - at));
    }
    marks_.push_back(crc);
  }
  // Of the bytes from `begin` up to `end`.
  uint32_t Of(size_t begin, size_t end) const {
    // The checksum of a concatenation is that of its second part, XOR what the first one's becomes.
    return Before(end) ^ ConcatCrc32c(Before(begin), 0, end - begin);
  }

 private:
  static constexpr size_t kStride = 64;
  uint32_t Before(size_t at) const {
    const size_t mark = at / kStride;
    return ExtendCrc32c(marks_[mark], text_.data() + mark * kStride, at % kStride);
  }

  const absl::string_view text_;
  std::vector<uint32_t> marks_;
};

// Reads one segment, record by record.
class SegmentReader {
 public:
  SegmentReader(const ReadableFile& file, uint64_t end) : file_(file), end_(end) {}

  uint64_t at() const { return at_; }
  const std::string& head() const { return head_; }
  absl::Span<const float> gradient() const { return gradient_; }

  // Reads the next record. False: there is no complete record at this place. Errors: those of the file
  // system.
  absl::StatusOr<bool> Next() {
    Frame frame;
    WEIR_ASSIGN_OR_RETURN(const bool head, ReadHead(at_, &frame));
    if (!head) return false;
    gradient_.resize(frame.gradient_bytes / sizeof(float));
    const auto bytes = absl::MakeSpan(reinterpret_cast<char*>(gradient_.data()), frame.gradient_bytes);
    WEIR_RETURN_IF_ERROR(file_.Read(at_ + sizeof(frame) + frame.head_bytes, bytes));
    if (ExtendCrc32c(0, bytes.data(), bytes.size()) != frame.gradient_checksum) return false;
    at_ += sizeof(frame) + frame.head_bytes + frame.gradient_bytes;
    return true;
  }

  // Whether a later record was written when the record at this place was already durable. A gradient may hold
  // anything, such as the magic number at each of its bytes: the time is bounded by the bytes that are
  // searched.
  absl::StatusOr<bool> LaterRecordKnewItDurable() const {
    constexpr uint64_t kWindow = 1 << 20;
    std::string window;
    for (uint64_t begin = at_ + 1; begin + sizeof(Frame) <= end_; begin += kWindow) {
      // The windows overlap, so that each has the whole head of every record that begins in its first kWindow
      // bytes.
      window.resize(std::min(kWindow + sizeof(Frame) + kMaxHeadBytes, end_ - begin));
      WEIR_RETURN_IF_ERROR(file_.Read(begin, absl::MakeSpan(&window[0], window.size())));
      if (FindLater(window, begin, std::min<uint64_t>(kWindow, window.size()))) return true;
    }
    return false;
  }

 private:
  // False: there is no head, or its record does not fit.
  absl::StatusOr<bool> ReadHead(uint64_t at, Frame* frame) {
    if (at > end_ || end_ - at < sizeof(*frame)) return false;
    WEIR_RETURN_IF_ERROR(file_.Read(at, {reinterpret_cast<char*>(frame), sizeof(*frame)}));
    // Sizes are checked before memory is allocated.
    if (!Fits(*frame, at)) return false;
    head_.resize(frame->head_bytes);
    WEIR_RETURN_IF_ERROR(file_.Read(at + sizeof(*frame), absl::MakeSpan(&head_[0], head_.size())));
    return ChecksumOf(*frame, head_) == frame->checksum;
  }

  // Whether a record with this frame may begin here, as far as its sizes say.
  bool Fits(const Frame& frame, uint64_t at) const {
    const uint64_t rest = end_ - at - sizeof(frame);
    return frame.magic == kMagic && frame.head_bytes <= kMaxHeadBytes && frame.head_bytes <= rest &&
           frame.gradient_bytes <= rest - frame.head_bytes && frame.gradient_bytes % sizeof(float) == 0;
  }

  // As LaterRecordKnewItDurable(), among the records that begin in the first bytes of the window, which
  // begins at this place of the file.
  bool FindLater(const std::string& window, uint64_t begin, uint64_t first) const {
    const absl::string_view magic(reinterpret_cast<const char*>(&kMagic), sizeof(kMagic));
    std::optional<PrefixCrcs> crcs;
    for (size_t i = window.find(magic.data(), 0, magic.size());
         i < first && window.size() - i >= sizeof(Frame);
         i = window.find(magic.data(), i + 1, magic.size())) {
      Frame frame;
      std::memcpy(&frame, &window[i], sizeof(frame));
      if (frame.synced_bytes <= at_ || !Fits(frame, begin + i)) continue;
      if (!crcs.has_value()) crcs.emplace(window);
      // As ChecksumOf(): the rest of the frame and the head follow each other.
      if (crcs->Of(i + offsetof(Frame, head_bytes), i + sizeof(frame) + frame.head_bytes) == frame.checksum) {
        return true;
      }
    }
    return false;
  }

  const ReadableFile& file_;
  const uint64_t end_;
  uint64_t at_ = 0;
  std::string head_;
  std::vector<float> gradient_;
};

// Reads the segment's first record; nullopt: the record is missing or incomplete.
absl::StatusOr<std::optional<v1::LogSegment>> ReadDescription(const ReadableFile& file) {
  SegmentReader reader(file, file.size());
  WEIR_ASSIGN_OR_RETURN(const bool whole, reader.Next());
  v1::LogSegment found;
  if (!whole || !found.ParseFromString(reader.head())) return std::nullopt;
  return found;
}

// Whether `earlier` belongs to an earlier Install than `later`.
bool IsReplaced(const v1::LogSegment& earlier, const v1::LogSegment& later) {
  return earlier.coordinator() != 0 && RankOf(earlier) < RankOf(later);
}

absl::Status CheckDescription(const std::string& path, const v1::LogSegment& found,
                              const v1::LogSegment& of) {
  WEIR_RETURN_IF_ERROR(CheckMajor(path, "log", {found.format(), found.format_minor()}, kLogFormat));
  if (!MayBeSame(found.job().id(), of.job().id())) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": the log of ", Describe(found.job()),
                                                      "; this is ", Describe(of.job()),
                                                      ". Give this job a folder of its own"));
  }
  if (found.shard() == of.shard() && found.num_shards() == of.num_shards() &&
      (of.model_hash() == 0 || found.model_hash() == of.model_hash())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": the log of shard ", found.shard(), " of ", found.num_shards(), ", model ",
                   absl::Hex(found.model_hash()), "; this is shard ", of.shard(), " of ", of.num_shards(),
                   ", model ", absl::Hex(of.model_hash())));
}

}  // namespace

// ---- writing

absl::StatusOr<std::shared_ptr<PushLog>> PushLog::Begin(Options options) {
  WEIR_RETURN_IF_ERROR(options.files->MakeFolder(options.folder));
  WEIR_RETURN_IF_ERROR(options.files->SyncFolder(ParentFolder(options.folder)));
  std::shared_ptr<PushLog> log(new PushLog(std::move(options)));
  const v1::LogSegment& description = log->options_.description;
  WEIR_RETURN_IF_ERROR(
      log->BeginSegment(log->options_.segment, description.previous_bytes(), description.checkpoint()));
  return log;
}

void PushLog::Append(v1::LoggedPush record, std::shared_ptr<const float> gradient, uint64_t elements,
                     Done done, Rows rows) {
  Pending pending;
  pending.head = record.SerializeAsString();
  if (gradient != nullptr) {
    pending.gradient.emplace_back(reinterpret_cast<const char*>(gradient.get()), elements * sizeof(float));
  }
  pending.gradient.insert(pending.gradient.end(), rows.bytes.begin(), rows.bytes.end());
  pending.dense = std::move(gradient);
  pending.rows = std::move(rows.owner);
  pending.done = std::move(done);
  Add(std::move(pending));
}

uint64_t PushLog::Rotate(uint64_t checkpoint, Done done) {
  Pending pending;
  pending.checkpoint = checkpoint;
  pending.done = std::move(done);
  {
    MutexLock lock(mutex_);
    pending.segment = next_segment_++;
  }
  const uint64_t number = pending.segment;
  Add(std::move(pending));
  return number;
}

void PushLog::DropBefore(uint64_t segment) {
  options_.executor([files = options_.files, folder = options_.folder, segment] {
    const absl::StatusOr<std::vector<uint64_t>> numbers = Segments(*files, folder);
    absl::Status status = numbers.status();
    for (size_t i = 0; status.ok() && i < numbers->size() && (*numbers)[i] < segment; ++i) {
      status = files->Remove(JoinPath(folder, SegmentName((*numbers)[i])));
    }
    if (!status.ok()) LogWarning("old segments of the log stay: ", status.message());
  });
}

void PushLog::Add(Pending pending) {
  {
    MutexLock lock(mutex_);
    pending_.push_back(std::move(pending));
    if (writing_) return;
    writing_ = true;
  }
  options_.executor([self = shared_from_this()] { self->Write(); });
}

void PushLog::Write() {
  while (true) {
    std::vector<Pending> batch;
    {
      MutexLock lock(mutex_);
      if (pending_.empty()) {
        writing_ = false;
        return;
      }
      batch.swap(pending_);
    }
    for (const Pending& pending : batch) {
      if (!broken_.ok()) break;
      broken_ = pending.segment != 0 ? BeginSegment(pending.segment, file_bytes_, pending.checkpoint)
                                     : WriteRecord(pending.head, pending.gradient);
    }
    if (broken_.ok()) broken_ = file_->Sync();
    if (broken_.ok()) broken_ = CheckOurs();
    synced_bytes_ = file_bytes_;
    for (const Pending& pending : batch) {
      if (pending.done) pending.done(broken_);
    }
  }
}

absl::Status PushLog::CheckOurs() const {
  WEIR_ASSIGN_OR_RETURN(const std::vector<std::string> names, options_.files->List(options_.folder));
  for (const std::string& name : names) {
    const std::optional<Rank> claim = ClaimRank(name);
    if (claim.has_value() && *claim > RankOf(options_.description)) {
      return absl::AlreadyExistsError(absl::StrCat(
          "a later incarnation of the shard has taken the log over (", JoinPath(options_.folder, name), ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status PushLog::BeginSegment(uint64_t number, uint64_t previous_bytes, uint64_t checkpoint) {
  if (file_ != nullptr) {
    WEIR_RETURN_IF_ERROR(file_->Sync());
    WEIR_RETURN_IF_ERROR(file_->Close());
  }
  // An incarnation that was replaced must not overwrite the segment of its successor.
  const std::string path = JoinPath(options_.folder, SegmentName(number));
  absl::StatusOr<std::unique_ptr<WritableFile>> file =
      options_.files->Create(path, FileSystem::Existing::kKeep);
  if (absl::IsAlreadyExists(file.status())) {
    // A replaced incarnation may have begun this segment before it knew that it was replaced, or after this
    // one had read the log. A first segment that a crash left half begun does not count, either.
    const bool first = number == options_.segment;
    WEIR_ASSIGN_OR_RETURN(const auto there, options_.files->Open(path));
    WEIR_ASSIGN_OR_RETURN(const auto found, ReadDescription(*there));
    if (found.has_value() ? !IsReplaced(*found, options_.description) : !first) return file.status();
    // Last, so that a successor's segment that has yet to get its first record stays.
    if (first) WEIR_RETURN_IF_ERROR(CheckOurs());
    WEIR_RETURN_IF_ERROR(options_.files->Remove(path));
    file = options_.files->Create(path, FileSystem::Existing::kKeep);
  }
  WEIR_RETURN_IF_ERROR(file.status());
  file_ = *std::move(file);
  file_bytes_ = synced_bytes_ = 0;
  v1::LogSegment description = options_.description;
  description.set_format(kLogFormat.major);
  description.set_format_minor(kLogFormat.minor);
  description.set_previous_bytes(previous_bytes);
  description.set_checkpoint(checkpoint);
  WEIR_RETURN_IF_ERROR(WriteRecord(description.SerializeAsString(), {}));
  WEIR_RETURN_IF_ERROR(file_->Sync());
  return options_.files->SyncFolder(options_.folder);
}

absl::Status PushLog::WriteRecord(const std::string& head, absl::Span<const absl::string_view> gradient) {
  // No reader would take it.
  if (head.size() > kMaxHeadBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a record describes a push with ", head.size(),
                                                   " bytes; at most ", kMaxHeadBytes, " are possible"));
  }
  Frame frame;
  frame.head_bytes = static_cast<uint32_t>(head.size());
  for (const absl::string_view bytes : gradient) {
    frame.gradient_bytes += bytes.size();
    frame.gradient_checksum = ExtendCrc32c(frame.gradient_checksum, bytes.data(), bytes.size());
  }
  frame.synced_bytes = synced_bytes_;
  frame.checksum = ChecksumOf(frame, head);
  const absl::string_view begin(reinterpret_cast<const char*>(&frame), sizeof(frame));
  WEIR_RETURN_IF_ERROR(file_->Append(absl::StrCat(begin, head)));
  for (const absl::string_view bytes : gradient) {
    if (!bytes.empty()) WEIR_RETURN_IF_ERROR(file_->Append(bytes));
  }
  file_bytes_ += sizeof(frame) + head.size() + frame.gradient_bytes;
  return absl::OkStatus();
}

absl::Status ClaimPushLog(FileSystem& files, const std::string& folder, const v1::LogSegment& of) {
  WEIR_RETURN_IF_ERROR(files.MakeFolder(folder));
  WEIR_RETURN_IF_ERROR(files.SyncFolder(ParentFolder(folder)));
  const Rank rank = RankOf(of);
  const absl::Status made =
      files.Create(JoinPath(folder, ClaimName(rank)), FileSystem::Existing::kKeep).status();
  // AlreadyExists: an earlier attempt of this Install failed after it had created the file.
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  WEIR_RETURN_IF_ERROR(files.SyncFolder(folder));
  // The highest claim implies the lower ones.
  WEIR_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(folder));
  for (const std::string& name : names) {
    const std::optional<Rank> claim = ClaimRank(name);
    if (!claim.has_value() || *claim >= rank) continue;
    const absl::Status removed = files.Remove(JoinPath(folder, name));
    if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  }
  return absl::OkStatus();
}

// ---- reading

namespace {

struct Segment {
  std::string path;
  std::unique_ptr<ReadableFile> file;
  v1::LogSegment description;
  std::optional<uint64_t> end;  // as the next segment says; nullopt: this is the last one

  uint64_t limit() const { return end.value_or(file->size()); }
  absl::Status Damage(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(path, ": ", what));
  }
};

// Opens the segments to read, with the arguments of ReadPushLog(). Each one says where the one before it
// ends, so all first records are read before the others.
absl::StatusOr<std::vector<Segment>> OpenSegments(FileSystem& files, const std::string& folder,
                                                  const v1::LogSegment& of, uint64_t from_segment,
                                                  LogEnd* end) {
  std::vector<Segment> segments;
  WEIR_ASSIGN_OR_RETURN(std::vector<uint64_t> numbers, Segments(files, folder));
  if (numbers.empty()) return segments;
  const uint64_t last = numbers.back();
  end->next_segment = last + 1;
  numbers.erase(numbers.begin(), std::lower_bound(numbers.begin(), numbers.end(), from_segment));
  const auto path_of = [&folder](uint64_t number) { return JoinPath(folder, SegmentName(number)); };
  const auto missing = [&](uint64_t number) {
    return absl::DataLossError(absl::StrCat(path_of(number), " is missing"));
  };
  if (numbers.empty()) return missing(from_segment);
  uint64_t expected = from_segment > 0 ? from_segment : numbers.front();
  v1::LogSegment newest;
  for (const uint64_t number : numbers) {
    if (number != expected) return missing(expected);
    ++expected;
    Segment segment;
    segment.path = path_of(number);
    WEIR_ASSIGN_OR_RETURN(segment.file, files.Open(segment.path));
    WEIR_ASSIGN_OR_RETURN(std::optional<v1::LogSegment> found, ReadDescription(*segment.file));
    if (!found.has_value()) {
      if (number != last) return segment.Damage("its first record is damaged");
      // The process crashed while it began this segment, so the segment holds no record that counts.
      end->dropped_bytes = segment.file->size();
      end->next_segment = number;
      break;
    }
    WEIR_RETURN_IF_ERROR(CheckDescription(segment.path, *found, of));
    if (IsReplaced(*found, newest)) continue;
    newest = *found;
    if (!segments.empty()) segments.back().end = found->previous_bytes();
    if (segments.empty() && from_segment == 0 && found->checkpoint() != of.checkpoint()) {
      // If nothing is read, the next segment confirms all bytes of this one.
      end->previous_bytes = segment.file->size();
      WEIR_RETURN_IF_ERROR(segment.file->Sync());
      continue;
    }
    segment.description = *std::move(found);
    segments.push_back(std::move(segment));
  }
  end->segments = segments.size();
  return segments;
}

// The bytes from `at` on are no complete record: fails if that is damage, and otherwise ends the segment.
absl::Status EndAt(const Segment& segment, const SegmentReader& reader, uint64_t at, LogEnd* end) {
  const uint64_t rest = segment.limit() - at;
  bool damaged = rest > 0;
  if (!segment.end.has_value()) {
    WEIR_ASSIGN_OR_RETURN(damaged, reader.LaterRecordKnewItDurable());
  }
  if (damaged) return segment.Damage(absl::StrCat("the record at byte ", at, " is damaged"));
  if (segment.end.has_value()) return absl::OkStatus();
  end->previous_bytes = at;
  end->dropped_bytes += rest;
  return segment.file->Sync();
}

}  // namespace

absl::StatusOr<LogEnd> ReadPushLog(
    FileSystem& files, const std::string& folder, const v1::LogSegment& of, uint64_t from_segment,
    const std::function<absl::Status(const v1::LoggedPush&, absl::Span<const float>)>& record,
    const std::function<absl::Status(const v1::LogSegment&)>& on_segment) {
  LogEnd end;
  WEIR_ASSIGN_OR_RETURN(const std::vector<Segment> segments,
                        OpenSegments(files, folder, of, from_segment, &end));
  for (const Segment& segment : segments) {
    if (segment.limit() > segment.file->size()) {
      return segment.Damage(
          absl::StrCat("it has ", segment.file->size(), " bytes; the next segment says ", segment.limit()));
    }
    if (on_segment) {
      const absl::Status status = on_segment(segment.description);
      if (!status.ok()) {
        return absl::Status(status.code(), absl::StrCat(segment.path, ": ", status.message()));
      }
    }
    SegmentReader reader(*segment.file, segment.limit());
    WEIR_RETURN_IF_ERROR(reader.Next().status());
    while (true) {
      const uint64_t at = reader.at();
      WEIR_ASSIGN_OR_RETURN(const bool whole, reader.Next());
      if (!whole) {
        WEIR_RETURN_IF_ERROR(EndAt(segment, reader, at, &end));
        break;
      }
      v1::LoggedPush push;
      if (!push.ParseFromString(reader.head())) {
        return segment.Damage(absl::StrCat("the record at byte ", at, " is no push"));
      }
      WEIR_RETURN_IF_ERROR(record(push, reader.gradient()));
    }
  }
  return end;
}

}  // namespace weir

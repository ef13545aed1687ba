// The segments of a push log. The input stands for a sequence of messages, three for each record: head,
// gradient, and the frame's synced_bytes as text; an empty head begins the next segment. Frames are made here
// with right checksums. If the input's first byte is not 'r', the input is the bytes of the one segment.
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/checksums.h"
#include "ps_server/push_log/push_log.h"
#include "tests/common/faulty_file_system.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/messages.h"

namespace weir {
namespace {

constexpr char kFolder[] = "/log";

v1::LogSegment Description() {
  v1::LogSegment description;
  description.set_num_shards(1);
  description.set_model_hash(5);
  description.set_incarnation(kShardIncarnation);
  description.set_coordinator(3);
  description.set_install(1);
  description.set_format(kLogFormat.major);
  description.set_format_minor(kLogFormat.minor);
  return description;
}

template <typename T>
std::string Bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string Record(const std::string& head, const std::string& gradient, uint64_t synced) {
  const std::string checked = Bytes(static_cast<uint32_t>(head.size())) + Bytes(Crc32c(gradient)) +
                              Bytes(static_cast<uint64_t>(gradient.size())) + Bytes(synced);
  return "WLOG" + Bytes(Crc32c(checked + head)) + checked + head + gradient;
}

std::vector<std::string> SegmentsOf(absl::string_view input) {
  if (input.empty() || input[0] != 'r') return {std::string(input)};
  std::vector<std::string> segments(1);
  const std::vector<std::string> messages = SplitMessages(input.substr(1));
  for (size_t i = 0; i + 3 <= messages.size() && segments.size() < 8; i += 3) {
    uint64_t synced = 0;
    if (!absl::SimpleAtoi(messages[i + 2], &synced)) synced = 0;
    if (messages[i].empty()) {
      segments.emplace_back();
    } else {
      segments.back() += Record(messages[i], messages[i + 1], synced);
    }
  }
  return segments;
}

}  // namespace

bool ReadInput(absl::string_view input) {
  FaultyFileSystem files(1);
  FuzzCheck(files.MakeFolder(kFolder).ok(), "a disk in memory takes a folder");
  uint64_t number = 0;
  for (const std::string& segment : SegmentsOf(input)) {
    FuzzCheck(files.WriteFile(absl::StrFormat("%s/%08d.log", kFolder, ++number), segment).ok(), "and a file");
  }
  uint64_t records = 0;
  const absl::StatusOr<LogEnd> end = ReadPushLog(
      files, kFolder, Description(), 1, [&](const v1::LoggedPush& push, absl::Span<const float> gradient) {
        ++records;
        volatile float last = gradient.empty() ? 0 : gradient.back();
        (void)last;
        return absl::OkStatus();
      });
  if (!end.ok()) return false;
  FuzzCheck(end->next_segment >= number && end->next_segment <= number + 1, "the log goes on at its end");
  return records > 0;
}

std::vector<std::string> Seeds() {
  const std::string first = Description().SerializeAsString();
  v1::LoggedPush push;
  push.mutable_push()->set_elements(2);
  push.set_outcome(v1::OK);
  push.set_version(1);
  const std::string head = push.SerializeAsString(), gradient = "\1\2\3\4\5\6\7\x08";
  v1::LogSegment next = Description();
  next.set_install(2);
  next.set_previous_bytes(Record(first, "", 0).size() + Record(head, gradient, 0).size());
  const std::string one = Record(first, "", 0) + Record(head, gradient, 0);
  return {
      one + one.substr(0, 20),
      "r" + JoinMessages({first, "", "0", head, gradient, "0", head, gradient, "40"}),
      "r" + JoinMessages({first, "", "0", head, gradient, "0", "", "", "", next.SerializeAsString(), "", "0",
                          head, gradient, "0"}),
  };
}

std::vector<std::string> Words() { return {"WLOG", "18446744073709551615"}; }

}  // namespace weir

#include "ps_server/process/event_file.h"

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/checksums.h"
#include "proto/tensorboard.pb.h"
#include "tests/common/faulty_file_system.h"

namespace weir {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

constexpr char kFolder[] = "/runs/1";

template <typename Int>
Int Read(const std::string& bytes, size_t at) {
  Int value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// TFRecord's checksum of a piece, as TensorFlow's masked_crc32c.
uint32_t Masked(absl::string_view data) {
  const uint32_t crc = Crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

// The whole events of all files, in the order of the files' names. Checks every checksum.
std::vector<tensorboard::Event> Events(FaultyFileSystem& disk) {
  std::vector<tensorboard::Event> events;
  const std::vector<std::string> names = disk.List(kFolder).value();
  for (const std::string& name : names) {
    CHECK(name.rfind("events.out.tfevents.", 0) == 0);
    const std::string bytes = disk.Contents(absl::StrCat(kFolder, "/", name));
    for (size_t at = 0; at + 12 <= bytes.size();) {
      const auto length = Read<uint64_t>(bytes, at);
      CHECK(Read<uint32_t>(bytes, at + 8) == Masked(bytes.substr(at, 8)));
      if (at + 16 + length > bytes.size()) break;
      const std::string data = bytes.substr(at + 12, length);
      CHECK(Read<uint32_t>(bytes, at + 12 + length) == Masked(data));
      REQUIRE(events.emplace_back().ParseFromString(data));
      at += 16 + length;
    }
  }
  return events;
}

std::unique_ptr<EventFile> Make(FaultyFileSystem& disk) {
  auto file = EventFile::Create(&disk, kFolder, kNow);
  INFO(file.status().ToString());
  REQUIRE(file.ok());
  return *std::move(file);
}

std::map<std::string, float> ValuesOf(const tensorboard::Event& event) {
  std::map<std::string, float> values;
  for (const auto& value : event.summary().value()) {
    // A reader takes a value that is not written for none at all, also 0.
    CHECK(value.has_simple_value());
    values[value.tag()] = value.simple_value();
  }
  return values;
}

v1::ClusterStatus Status(uint64_t step) {
  v1::ClusterStatus status;
  status.set_step(step);
  status.set_examples(step * 64);
  status.set_train_loss(1.0 / static_cast<double>(step + 1));
  return status;
}

TEST_CASE("what is known of a job is in its file, once for each change") {
  FaultyFileSystem disk(1);
  const auto file = Make(disk);
  v1::ClusterStatus status = Status(3);
  file->Add(status, kNow + absl::Seconds(1));
  file->Add(status, kNow + absl::Seconds(2));  // nothing was done
  status = Status(7);
  status.clear_train_loss();
  status.mutable_version_staleness()->set_count(5);
  status.mutable_version_staleness()->set_p99(4);
  status.add_metrics()->set_name("val/f1");
  status.mutable_metrics(0)->set_last(0.5);
  file->Add(status, kNow + absl::Seconds(3));

  const auto events = Events(disk);
  REQUIRE(events.size() == 3);
  CHECK(events[0].file_version() == "brain.Event:2");
  CHECK(events[1].step() == 3);
  CHECK(events[1].wall_time() == 1'800'000'001.0);
  CHECK(ValuesOf(events[1]).at("train/loss") == 0.25f);
  CHECK(ValuesOf(events[1]).count("staleness/p99") == 0);
  CHECK(events[2].step() == 7);
  CHECK(ValuesOf(events[2]).count("train/loss") == 0);
  CHECK(ValuesOf(events[2]).at("staleness/p99") == 4);
  CHECK(ValuesOf(events[2]).at("log/val/f1") == 0.5f);
}

TEST_CASE("an epoch's evaluation stands at its step, once; without epochs the last one does") {
  FaultyFileSystem disk(1);
  const auto file = Make(disk);
  v1::ClusterStatus status = Status(9);
  v1::EpochEvaluation& epoch = *status.add_evaluations();
  epoch.set_epoch(1);
  epoch.set_step(8);
  epoch.set_test_loss(0.5);
  epoch.set_test_accuracy(0.75);
  file->Add(status, kNow);
  status.set_examples(1000);
  file->Add(status, kNow);
  auto events = Events(disk);
  REQUIRE(events.size() == 4);
  CHECK(events[1].step() == 8);
  CHECK(ValuesOf(events[1]) ==
        std::map<std::string, float>{{"evaluation/loss", 0.5f}, {"evaluation/accuracy", 0.75f}});

  FaultyFileSystem other(1);
  const auto last = Make(other);
  status = Status(9);
  status.mutable_evaluation()->set_final(true);
  status.mutable_evaluation()->set_examples(10);
  status.mutable_evaluation()->set_test_loss(2);
  status.mutable_evaluation()->set_test_accuracy(-1);
  last->Add(status, kNow);
  last->Add(status, kNow);
  events = Events(other);
  REQUIRE(events.size() == 3);
  CHECK(ValuesOf(events[2]) == std::map<std::string, float>{{"evaluation/loss", 2.0f}});
}

TEST_CASE("a disk that takes nothing is tried again after a minute, with a file of its own") {
  FaultyFileSystem disk(1);
  const auto file = Make(disk);
  disk.SetFault([](const auto&) { return absl::ResourceExhaustedError("full"); });
  file->Add(Status(1), kNow);
  disk.SetFault(nullptr);
  file->Add(Status(2), kNow + absl::Seconds(59));
  CHECK(Events(disk).size() == 1);
  file->Add(Status(3), kNow + absl::Seconds(61));
  const auto events = Events(disk);
  REQUIRE(events.size() == 3);
  CHECK(events[1].file_version() == "brain.Event:2");
  CHECK(events[2].step() == 3);
}

TEST_CASE("a folder that cannot be is refused with its name") {
  CHECK(EventFile::Create(&FileSystem::Posix(), "s3://bucket/x", kNow).status().message() ==
        "s3://bucket/x is in object storage, where no file can grow: name a folder on a disk");
  const auto refused = EventFile::Create(&FileSystem::Posix(), "/proc/nowhere/x", kNow).status();
  CHECK_THAT(std::string(refused.message()), Catch::Contains("/proc/nowhere/x"));
}

}  // namespace
}  // namespace weir

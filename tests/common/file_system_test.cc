#include "common/system/file_system.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "catch2/catch.hpp"
#include "tests/common/faulty_file_system.h"
#include "tests/skip.h"

namespace weir {
namespace {

using Kind = FaultyFileSystem::Kind;
using Operation = FaultyFileSystem::Operation;

std::string NewFolder() {
  std::string name = JoinPath(getenv("TEST_TMPDIR") != nullptr ? getenv("TEST_TMPDIR") : "/tmp", "fsXXXXXX");
  REQUIRE(mkdtemp(&name[0]) != nullptr);
  return name;
}

absl::Status Write(FileSystem& fs, const std::string& path, const std::string& content, bool sync = true) {
  auto file = fs.Create(path);
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->Append(content); !status.ok()) return status;
  if (sync) {
    if (absl::Status status = (*file)->Sync(); !status.ok()) return status;
  }
  return (*file)->Close();
}

// The contract of both file systems.
void CheckContract(FileSystem& fs, const std::string& root) {
  const std::string a = JoinPath(root, "a"), b = JoinPath(root, "b"), folder = JoinPath(root, "folder");
  REQUIRE(Write(fs, a, "hello").ok());
  CHECK(*fs.ReadFile(a, 5) == "hello");
  CHECK(fs.ReadFile(a, 4).status().code() == absl::StatusCode::kDataLoss);

  const auto file = fs.Open(a);
  REQUIRE(file.ok());
  CHECK((*file)->size() == 5);
  char part[3];
  REQUIRE((*file)->Read(2, part).ok());
  CHECK(std::string(part, 3) == "llo");
  const absl::Status beyond = (*file)->Read(3, part);
  CHECK(beyond.code() == absl::StatusCode::kDataLoss);
  CHECK(std::string(beyond.message()).find(a) != std::string::npos);

  REQUIRE(Write(fs, b, "other").ok());
  const absl::Status taken = fs.RenameNew(a, b);
  CHECK(taken.code() == absl::StatusCode::kAlreadyExists);
  CHECK(std::string(taken.message()).find(b) != std::string::npos);
  CHECK(*fs.ReadFile(b, 99) == "other");
  REQUIRE(fs.Rename(a, b).ok());
  CHECK(*fs.ReadFile(b, 99) == "hello");
  REQUIRE(fs.RenameNew(b, a).ok());
  CHECK(*fs.List(root) == std::vector<std::string>{"a"});

  REQUIRE(Write(fs, a, "").ok());  // another file
  CHECK(fs.ReadFile(a, 99)->empty());

  REQUIRE(fs.MakeFolder(folder).ok());
  CHECK(fs.MakeFolder(folder).ok());
  CHECK(fs.MakeFolder(JoinPath(root, "x/y")).code() == absl::StatusCode::kNotFound);
  CHECK(fs.MakeFolder(a).code() == absl::StatusCode::kAlreadyExists);
  REQUIRE(Write(fs, JoinPath(folder, "c"), "c").ok());
  CHECK(!fs.RemoveFolder(folder).ok());
  CHECK(!fs.Open(folder).ok());
  REQUIRE(fs.Remove(JoinPath(folder, "c")).ok());
  CHECK(fs.SyncFolder(folder).ok());
  CHECK(fs.RemoveFolder(folder).ok());

  for (const absl::Status& status :
       {fs.Open(b).status(), fs.Remove(b), fs.Rename(b, a), fs.RenameNew(b, a), fs.List(folder).status(),
        fs.SyncFolder(folder), fs.Create(JoinPath(folder, "c")).status()}) {
    INFO(status);
    CHECK(status.code() == absl::StatusCode::kNotFound);
    CHECK(std::string(status.message()).find(root) != std::string::npos);
    CHECK(std::string(status.message()).find("No such file") != std::string::npos);
  }
}

TEST_CASE("The machine's files") { CheckContract(FileSystem::Posix(), NewFolder()); }

TEST_CASE("The faulty disk, while it works") {
  FaultyFileSystem disk(1);
  REQUIRE(disk.MakeFolder("/root").ok());
  CheckContract(disk, "/root");
}

TEST_CASE("A full disk is said to be full, with the path") {
  // A small disk of its own, which goes with this process.
  const std::string folder = NewFolder();
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("none", folder.c_str(), "tmpfs", 0, "size=4096") != 0) {
    SaySkipped(std::string("this process may not mount a small disk: ") + strerror(errno));
    return;
  }
  const std::string path = JoinPath(folder, "file");
  const absl::Status status = FileSystem::Posix().WriteFile(path, std::string(10'000, 'x'));
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(status.message()).find(path + ": No space left") != std::string::npos);
  REQUIRE(umount2(folder.c_str(), MNT_DETACH) == 0);
}

TEST_CASE("A device or a named pipe is not replaced by a file") {
  const std::string pipe = JoinPath(NewFolder(), "pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& path : {pipe, std::string("/dev/null")}) {
    const absl::Status status = FileSystem::Posix().Create(path).status();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(access(path.c_str(), F_OK) == 0);
  }
}

// The contract of both file systems for a held folder.
void CheckHolding(FileSystem& fs, const std::string& root) {
  const std::string folder = JoinPath(root, "held"), file = JoinPath(folder, "file");
  REQUIRE(fs.MakeFolder(folder).ok());
  auto held = fs.OpenFolder(folder);
  REQUIRE(held.ok());
  REQUIRE(Write(**held, file, "old").ok());
  CHECK(*fs.ReadFile(file, 9) == "old");
  REQUIRE((*held)->Rename(file, file + "2").ok());
  CHECK(*(*held)->List(folder) == std::vector<std::string>{"file2"});
  CHECK((*held)->SyncFolder(folder).ok());
  // Other paths work as usual.
  CHECK((*held)->MakeFolder(folder + "er").ok());
  CHECK((*held)->RemoveFolder(folder + "er").ok());

  // Another folder takes its place.
  REQUIRE(fs.Remove(file + "2").ok());
  REQUIRE(fs.RemoveFolder(folder).ok());
  REQUIRE(fs.MakeFolder(folder).ok());
  REQUIRE(Write(fs, file, "new").ok());
  CHECK((*held)->List(folder)->empty());
  CHECK((*held)->Create(file).status().code() == absl::StatusCode::kNotFound);
  CHECK((*held)->MakeFolder(file).code() == absl::StatusCode::kNotFound);
  CHECK((*held)->Open(file).status().code() == absl::StatusCode::kNotFound);
  CHECK((*held)->Remove(file).code() == absl::StatusCode::kNotFound);
  CHECK((*held)->RenameNew(file, file + "2").code() == absl::StatusCode::kNotFound);
  CHECK(*fs.ReadFile(file, 9) == "new");
  CHECK(fs.OpenFolder(JoinPath(root, "none")).status().code() == absl::StatusCode::kNotFound);
}

TEST_CASE("A folder that is held stays the same one") {
  const std::string root = NewFolder();
  CheckHolding(FileSystem::Posix(), root);
  const std::string other = NewFolder();
  CheckHolding(*FileSystem::Beneath(other), other);
  FaultyFileSystem disk(1);
  REQUIRE(disk.MakeFolder("/root").ok());
  CheckHolding(disk, "/root");
}

TEST_CASE("Beneath a folder no link is followed, though one may lead to the folder itself") {
  const std::string root = NewFolder(), outside = NewFolder(), way = JoinPath(NewFolder(), "way");
  REQUIRE(symlink(root.c_str(), way.c_str()) == 0);
  const auto fs = FileSystem::Beneath(way);
  CheckContract(*fs, way);
  REQUIRE(Write(*fs, JoinPath(outside, "file"), "x").ok());
  REQUIRE(symlink(outside.c_str(), JoinPath(root, "link").c_str()) == 0);
  REQUIRE(symlink(JoinPath(outside, "file").c_str(), JoinPath(root, "to_file").c_str()) == 0);
  const std::string link = JoinPath(way, "link"), there = JoinPath(link, "file");
  for (const absl::Status& status :
       {fs->Open(there).status(), fs->Create(there).status(), fs->Remove(there),
        fs->Rename(there, there + "2"), fs->MakeFolder(link), fs->List(link).status(), fs->SyncFolder(link),
        fs->OpenFolder(link).status(), fs->Open(JoinPath(way, "to_file")).status()}) {
    INFO(status);
    CHECK(status.code() == absl::StatusCode::kPermissionDenied);
    CHECK(std::string(status.message()).find("symbolic link") != std::string::npos);
  }
  CHECK(*FileSystem::Posix().ReadFile(JoinPath(outside, "file"), 9) == "x");
  // Elsewhere links work as usual; and a name with the same beginning is elsewhere.
  CHECK(FileSystem::Posix().Open(there).ok());
  REQUIRE(mkdir((way + "2").c_str(), 0700) == 0);
  CHECK(Write(*fs, way + "2/x", "").ok());
  CHECK(FileSystem::Posix().Open(way + "2/x").ok());
}

TEST_CASE("A named pipe is no file, and is not waited for") {
  const std::string pipe = JoinPath(NewFolder(), "pipe");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(FileSystem::Posix().Open(pipe).status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("Paths") {
  CHECK(JoinPath("a", "b") == "a/b");
  CHECK(JoinPath("/", "b") == "/b");
  CHECK(ParentFolder("a/b") == "a");
  CHECK(ParentFolder("a/b/") == "a");
  CHECK(ParentFolder("/b") == "/");
  CHECK(ParentFolder("b") == ".");
}

TEST_CASE("Faulty disk: what was synced outlives a crash, and nothing else is sure to") {
  int with_name = 0, whole = 0, torn = 0, zeros = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    FaultyFileSystem disk(seed);
    REQUIRE(disk.MakeFolder("/d").ok());
    REQUIRE(disk.SyncFolder("/").ok());
    REQUIRE(Write(disk, "/d/safe", "safe").ok());
    REQUIRE(disk.SyncFolder("/d").ok());
    const auto open = disk.Create("/d/torn");
    REQUIRE((*open)->Append("synced").ok());
    REQUIRE((*open)->Sync().ok());
    REQUIRE((*open)->Append("tail").ok());
    REQUIRE(disk.SyncFolder("/d").ok());
    REQUIRE(Write(disk, "/d/unnamed", "x").ok());

    disk.Crash();
    CHECK(!(*open)->Append("more").ok());
    CHECK(*disk.ReadFile("/d/safe", 99) == "safe");
    if (disk.Open("/d/unnamed").ok()) ++with_name;
    const std::string content = *disk.ReadFile("/d/torn", 99);
    CHECK(content.substr(0, 6) == "synced");
    const std::string tail = content.substr(6);
    if (tail == "tail") ++whole;
    if (tail.size() < 4) ++torn;
    if (!tail.empty() && tail.back() == '\0') ++zeros;
  }
  CHECK(with_name > 50);
  CHECK(with_name < 150);
  CHECK(whole > 10);
  CHECK(torn > 10);
  CHECK(zeros > 5);
}

TEST_CASE("Faulty disk: a rename and a removal last once the folder is synced") {
  int renamed = 0, removed = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    FaultyFileSystem disk(seed);
    REQUIRE(Write(disk, "/a", "a").ok());
    REQUIRE(Write(disk, "/b", "b").ok());
    REQUIRE(Write(disk, "/c", "c").ok());
    REQUIRE(disk.SyncFolder("/").ok());
    REQUIRE(disk.Rename("/a", "/b").ok());
    REQUIRE(disk.Remove("/c").ok());
    const bool synced = seed % 2 == 0;
    if (synced) REQUIRE(disk.SyncFolder("/").ok());
    disk.Crash();
    const bool moved = *disk.ReadFile("/b", 9) == "a";
    CHECK(moved != disk.Open("/a").ok());  // all of it or nothing
    if (synced) CHECK((moved && !disk.Open("/c").ok()));
    if (!synced && moved) ++renamed;
    if (!synced && !disk.Open("/c").ok()) ++removed;
  }
  CHECK((renamed > 5 && renamed < 45));
  CHECK((removed > 5 && removed < 45));
}

TEST_CASE("Faulty disk: a sync that failed has lost the data for good") {
  FaultyFileSystem disk(3);
  disk.SetFault([](const Operation& op) {
    return op.kind == Kind::kSync && op.number < 4 ? absl::UnknownError("I/O error") : absl::OkStatus();
  });
  const auto file = disk.Create("/a");
  REQUIRE((*file)->Append("lost").ok());
  CHECK(!(*file)->Sync().ok());
  CHECK(disk.Contents("/a") == "lost");
  REQUIRE(disk.SyncFolder("/").ok());
  REQUIRE((*file)->Sync().ok());
  disk.Crash();
  CHECK(disk.Contents("/a") == std::string(4, '\0'));
}

TEST_CASE("Faulty disk: fills up, with a short write, and has room again after a removal") {
  FaultyFileSystem disk(4);
  REQUIRE(Write(disk, "/old", "12345").ok());
  disk.SetCapacity(8);
  const absl::Status full = Write(disk, "/new", "12345");
  CHECK(full.code() == absl::StatusCode::kResourceExhausted);
  CHECK(disk.Contents("/new") == "123");
  CHECK(disk.bytes_used() == 8);
  REQUIRE(disk.Remove("/old").ok());
  CHECK(Write(disk, "/new", "12345").ok());
}

TEST_CASE("Faulty disk: the same seed gives the same end") {
  const auto run = [](uint64_t seed) {
    FaultyFileSystem disk(seed);
    for (int i = 0; i < 20; ++i) {
      (void)Write(disk, "/f" + std::to_string(i), std::string(50, 'x'), i % 2 == 0);
    }
    disk.Crash();
    std::string end;
    const std::vector<std::string> names = *disk.List("/");
    for (const std::string& name : names) {
      end += name + std::to_string(disk.Contents("/" + name).size()) + " ";
    }
    return end;
  };
  CHECK(run(1) == run(1));
  CHECK(run(1) != run(2));
}

}  // namespace
}  // namespace weir

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/system/file_system.h"

namespace weir {

// Forwards everything to another file system; a subclass changes a part. The other one outlives this object.
class ForwardingFileSystem : public FileSystem {
 public:
  explicit ForwardingFileSystem(FileSystem* inner) : inner_(inner) {}

  absl::StatusOr<std::unique_ptr<FileSystem>> OpenFolder(const std::string& path) override {
    return inner_->OpenFolder(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path, Existing existing) override {
    return inner_->Create(path, existing);
  }
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override {
    return inner_->Open(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return inner_->Rename(from, to);
  }
  absl::Status RenameNew(const std::string& from, const std::string& to) override {
    return inner_->RenameNew(from, to);
  }
  absl::Status Remove(const std::string& path) override { return inner_->Remove(path); }
  absl::Status MakeFolder(const std::string& path) override { return inner_->MakeFolder(path); }
  absl::Status RemoveFolder(const std::string& path) override { return inner_->RemoveFolder(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& folder) override {
    return inner_->List(folder);
  }
  absl::Status SyncFolder(const std::string& folder) override { return inner_->SyncFolder(folder); }

 protected:
  FileSystem* const inner_;
};

}  // namespace weir

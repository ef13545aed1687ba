#pragma once

#include <memory>

#include "common/system/file_system.h"

namespace weir {

class ObjectStore;

// Takes paths in object storage (written_text.h) to S3, as the environment describes it (s3_settings.h, from
// the first such path on), and all other paths to `disk`. `disk` outlives the result.
//
// In object storage
// - a file is an object. It is made by Stage() alone, is there as soon as it is published, and is durable
//   then. Create() and Rename() are refused.
// - a folder is a prefix: it exists if there is something in it. It cannot be held.
// - an object without any content is a reservation (FileSystem::Reserve).
// - RemoveFolder() also frees what uploads that were begun in the folder have left.
std::unique_ptr<FileSystem> WithObjectStorage(FileSystem& disk);
// WithObjectStorage() over the machine's own disk. Lives for ever.
FileSystem& AnyStorage();

// Object storage alone.
std::unique_ptr<FileSystem> NewObjectFileSystem(std::unique_ptr<ObjectStore> store);

}  // namespace weir

#pragma once

#include <map>
#include <memory>
#include <string>

#include "common/object_store/object_store.h"
#include "common/system/subprocess.h"

namespace weir {

// A real S3 server (moto) with an empty bucket, which injects faults: s3_server.py says which there are. Ends
// with this object. A failure in here fails the Catch2 test case.
class S3Server {
 public:
  static constexpr char kBucket[] = "weir-test", kIdentity[] = "the-job";

  S3Server();

  S3Settings settings() const;
  // The settings with temporary keys for the token that this file holds. The token that is accepted is
  // kIdentity.
  S3Settings settings(const std::string& token_file) const;
  // As settings(), for processes.
  std::map<std::string, std::string> environment() const;
  // For a store whose waits suit a test.
  ObjectStore::Options options() const;

  // "next=PUT:lost", "seed=7&rate=0.2"; "": no faults from now on. A request whose answer is late takes
  // effect first.
  void SetFaults(const std::string& faults);
  // How often each fault was injected since then, as JSON.
  std::string Counts();

 private:
  std::string Control(const std::string& method, const std::string& path);

  std::unique_ptr<Subprocess> process_;
  std::string endpoint_;
};

}  // namespace weir

// Measures how fast a checkpoint goes into object storage, beside a bare loop of libcurl that puts the same
// bytes.
//
//   ./dev bench s3 [--megabytes=N] [--rounds=N] [--json=FILE]
//
// Weir writes a shard's file as a server does (WriteShardFile): checksums of each tensor, pieces of 8 MiB
// with SHA-256 and CRC-32C, an upload in parts. The loop puts pieces of the same size, one after another over
// one connection, straight from memory, with libcurl's signatures, which hold the SHA-256 of the data. A
// second loop leaves the SHA-256 out (UNSIGNED-PAYLOAD). Weir and the loops take turns, and send to one
// process that reads and forgets (http_sink.h). The ratio is the median of the rounds' ratios.
#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/checkpoint_writer.h"
#include "common/object_store/object_file_system.h"
#include "common/object_store/object_store.h"
#include "common/system/process.h"
#include "nlohmann/json.hpp"
#include "tests/bench/http_sink.h"

namespace weir {
namespace {

constexpr char kBucket[] = "bench", kDirectory[] = "s3://bench/runs", kFolder[] = "step-00000001.1";
constexpr uint64_t kStep = 1;
constexpr size_t kPiece = 8 << 20;
constexpr double kTarget = 0.8;

size_t Ignore(char*, size_t, size_t bytes, void*) { return bytes; }

// Puts `data` piece by piece. False: a put failed.
bool PutBare(CURL* curl, const std::string& url, absl::string_view data, bool data_is_signed) {
  curl_slist* headers = curl_slist_append(nullptr, "Content-Type: application/octet-stream");
  if (!data_is_signed) headers = curl_slist_append(headers, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
  bool ok = true;
  for (int part = 1; ok && !data.empty(); ++part) {
    const size_t n = std::min(kPiece, data.size());
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_URL, absl::StrCat(url, "?partNumber=", part, "&uploadId=1").c_str());
    curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, "aws:amz:us-east-1:s3");
    curl_easy_setopt(curl, CURLOPT_USERPWD, "bench:secret");
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(n));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, data.data());
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, "PUT");
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Ignore);
    ok = curl_easy_perform(curl) == CURLE_OK;
    data.remove_prefix(n);
  }
  curl_slist_free_all(headers);
  return ok;
}

double Seconds(const std::function<bool()>& work, bool* ok) {
  const auto begun = std::chrono::steady_clock::now();
  *ok = work() && *ok;
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

int Run(uint64_t megabytes, int rounds, const std::string& json) {
  const absl::StatusOr<HttpSink> sink = HttpSink::Start(kFolder);
  if (!sink.ok()) {
    std::fprintf(stderr, "s3_bench: %s\n", std::string(sink.status().message()).c_str());
    return 1;
  }
  const std::string endpoint = absl::StrCat("http://127.0.0.1:", sink->port());
  ObjectStore::Options options;
  options.settings = {endpoint, "us-east-1", {"bench", "secret", ""}, {}};
  const auto files = NewObjectFileSystem(std::make_unique<ObjectStore>(std::move(options)));

  const std::vector<float> weights(megabytes * 1'000'000 / sizeof(float), 0.5f);
  ShardSnapshot snapshot;
  snapshot.model = {
      {{"w", {static_cast<int64_t>(weights.size())}, TensorKind::kParameter, Initializer::Zeros()}}};
  snapshot.state.set_num_shards(1);
  snapshot.state.mutable_version()->set_incarnation(7);
  snapshot.weights = weights;
  const absl::string_view bytes(reinterpret_cast<const char*>(weights.data()),
                                weights.size() * sizeof(float));
  const std::string url = absl::StrCat(endpoint, "/", kBucket, "/runs/", kFolder, "/bare");
  CURL* const curl = curl_easy_init();

  const auto of_weir = [&] {
    const absl::Status written = WriteShardFile(*files, kDirectory, kStep, snapshot).status();
    if (!written.ok()) std::fprintf(stderr, "s3_bench: %s\n", std::string(written.message()).c_str());
    return written.ok();
  };
  bool ok = true;
  std::vector<double> weir, bare, bare_unsigned, ratios, ratios_unsigned;
  for (int round = 0; round <= rounds; ++round) {
    const double a = Seconds(of_weir, &ok);
    const double b = Seconds([&] { return PutBare(curl, url, bytes, true); }, &ok);
    const double c = Seconds([&] { return PutBare(curl, url, bytes, false); }, &ok);
    if (round == 0) continue;  // connections and memory are made
    weir.push_back(a);
    bare.push_back(b);
    bare_unsigned.push_back(c);
    ratios.push_back(b / a);
    ratios_unsigned.push_back(c / a);
  }
  curl_easy_cleanup(curl);
  if (!ok) return 1;
  const double size = static_cast<double>(megabytes) * 1e-3;  // GB
  const nlohmann::json result = {{"megabytes", megabytes},
                                 {"rounds", rounds},
                                 {"weir_gb_per_s", size / Median(weir)},
                                 {"libcurl_gb_per_s", size / Median(bare)},
                                 {"libcurl_unsigned_gb_per_s", size / Median(bare_unsigned)},
                                 {"ratio", Median(ratios)},
                                 {"ratio_unsigned", Median(ratios_unsigned)}};
  const auto value = [&](const char* name) { return result[name].get<double>(); };
  std::printf("%llu MB, medians of %d rounds\n", static_cast<unsigned long long>(megabytes), rounds);
  std::printf("  weir                        %.2f GB/s\n", value("weir_gb_per_s"));
  std::printf("  libcurl                     %.2f GB/s  ratio %.2f (target %.1f)\n",
              value("libcurl_gb_per_s"), value("ratio"), kTarget);
  std::printf("  libcurl, data not signed    %.2f GB/s  ratio %.2f\n", value("libcurl_unsigned_gb_per_s"),
              value("ratio_unsigned"));
  if (!json.empty()) {
    std::ofstream file(json);
    file << result.dump(2) << "\n";
    if (!file) {
      std::fprintf(stderr, "s3_bench: --json=%s could not be written\n", json.c_str());
      return 1;
    }
  }
  return value("ratio") >= kTarget ? 0 : 1;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  weir::KeepFreedMemory();
  uint64_t megabytes = 100;
  int rounds = 15;
  std::string json;
  CLI::App app("How fast a checkpoint goes into object storage, beside a bare loop of libcurl.", "s3_bench");
  app.add_option("--megabytes", megabytes, "The size of the checkpoint")
      ->check(CLI::Range(1, 4000))
      ->capture_default_str();
  app.add_option("--rounds", rounds, "How often both write it, in turns")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--json", json, "Where to write the result, too");
  CLI11_PARSE(app, argc, argv);
  return weir::Run(megabytes, rounds, json);
}

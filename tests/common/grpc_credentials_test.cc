// The files of TLS as a process reads them, and connections between two ends in this process.
#include "common/rpc/grpc_credentials.h"

#include <grpcpp/generic/async_generic_service.h>
#include <openssl/ssl.h>
#include <openssl/ui.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>
#include <typeinfo>

#include "common/rpc/openssl.h"
#include "common/rpc/tls.h"
#include "tests/common/test_certificates.h"

namespace weir {
namespace {

using Catch::Contains;

const Identity kServer{"j", Role::kServer, 0}, kWorker{"j", Role::kWorker, 1};

class Folder {
 public:
  Folder() {
    const char* parent = std::getenv("TEST_TMPDIR");
    path_ = std::string(parent == nullptr ? "/tmp" : parent) + "/tls-XXXXXX";
    REQUIRE(mkdtemp(path_.data()) != nullptr);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string Refusal(const TlsFiles& files) {
  const auto tls = Tls::ReadIfGiven(files);
  CHECK(tls.status().code() == absl::StatusCode::kFailedPrecondition);
  return std::string(tls.status().message());
}

// A server without methods. It has TLS as `tls` says, and listens on a free port.
class Server {
 public:
  explicit Server(std::shared_ptr<const Tls> tls) : credentials_(std::move(tls)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials_.OfServer("127.0.0.1:0"), &port);
    builder.RegisterAsyncGenericService(&service_);
    queue_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
    thread_ = std::thread([this] {
      void* tag = nullptr;
      bool ok = false;
      while (queue_->Next(&tag, &ok)) {
      }
    });
  }
  ~Server() {
    server_->Shutdown(std::chrono::system_clock::now());
    queue_->Shutdown();
    thread_.join();
  }
  const std::string& address() const { return address_; }

 private:
  const JobCredentials credentials_;
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::thread thread_;  // handshakes happen where somebody waits for events
  std::string address_;
};

// Whether a new connection to ps:0 succeeds.
bool Connects(const std::string& address, const JobCredentials& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel = grpc::CreateCustomChannel(address, credentials.ToServer(0, address), arguments);
  grpc_connectivity_state state = channel->GetState(true);
  const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(20);
  while (state != GRPC_CHANNEL_READY && state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
    REQUIRE(channel->WaitForStateChange(state, deadline));
    state = channel->GetState(true);
  }
  return state == GRPC_CHANNEL_READY;
}

// The files are looked at once a second.
bool Becomes(bool wanted, const std::function<bool()>& check) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (check() != wanted) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

std::string Cause(const std::string& address, const Tls* tls) {
  return std::string(ProbeTls(address, 0, tls).message());
}

TEST_CASE("bad files of TLS are refused with the file and the reason") {
  const Folder folder;
  const TestCertificates ca(folder.path(), "ca"), other(folder.path(), "other");
  const TlsFiles good = ca.Issue(kWorker, "good");
  CHECK(Tls::ReadIfGiven(good).value()->identity() == kWorker);
  CHECK(Tls::ReadIfGiven({}).value() == nullptr);
  CHECK_THAT(Refusal({good.ca, good.certificate, ""}), Contains("--tls_key is missing"));
  CHECK_THAT(Refusal({good.ca, folder.path() + "/none", good.key}), Contains("none: it cannot be read"));
  CHECK_THAT(Refusal({good.key, good.certificate, good.key}), Contains("holds no certificate"));
  CHECK_THAT(Refusal({good.ca, good.certificate, good.certificate}), Contains("holds no private key"));
  CHECK_THAT(Refusal({good.ca, good.certificate, ca.Issue(kWorker, "second").key}),
             Contains("it is not the key of " + good.certificate));
  CHECK_THAT(Refusal({other.ca_path(), good.certificate, good.key}),
             Contains("not accepted with the CAs of " + other.ca_path()));
  const absl::Time now = absl::Now();
  CHECK_THAT(Refusal(ca.Issue(kWorker, "old", {now - absl::Hours(2), now - absl::Hours(1)})),
             Contains("certificate has expired (valid from"));
  CHECK_THAT(Refusal(ca.Issue(kWorker, "early", {now + absl::Hours(1), now + absl::Hours(2)})),
             Contains("certificate is not yet valid"));
  REQUIRE(chmod(good.key.c_str(), 0644) == 0);
  CHECK_THAT(Refusal(good), Contains("its mode is 0644"));
}

// Counts what OpenSSL asks the user, and answers nothing.
class Questions {
 public:
  Questions() : method_(UI_create_method("test")) {
    asked_ = 0;
    UI_method_set_opener(method_, [](UI*) {
      ++asked_;
      return 0;
    });
    UI_set_default_method(method_);
  }
  ~Questions() {
    UI_set_default_method(UI_OpenSSL());
    UI_destroy_method(method_);
  }
  static int asked() { return asked_; }

 private:
  static inline std::atomic<int> asked_{0};
  UI_METHOD* const method_;
};

TEST_CASE("nobody is asked for the pass phrase of a file of TLS") {
  const Folder folder;
  const TestCertificates ca(folder.path(), "ca");
  const TlsFiles good = ca.Issue(kServer, "good"), bad = ca.Issue(kServer, "bad");
  const auto tls = Tls::ReadIfGiven(bad).value();
  for (const std::string& file : {bad.certificate, bad.key}) {
    std::string text;
    std::getline(std::ifstream(file), text, '\0');
    text.insert(text.find('\n') + 1,
                "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF\n\n");
    std::ofstream(file) << text;
  }
  const Questions questions;
  CHECK_THAT(Refusal({good.ca, bad.certificate, good.key}), Contains("or a damaged one"));
  CHECK_THAT(Refusal({good.ca, good.certificate, bad.key}), Contains("without a pass phrase"));
  const Server server(Tls::ReadIfGiven(good).value());
  CHECK(ProbeTls(server.address(), 0, tls.get()).ok());
  CHECK(questions.asked() == 0);
}

TEST_CASE("a process notices that its certificate is somebody else's, and when it ends") {
  const Folder folder;
  const TestCertificates ca(folder.path(), "ca");
  const auto tls = ca.IssueTls(kWorker);
  CHECK(tls->CheckIs(Role::kWorker, 1).ok());
  CHECK_THAT(std::string(tls->CheckIs(Role::kWorker, 2).message()),
             Contains("is that of spiffe://j/worker/1; this process needs that of spiffe://j/worker/2"));
  CHECK_FALSE(tls->CheckIs(Role::kServer, 1).ok());
  const absl::Time end = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now()) + 7200);
  ca.Issue(kWorker, kWorker.ToDns(), {absl::Now() - absl::Hours(1), end});
  CHECK(tls->expiry() == end);  // of the file as it is now
  std::ifstream file(tls->files().certificate);
  const std::string pem{std::istreambuf_iterator<char>(file), {}};
  CHECK(EndOfCertificate(pem) == end);
  CHECK(EndOfCertificate("none") == absl::InfinitePast());
}

TEST_CASE("both ends must prove who they are") {
  const Folder folder;
  const TestCertificates ca(folder.path(), "ca"), other(folder.path(), "other");
  const Server server(ca.IssueTls(kServer));
  const auto worker = ca.IssueTls(kWorker);
  CHECK(Connects(server.address(), JobCredentials(worker)));
  CHECK(Cause(server.address(), worker.get()).empty());

  const auto stranger = other.IssueTls(kWorker);
  CHECK_FALSE(Connects(server.address(), JobCredentials(stranger)));
  CHECK_THAT(Cause(server.address(), stranger.get()),
             Contains("has a certificate that the CAs of " + other.ca_path() + " do not prove"));

  // It trusts the server, which does not trust it.
  const std::string both = folder.path() + "/both.pem";
  std::ofstream(both) << ca.ca_pem() << other.ca_pem();
  const TlsFiles files = other.Issue(kWorker, "guest");
  const auto guest = Tls::ReadIfGiven({both, files.certificate, files.key}).value();
  CHECK_THAT(Cause(server.address(), guest.get()),
             Contains("does not accept the certificate " + files.certificate));

  CHECK_FALSE(Connects(server.address(), JobCredentials(nullptr)));
  CHECK_THAT(Cause(server.address(), nullptr), Contains("demands TLS") && Contains("weir certs init"));
  const Server plain(nullptr);
  CHECK_FALSE(Connects(plain.address(), JobCredentials(worker)));
  CHECK_THAT(Cause(plain.address(), worker.get()), Contains("does not speak TLS"));
}

TEST_CASE("a server must be the one that was meant, of the same job") {
  const Folder folder;
  const TestCertificates ca(folder.path(), "ca");
  const JobCredentials worker(ca.IssueTls(kWorker));
  for (const Identity& identity : {Identity{"j", Role::kServer, 1}, Identity{"k", Role::kServer, 0},
                                   Identity{"j", Role::kWorker, 0}, Identity{"j", Role::kAdmin, 0}}) {
    INFO(identity.ToUri());
    const Server impostor(ca.IssueTls(identity));
    CHECK_FALSE(Connects(impostor.address(), worker));
    CHECK_THAT(Cause(impostor.address(), worker.tls()),
               Contains("is that of " + identity.ToUri() + "; expected is spiffe://j/ps/0"));
  }
}

TEST_CASE("a host whose name begins like that of a socket is reached, and listens, with TLS") {
  const Folder folder;
  const TestCertificates ca(folder.path(), "ca");
  const JobCredentials worker(ca.IssueTls(kWorker)), server(ca.IssueTls(kServer));
  for (const std::string address : {"unix-bench-ps-0.jobs:2222", "unixhost:1"}) {
    INFO(address);
    CHECK(typeid(*worker.ToServer(0, address)) == typeid(*worker.ToServer(0, "10.0.0.1:2222")));
    CHECK(typeid(*server.OfServer(address)) == typeid(*server.OfServer("10.0.0.1:2222")));
  }
  for (const std::string address : {"unix:/tmp/socket", "unix-abstract:socket"}) {
    INFO(address);
    CHECK(typeid(*worker.ToServer(0, address)) != typeid(*worker.ToServer(0, "10.0.0.1:2222")));
    CHECK(typeid(*server.OfServer(address)) != typeid(*server.OfServer("10.0.0.1:2222")));
  }
}

TEST_CASE("TLS 1.2 is refused") {
  const Folder folder;
  const TestCertificates ca(folder.path(), "ca");
  const Server server(ca.IssueTls(kServer));
  const TlsFiles files = ca.Issue(kWorker, "worker");
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    const SslContextPtr context(SSL_CTX_new(TLS_client_method()));
    SSL_CTX_set_max_proto_version(context.get(), version);
    REQUIRE(SSL_CTX_use_certificate_file(context.get(), files.certificate.c_str(), SSL_FILETYPE_PEM) == 1);
    REQUIRE(SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) == 1);
    BIO* const bio = BIO_new_ssl_connect(context.get());
    const BioPtr owner(bio);
    SSL* ssl = nullptr;
    BIO_get_ssl(bio, &ssl);
    const unsigned char http2[] = {2, 'h', '2'};
    SSL_set_alpn_protos(ssl, http2, sizeof(http2));
    BIO_set_conn_hostname(bio, server.address().c_str());
    CHECK((BIO_do_handshake(bio) == 1) == (version == TLS1_3_VERSION));
  }
}

TEST_CASE("certificates, keys and CAs are replaced under way") {
  const Folder folder;
  const TestCertificates old(folder.path(), "old"), renewed(folder.path(), "new");
  const TestCertificates unrelated(folder.path(), "unrelated");
  const auto server_tls = old.IssueTls(kServer);
  const Server server(server_tls);
  const JobCredentials worker(old.IssueTls(kWorker));
  const auto connects = [&] { return Connects(server.address(), worker); };
  REQUIRE(connects());
  // As in a Kubernetes Secret: the names are links through one that is swapped.
  const auto secret = [&](const std::string& name, const TlsFiles& files) {
    const std::string to = folder.path() + "/" + name;
    std::filesystem::create_directory(to);
    std::filesystem::copy_file(files.ca, to + "/ca.pem");
    std::filesystem::copy_file(files.certificate, to + "/tls.pem");
    std::filesystem::copy_file(files.key, to + "/tls.key");
    std::filesystem::create_directory_symlink(name, folder.path() + "/next");
    std::filesystem::rename(folder.path() + "/next", folder.path() + "/current");
  };
  secret("first", old.Issue(kServer, "first"));
  const std::string current = folder.path() + "/current";
  const Server mounted(
      Tls::ReadIfGiven({current + "/ca.pem", current + "/tls.pem", current + "/tls.key"}).value());
  const auto reaches = [&] { return Connects(mounted.address(), worker); };
  REQUIRE(reaches());
  secret("second", unrelated.Issue(kServer, "second"));
  CHECK(Becomes(false, reaches));
  secret("third", old.Issue(kServer, "third"));
  CHECK(Becomes(true, reaches));
  // In two writes: the key follows the certificate.
  const TlsFiles fourth = old.Issue(kServer, "fourth");
  const auto overwrite = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(fourth.certificate, current + "/tls.pem", overwrite);
  CHECK(Becomes(false, reaches));
  std::filesystem::copy_file(fourth.key, current + "/tls.key", overwrite);
  CHECK(Becomes(true, reaches));
  CHECK(connects());
}

}  // namespace
}  // namespace weir

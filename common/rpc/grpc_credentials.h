#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/rpc/identity.h"
#include "common/rpc/job_token.h"
#include "common/rpc/tls.h"
#include "common/threads/mutex.h"

namespace weir {

// How a job's TCP connections are secured: by mutual TLS 1.3, or not at all. Without TLS they belong on a
// network of the job's own, and a call proves by the job's token that it is of the job (SetToken()). Unix
// sockets are in the clear: they check their peer's user (common/net/local_socket.h).
//
// Every program that links this file refuses what is older than TLS 1.3.
//
// With TLS, gRPC looks at the files once a second. A new connection is made with what they hold then; open
// ones stay as they are. While the key is not the certificate's, as between two writes, new connections fail.
//
// Thread-safe. Channels and servers may outlive it.
class JobCredentials {
 public:
  // Null: no TLS.
  explicit JobCredentials(std::shared_ptr<const Tls> tls);

  // For channels to ps:`server`, at `target` as gRPC writes it ("host:port", "unix:/path"). With TLS, what
  // answers there must have that server's certificate of this process's job, whatever the host's name.
  std::shared_ptr<grpc::ChannelCredentials> ToServer(uint32_t server, const std::string& target) const;
  // For a server that listens there. With TLS, it accepts the certificates of its CAs, whomever they name.
  std::shared_ptr<grpc::ServerCredentials> OfServer(const std::string& listen) const;

  const Tls* tls() const { return tls_.get(); }

 private:
  const std::shared_ptr<const Tls> tls_;
  // Null: no TLS.
  const std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> provider_;
  mutable Mutex mutex_;
  // By server: channels with the same credentials may share a connection.
  mutable std::map<uint32_t, std::shared_ptr<grpc::ChannelCredentials>> to_servers_ ABSL_GUARDED_BY(mutex_);
};

// Who the caller is; nullopt: it came without TLS. NotFound, InvalidArgument: its certificate does not say.
absl::StatusOr<std::optional<Identity>> CallerOf(const grpc::ServerContext& context);

// Makes a call carry the job's token, if the job has one. Called before the call is started.
void SetToken(const JobToken& token, grpc::ClientContext* context);
// Checks that a call carries the job's token, if the job has one. Unauthenticated: the call has none, or
// another one.
grpc::Status CheckToken(const JobToken& token, const grpc::ServerContext& context);

}  // namespace weir

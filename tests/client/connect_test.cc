// The client's search for a server that accepts connections but never answers.
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "client/client.h"
#include "common/system/unique_fd.h"
#include "tests/client/client_fixture.h"

namespace weir {
namespace {

using std::chrono::steady_clock;

TEST_CASE("each attempt to connect leaves the server more time to greet than the one before") {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  REQUIRE(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
  REQUIRE(listen(listener.get(), 16) == 0);
  REQUIRE(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);

  ClientFixture f(ClientFixture::Small());
  f.config.mutable_cluster()->set_start_seconds(8);
  f.options.servers = {"127.0.0.1:" + std::to_string(ntohs(address.sin_port))};
  f.options.job_config = f.config.SerializeAsString();
  const auto join = std::async(std::launch::async, [&] { return Client::Join(f.options, f.model).status(); });
  // How long each connection is kept. gRPC may retry once by itself before the client gives a try up.
  std::vector<double> seconds;
  do {
    const UniqueFd connection(accept(listener.get(), nullptr, nullptr));
    REQUIRE(connection.valid());
    const steady_clock::time_point begin = steady_clock::now();
    char byte;
    while (recv(connection.get(), &byte, 1, 0) > 0) {
    }
    seconds.push_back(std::chrono::duration<double>(steady_clock::now() - begin).count());
  } while (seconds.back() < 1.5 * seconds[0] && seconds.size() < 4);
  INFO(Catch::Detail::stringify(seconds));
  CHECK(seconds.back() > 1.5 * seconds[0]);
}

}  // namespace
}  // namespace weir

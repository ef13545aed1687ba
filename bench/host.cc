#include "bench/host.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/detour.h"
#include "common/base/status_macros.h"

namespace weir::bench {
namespace {

using nlohmann::json;

double Now() {
  // The clock is the same for all processes of a host.
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Usage operator+(const Usage& a, const Usage& b) {
  return {a.cpu_seconds + b.cpu_seconds, a.minor_faults + b.minor_faults, a.resident_bytes + b.resident_bytes,
          a.peak_resident_bytes + b.peak_resident_bytes};
}

absl::Status BeServer(const Contestant& contestant, int index, const std::string& host, Control& control) {
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<StepServer> server, StartServer(contestant, index, host));
  WEIR_RETURN_IF_ERROR(control.Send({{"address", server->address()}, {"pid", server->pid()}}));
  // Waits until the host ends, which kills this process.
  return control.Receive().status();
}

absl::Status BeClient(const Contestant& contestant, int index, const std::vector<std::string>& addresses,
                      Control& control) {
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<StepClient> client,
                        ConnectClient(contestant, index, addresses));
  WEIR_RETURN_IF_ERROR(control.Send({{"ready", true}}));
  while (true) {
    WEIR_ASSIGN_OR_RETURN(const json command, control.Receive());
    const int steps = command["steps"];
    std::vector<double> seconds(steps);
    const double begin = Now();
    double last = begin;
    for (double& step : seconds) {
      WEIR_RETURN_IF_ERROR(client->Step());
      const double now = Now();
      step = now - last;
      last = now;
    }
    WEIR_RETURN_IF_ERROR(control.Send(
        {{"begin", begin}, {"end", last}, {"seconds", seconds}, {"version", client->version()}}));
  }
}

// Runs the servers of one host for a peer that asks for them.
class Agent {
 public:
  explicit Agent(std::string host) : host_(std::move(host)) {}

  absl::Status Serve(Control& control) {
    while (true) {
      WEIR_ASSIGN_OR_RETURN(const json command, control.Receive());
      absl::StatusOr<json> answer = Do(command);
      WEIR_RETURN_IF_ERROR(
          control.Send(answer.ok() ? *answer : json{{"error", std::string(answer.status().message())}}));
    }
  }

 private:
  struct Server {
    std::unique_ptr<Child> child;
    pid_t pid;  // of the process that does the work
  };

  absl::StatusOr<json> Do(const json& command) {
    if (command.contains("start")) return Start(command["start"].get<Contestant>());
    if (command.contains("stop")) {
      running_.erase(command["stop"].get<int>());
      return json::object();
    }
    Usage sum;
    for (const Server& server : running_[command["usage"].get<int>()]) {
      WEIR_ASSIGN_OR_RETURN(const Usage usage, UsageOf(server.pid));
      sum = sum + usage;
    }
    return json{{"usage", sum}};
  }

  absl::StatusOr<json> Start(const Contestant& contestant) {
    std::vector<Server> servers;
    std::vector<std::string> addresses;
    for (int index = 0; index < contestant.servers; ++index) {
      WEIR_ASSIGN_OR_RETURN(std::unique_ptr<Child> child, Child::Fork([&](Control& control) {
                              return BeServer(contestant, index, host_, control);
                            }));
      WEIR_ASSIGN_OR_RETURN(const json started, child->control().Receive());
      addresses.push_back(started["address"]);
      servers.push_back({std::move(child), started["pid"]});
    }
    running_[++last_id_] = std::move(servers);
    return json{{"id", last_id_}, {"addresses", addresses}};
  }

  const std::string host_;
  int last_id_ = 0;
  std::map<int, std::vector<Server>> running_;
};

struct Resolved {
  std::string host;
  addrinfo* found = nullptr;
  ~Resolved() {
    if (found != nullptr) freeaddrinfo(found);
  }
};

absl::Status Resolve(const std::string& address, Resolved* resolved) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos)
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not HOST:PORT"));
  resolved->host = address.substr(0, colon);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(resolved->host.c_str(), address.substr(colon + 1).c_str(), &hints, &resolved->found) != 0) {
    return absl::NotFoundError(absl::StrCat(address, " does not resolve"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerHost>> ServerHost::Local() {
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<Child> child,
                        Child::Fork([](Control& control) { return Agent("127.0.0.1").Serve(control); }));
  return std::unique_ptr<ServerHost>(new ServerHost(std::move(child), nullptr));
}

absl::StatusOr<std::unique_ptr<ServerHost>> ServerHost::Remote(const std::string& address) {
  Resolved to;
  WEIR_RETURN_IF_ERROR(Resolve(address, &to));
  const int fd = socket(to.found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, to.found->ai_addr, to.found->ai_addrlen) != 0) {
    const absl::Status status =
        absl::ErrnoToStatus(errno, absl::StrCat("no process listens at ", address,
                                                " (start `weir bench wire --listen=HOST:PORT` there)"));
    close(fd);
    return status;
  }
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return std::unique_ptr<ServerHost>(new ServerHost(nullptr, std::make_unique<Control>(fd)));
}

absl::StatusOr<ServerHost::Servers> ServerHost::Start(const Contestant& contestant) {
  WEIR_ASSIGN_OR_RETURN(const json answer, control().Call({{"start", contestant}}));
  return Servers{answer["id"], answer["addresses"]};
}

absl::StatusOr<Usage> ServerHost::UsageOf(int id) {
  WEIR_ASSIGN_OR_RETURN(const json answer, control().Call({{"usage", id}}));
  return answer["usage"].get<Usage>();
}

absl::Status ServerHost::Stop(int id) { return control().Call({{"stop", id}}).status(); }

absl::Status ServeRemotely(const std::string& listen_at) {
  Resolved at;
  WEIR_RETURN_IF_ERROR(Resolve(listen_at, &at));
  const int listener = socket(at.found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener, at.found->ai_addr, at.found->ai_addrlen) != 0 || listen(listener, 1) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot listen at ", listen_at));
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size);
  // The port lies at the same place for IPv4 and IPv6.
  std::printf("listening at %s:%d\n", at.host.c_str(),
              ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port));
  std::fflush(stdout);
  while (true) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    std::printf("a client has come\n");
    std::fflush(stdout);
    Control control(fd);
    (void)Agent(at.host).Serve(control);
    std::printf("the client has gone\n");
    std::fflush(stdout);
  }
}

absl::StatusOr<std::unique_ptr<Contest>> Contest::Start(const Contestant& contestant, ServerHost* host) {
  std::unique_ptr<Contest> contest(new Contest(contestant, host));
  WEIR_ASSIGN_OR_RETURN(contest->servers_, host->Start(contestant));
  for (int index = 0; index < contestant.clients; ++index) {
    std::vector<std::string> addresses = contest->servers_.addresses;
    const auto detour = contestant.detours.find(index);
    if (detour != contestant.detours.end()) {
      WEIR_ASSIGN_OR_RETURN(std::unique_ptr<Child> child, Child::Fork([&](Control& control) {
                              return RunDetour(addresses[0], detour->second, control);
                            }));
      WEIR_ASSIGN_OR_RETURN(const json started, child->control().Receive());
      addresses = {started["address"]};
      contest->detours_.push_back(std::move(child));
    }
    WEIR_ASSIGN_OR_RETURN(contest->clients_.emplace_back(), Child::Fork([&](Control& control) {
                            return BeClient(contestant, index, addresses, control);
                          }));
  }
  for (const auto& client : contest->clients_) WEIR_RETURN_IF_ERROR(client->control().Receive().status());
  return contest;
}

Contest::~Contest() {
  clients_.clear();
  detours_.clear();
  (void)host_->Stop(servers_.id);
}

absl::StatusOr<Usage> Contest::ClientUsage() const {
  Usage sum;
  for (const auto& client : clients_) {
    WEIR_ASSIGN_OR_RETURN(const Usage usage, bench::UsageOf(client->pid()));
    sum = sum + usage;
  }
  return sum;
}

absl::StatusOr<Contest::Result> Contest::Run(int steps, const std::vector<int>& clients) {
  std::vector<Child*> runners;
  for (int index : clients) runners.push_back(clients_[index].get());
  if (clients.empty()) {
    for (const auto& client : clients_) runners.push_back(client.get());
  }
  Result result;
  WEIR_ASSIGN_OR_RETURN(const Usage server_before, ServerUsage());
  WEIR_ASSIGN_OR_RETURN(const Usage client_before, ClientUsage());
  for (Child* client : runners) WEIR_RETURN_IF_ERROR(client->control().Send({{"steps", steps}}));
  double begin = 1e300, end = 0;
  for (Child* client : runners) {
    WEIR_ASSIGN_OR_RETURN(const json answer, client->control().Receive());
    begin = std::min(begin, answer["begin"].get<double>());
    end = std::max(end, answer["end"].get<double>());
    for (double seconds : answer["seconds"]) result.seconds.push_back(seconds);
    result.versions.push_back(answer["version"]);
  }
  WEIR_ASSIGN_OR_RETURN(const Usage client_after, ClientUsage());
  WEIR_ASSIGN_OR_RETURN(const Usage server_after, ServerUsage());
  result.wall_seconds = end - begin;
  result.client_cpu_seconds = client_after.cpu_seconds - client_before.cpu_seconds;
  result.server_cpu_seconds = server_after.cpu_seconds - server_before.cpu_seconds;
  result.client_faults = client_after.minor_faults - client_before.minor_faults;
  result.server_faults = server_after.minor_faults - server_before.minor_faults;
  return result;
}

}  // namespace weir::bench

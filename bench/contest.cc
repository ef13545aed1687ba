#include "bench/contest.h"

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/tcp.h"

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
  WEIR_ASSIGN_OR_RETURN(const Kind kind, FindKind(contestant.kind));
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<StepServer> server, kind.start_server(contestant, index, host));
  WEIR_RETURN_IF_ERROR(control.Send({{"address", server->address()}, {"pid", server->pid()}}));
  // Waits until the host ends, which kills this process.
  return control.Receive().status();
}

absl::Status BeClient(const Contestant& contestant, int index, const std::vector<std::string>& addresses,
                      Control& control) {
  WEIR_ASSIGN_OR_RETURN(const Kind kind, FindKind(contestant.kind));
  WEIR_ASSIGN_OR_RETURN(const std::unique_ptr<StepClient> client,
                        kind.connect_client(contestant, index, addresses));
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
    WEIR_RETURN_IF_ERROR(control.Send({{"begin", begin}, {"end", last}, {"seconds", seconds}}));
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

double GigabytesPerStep(const Contestant& contestant) {
  return 2e-9 * sizeof(float) * static_cast<double>(contestant.elements);
}

// Of one turn.
constexpr int kLeastSteps = 3, kMostSteps = 20000;

absl::StatusOr<Turn> TakeTurn(Contest& contest, int steps) {
  const Contestant& contestant = contest.contestant();
  WEIR_ASSIGN_OR_RETURN(Contest::Result result, contest.Run(1 + steps));
  Turn turn;
  for (size_t i = 0; i < result.seconds.size(); ++i) {
    if (i % (1 + steps) != 0) turn.seconds.push_back(result.seconds[i]);
  }
  turn.step_seconds = contestant.clients == 1 ? Median(turn.seconds) : result.wall_seconds / (1 + steps);
  const double gigabytes = GigabytesPerStep(contestant) * contestant.clients * (1 + steps);
  turn.client_cpu_per_gb = result.client_cpu_seconds / gigabytes;
  turn.server_cpu_per_gb = result.server_cpu_seconds / gigabytes;
  turn.faults_per_step = static_cast<double>(result.faults) / (1 + steps);
  turn.server_peak_bytes = result.server_peak_bytes;
  return turn;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServerHost>> ServerHost::Local() {
  WEIR_ASSIGN_OR_RETURN(std::unique_ptr<Child> child,
                        Child::Fork([](Control& control) { return Agent("127.0.0.1").Serve(control); }));
  return std::unique_ptr<ServerHost>(new ServerHost(std::move(child), nullptr));
}

absl::StatusOr<std::unique_ptr<ServerHost>> ServerHost::Remote(const std::string& address) {
  absl::StatusOr<UniqueFd> fd = DialTcp(address, SetNoDelay);
  if (!fd.ok()) {
    return absl::Status(
        fd.status().code(),
        absl::StrCat("no process listens at ", address,
                     " (start `weir bench wire --listen=HOST:PORT` there): ", fd.status().message()));
  }
  return std::unique_ptr<ServerHost>(new ServerHost(nullptr, std::make_unique<Control>(*std::move(fd))));
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
  const size_t colon = listen_at.rfind(':');
  int port;
  if (colon == std::string::npos || !absl::SimpleAtoi(listen_at.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(absl::StrCat("'", listen_at, "' is not HOST:PORT"));
  }
  const std::string host = listen_at.substr(0, colon);
  WEIR_ASSIGN_OR_RETURN(const UniqueFd listener, ListenTcp(host, port));
  const auto tell = [](const std::string& what) {
    std::printf("%s\n", what.c_str());
    std::fflush(stdout);
  };
  tell(absl::StrCat("listening at ", host, ":", PortOf(listener)));
  while (true) {
    Control control(Accept(listener));
    tell("a client has come");
    (void)Agent(host).Serve(control);
    tell("the client has gone");
  }
}

absl::StatusOr<std::unique_ptr<Contest>> Contest::Start(const Contestant& contestant, ServerHost* host) {
  std::unique_ptr<Contest> contest(new Contest(contestant, host));
  WEIR_ASSIGN_OR_RETURN(contest->servers_, host->Start(contestant));
  for (int index = 0; index < contestant.clients; ++index) {
    WEIR_ASSIGN_OR_RETURN(contest->clients_.emplace_back(), Child::Fork([&](Control& control) {
                            return BeClient(contestant, index, contest->servers_.addresses, control);
                          }));
  }
  for (const auto& client : contest->clients_) WEIR_RETURN_IF_ERROR(client->control().Receive().status());
  return contest;
}

Contest::~Contest() {
  clients_.clear();
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

absl::StatusOr<Contest::Result> Contest::Run(int steps) {
  Result result;
  WEIR_ASSIGN_OR_RETURN(const Usage server_before, ServerUsage());
  WEIR_ASSIGN_OR_RETURN(const Usage client_before, ClientUsage());
  for (const auto& client : clients_) WEIR_RETURN_IF_ERROR(client->control().Send({{"steps", steps}}));
  double begin = 1e300, end = 0;
  for (const auto& client : clients_) {
    WEIR_ASSIGN_OR_RETURN(const json answer, client->control().Receive());
    begin = std::min(begin, answer["begin"].get<double>());
    end = std::max(end, answer["end"].get<double>());
    for (double seconds : answer["seconds"]) result.seconds.push_back(seconds);
  }
  WEIR_ASSIGN_OR_RETURN(const Usage client_after, ClientUsage());
  WEIR_ASSIGN_OR_RETURN(const Usage server_after, ServerUsage());
  result.wall_seconds = end - begin;
  result.client_cpu_seconds = client_after.cpu_seconds - client_before.cpu_seconds;
  result.server_cpu_seconds = server_after.cpu_seconds - server_before.cpu_seconds;
  result.faults = client_after.minor_faults - client_before.minor_faults + server_after.minor_faults -
                  server_before.minor_faults;
  result.server_peak_bytes = server_after.peak_resident_bytes;
  return result;
}

double Quantile(std::vector<double> values, double share) {
  const size_t at =
      std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

double Track::MedianOf(const std::function<double(const Turn&)>& value) const {
  std::vector<double> values;
  for (const Turn& turn : turns) values.push_back(value(turn));
  return Median(std::move(values));
}

double Track::step_seconds() const {
  return MedianOf([](const Turn& turn) { return turn.step_seconds; });
}

double Track::gb_per_second() const {
  return GigabytesPerStep(contestant) * contestant.clients / step_seconds();
}

double Track::StepQuantile(double share) const {
  std::vector<double> all;
  for (const Turn& turn : turns) all.insert(all.end(), turn.seconds.begin(), turn.seconds.end());
  return Quantile(std::move(all), share);
}

std::vector<double> StepRatios(const Track& above, const Track& below) {
  std::vector<double> ratios;
  for (size_t i = 0; i < above.turns.size(); ++i) {
    ratios.push_back(above.turns[i].step_seconds / below.turns[i].step_seconds);
  }
  return ratios;
}

std::vector<Track> Race(const std::vector<Contestant>& contestants, int rounds, double turn_seconds,
                        ServerHost* host) {
  struct Runner {
    std::unique_ptr<Contest> contest;
    int steps = 0;
  };
  std::vector<Runner> runners(contestants.size());
  std::vector<Track> tracks;
  for (size_t i = 0; i < contestants.size(); ++i) {
    Track& track = tracks.emplace_back();
    track.contestant = contestants[i];
    track.status = [&]() -> absl::Status {
      WEIR_ASSIGN_OR_RETURN(runners[i].contest, Contest::Start(contestants[i], host));
      // Warms up twice, because the first warm-up shows how long the second should be.
      int steps = 2;
      for (int warm_up = 0; warm_up < 2; ++warm_up) {
        WEIR_ASSIGN_OR_RETURN(const Turn turn, TakeTurn(*runners[i].contest, steps));
        steps = std::clamp(static_cast<int>(turn_seconds / turn.step_seconds), kLeastSteps, kMostSteps);
      }
      runners[i].steps = steps;
      return absl::OkStatus();
    }();
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < tracks.size(); ++i) {
      Track& track = tracks[i];
      if (!track.status.ok()) continue;
      absl::StatusOr<Turn> turn = TakeTurn(*runners[i].contest, runners[i].steps);
      if (turn.ok()) {
        track.turns.push_back(*std::move(turn));
      } else {
        track.status = turn.status();
        track.turns.clear();
      }
    }
  }
  return tracks;
}

}  // namespace weir::bench

#include "common/config/cluster_spec.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/config/address.h"
#include "common/config/dns_cluster.h"
#include "common/config/json_document.h"
#include "common/config/written_text.h"

namespace weir {
namespace {

absl::Status Refuse(const JsonPlace& place, absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(place.ToString(), ": ", path, ": ", what));
}

struct ListedAddress {
  Address address;
  JsonPlace place;
  std::string path;  // "cluster.worker[1]"
};

// A cluster as written, before our own task in it is known.
struct Listing {
  std::map<std::string, std::map<uint32_t, ListedAddress>> jobs;
  bool has_map = false;  // some job maps indexes to addresses
  bool has_unknown_job = false;
  bool sparse = false;   // the key is sparseCluster
  bool derived = false;  // from names with indexes in them, so an index means what it says
  JsonPlace place;
  std::string path;

  bool Lists(const std::string& job) const { return jobs.count(job) != 0; }
  // True for a part of a cluster: a worker's, where its own job is a map, or a server's, which lists no
  // worker.
  bool IsDynamic() const { return sparse || has_map || !(Lists("worker") || Lists("chief")); }
};

absl::Status AddAddress(const JsonValue& value, const std::string& path, const JsonPlace& key_place,
                        uint32_t index, std::map<uint32_t, ListedAddress>* job) {
  if (value.kind != JsonValue::Kind::kString) {
    return Refuse(value.place, path, absl::StrCat("must be an address as a string, got ", value.Describe()));
  }
  absl::StatusOr<Address> address = ParseAddress(value.text);
  if (!address.ok()) return Refuse(value.place, path, address.status().message());
  const auto [at, inserted] = job->emplace(index, ListedAddress{*address, value.place, path});
  if (!inserted) {
    return Refuse(key_place, path,
                  absl::StrCat("index ", index, " is already there, at ", at->second.place.ToString()));
  }
  return absl::OkStatus();
}

absl::Status ReadJob(const JsonValue& value, const std::string& path, Listing* listing,
                     std::map<uint32_t, ListedAddress>* job) {
  switch (value.kind) {
    case JsonValue::Kind::kNull:
      return absl::OkStatus();  // Go's empty list
    case JsonValue::Kind::kArray:
      for (uint32_t i = 0; i < value.elements.size(); ++i) {
        const JsonValue& element = value.elements[i];
        WEIR_RETURN_IF_ERROR(AddAddress(element, absl::StrCat(path, "[", i, "]"), element.place, i, job));
      }
      return absl::OkStatus();
    case JsonValue::Kind::kObject:
      listing->has_map = true;
      for (const JsonMember& member : value.members) {
        const std::string member_path = absl::StrCat(path, ".", member.key);
        uint32_t index;
        if (!ParseIndex(member.key, &index)) {
          return Refuse(member.place, member_path,
                        absl::StrCat("must be a task's index, such as \"0\", got ", JsonQuote(member.key)));
        }
        WEIR_RETURN_IF_ERROR(AddAddress(member.value, member_path, member.place, index, job));
      }
      return absl::OkStatus();
    default:
      return Refuse(value.place, path,
                    absl::StrCat("must be a list of addresses or an object from index to address, got ",
                                 value.Describe()));
  }
}

// `cluster` is the object from job to addresses.
absl::StatusOr<Listing> ReadListing(const JsonValue& cluster, const std::string& path, bool sparse) {
  if (cluster.kind != JsonValue::Kind::kObject) {
    return Refuse(cluster.place, path.empty() ? "cluster" : path,
                  absl::StrCat("must be an object from job to addresses, got ", cluster.Describe()));
  }
  Listing listing;
  listing.sparse = sparse;
  listing.place = cluster.place;
  listing.path = path.empty() ? "cluster" : path;
  for (const JsonMember& member : cluster.members) {
    const std::string job = CanonicalJob(member.key);
    if (job.empty()) {
      listing.has_unknown_job = true;
      continue;
    }
    const std::string job_path = path.empty() ? member.key : absl::StrCat(path, ".", member.key);
    std::map<uint32_t, ListedAddress> addresses;
    WEIR_RETURN_IF_ERROR(ReadJob(member.value, job_path, &listing, &addresses));
    if (addresses.empty()) continue;
    if (listing.Lists(job)) {
      return Refuse(member.place, job_path, "chief and master are two words for one job; give one of them");
    }
    if (job == "chief" && (addresses.size() > 1 || addresses.begin()->first != 0)) {
      return Refuse(member.value.place, job_path, "must have one address, of index 0: there is one chief");
    }
    listing.jobs[job] = std::move(addresses);
  }
  return listing;
}

// The cluster of a document: the object under "cluster" or "sparseCluster" or, if `bare` allows it, the
// document itself. nullopt: the document has none.
absl::StatusOr<std::optional<Listing>> FindListing(const JsonValue& root, absl::string_view source,
                                                   bool bare) {
  if (root.kind != JsonValue::Kind::kObject) {
    return absl::InvalidArgumentError(absl::StrCat(root.place.ToString(), ": ", source,
                                                   " must be an object with cluster and task, got ",
                                                   root.Describe()));
  }
  absl::StatusOr<Listing> listing;
  if (const JsonMember* cluster = root.Find("cluster")) {
    listing = ReadListing(cluster->value, "cluster", /*sparse=*/false);
  } else if (const JsonMember* sparse = root.Find("sparseCluster")) {
    listing = ReadListing(sparse->value, "sparseCluster", /*sparse=*/true);
  } else if (bare) {
    listing = ReadListing(root, "", /*sparse=*/false);
  } else {
    for (const JsonMember& member : root.members) {
      if (!CanonicalJob(member.key).empty()) {
        return Refuse(member.place, member.key, "stands outside of \"cluster\"; write {\"cluster\": {...}}");
      }
      const std::string meant = DidYouMean(member.key, {"cluster", "sparseCluster"});
      if (!meant.empty()) return Refuse(member.place, member.key, absl::StrCat("is no key", meant));
    }
    return std::nullopt;
  }
  if (!listing.ok()) return listing.status();
  if (!listing->jobs.empty()) return *std::move(listing);
  if (bare || listing->has_unknown_job) {
    return Refuse(listing->place, listing->path,
                  absl::StrCat("lists no task; a cluster has addresses for some of ", kTaskTypes));
  }
  return std::nullopt;  // TensorFlow's way of saying "local"
}

absl::StatusOr<Listing> ListingFromDns(absl::string_view text, absl::string_view source) {
  WEIR_ASSIGN_OR_RETURN(const std::vector<DnsJob> jobs, ParseDnsCluster(text, source));
  Listing listing;
  listing.derived = true;
  listing.place = {std::make_shared<const std::string>(source), 1, 1};
  listing.path = "cluster";
  for (const DnsJob& job : jobs) {
    std::map<uint32_t, ListedAddress>& addresses = listing.jobs[job.job];
    for (uint32_t i = 0; i < job.addresses.size(); ++i) {
      addresses.emplace(
          i, ListedAddress{job.addresses[i], job.name_place, absl::StrCat("cluster.", job.job, "[", i, "]")});
    }
  }
  return listing;
}

// The cluster that a value of --cluster names; never nullopt. `root`: the file's document, if it is one.
absl::StatusOr<std::optional<Listing>> ReadNamed(const std::string& cluster, JsonValue* root) {
  if (IsDnsCluster(cluster)) return ListingFromDns(cluster, "--cluster");
  WEIR_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(cluster));
  WEIR_ASSIGN_OR_RETURN(*root, ParseJson(text, cluster));
  return FindListing(*root, cluster, /*bare=*/true);
}

std::vector<PodOfTask> PodsOf(const Listing& listing) {
  std::vector<PodOfTask> pods;
  for (const auto& [job, addresses] : listing.jobs) {
    for (const auto& [index, listed] : addresses) {
      if (listed.address.is_unix()) continue;
      pods.push_back({{job, index}, listed.address.host.substr(0, listed.address.host.find('.'))});
    }
  }
  return pods;
}

// `own`: this process's task, whose port may be 0, or nullptr.
absl::StatusOr<ClusterSpec> MakeSpec(const Listing& listing, const Task* own) {
  ClusterSpec::Jobs jobs;
  std::map<std::string, const ListedAddress*> seen;
  for (const auto& [job, addresses] : listing.jobs) {
    for (const auto& [index, listed] : addresses) {
      const std::string text = listed.address.ToString();
      const bool any_port = !listed.address.is_unix() && listed.address.port == 0;
      const bool is_own = own != nullptr && own->type == job && own->index == index;
      if (any_port && !is_own) {
        return Refuse(
            listed.place, listed.path,
            absl::StrCat("address ", JsonQuote(text),
                         " has the port 0, which only a task's own address may have; use 1..65535"));
      }
      const auto [first, inserted] = seen.emplace(text, &listed);
      if (!inserted && !any_port) {
        return Refuse(listed.place, listed.path,
                      absl::StrCat("address ", JsonQuote(text), " is also that of ", first->second->path,
                                   ", at ", first->second->place.ToString(), "; each task needs its own"));
      }
      jobs[job][index] = text;
    }
  }
  return ClusterSpec(std::move(jobs), listing.IsDynamic());
}

// "ps:0..1, worker:0, worker:3".
std::string ListTasks(const Listing& listing) {
  std::vector<std::string> tasks;
  for (const auto& [job, addresses] : listing.jobs) {
    const uint32_t last = addresses.rbegin()->first;
    if (addresses.size() > 1 && last == addresses.size() - 1) {
      tasks.push_back(absl::StrCat(job, ":0..", last));
      continue;
    }
    for (const auto& [index, listed] : addresses) tasks.push_back(absl::StrCat(job, ":", index));
  }
  return absl::StrJoin(tasks, ", ");
}

struct PlacedTask {
  Task task;
  JsonPlace place;
};

absl::StatusOr<uint32_t> ReadIndex(const JsonValue& value) {
  uint32_t index = 0;
  const bool good = (value.kind == JsonValue::Kind::kUnsigned && ParseIndex(value.text, &index)) ||
                    (value.kind == JsonValue::Kind::kString && ParseIndex(value.text, &index));
  if (good) return index;
  return Refuse(
      value.place, "task.index",
      absl::StrCat("must be a whole number from 0, as a number or a string, got ", value.Describe()));
}

// The document's "task"; nullopt if it has none.
absl::StatusOr<std::optional<PlacedTask>> ReadTask(const JsonValue& root) {
  const JsonMember* task = root.Find("task");
  if (task == nullptr || task->value.kind == JsonValue::Kind::kNull) return std::nullopt;
  const JsonValue& value = task->value;
  if (value.kind != JsonValue::Kind::kObject) {
    return Refuse(value.place, "task",
                  absl::StrCat("must be an object with type and index, got ", value.Describe()));
  }
  if (value.members.empty()) return std::nullopt;
  const JsonMember* type = value.Find("type");
  const JsonMember* index = value.Find("index");
  if (type == nullptr)
    return Refuse(value.place, "task.type", absl::StrCat("is missing; one of ", kTaskTypes));
  if (index == nullptr) return Refuse(value.place, "task.index", "is missing");
  PlacedTask placed;
  placed.place = value.place;
  placed.task.type = type->value.kind == JsonValue::Kind::kString ? CanonicalJob(type->value.text) : "";
  if (placed.task.type.empty()) {
    return Refuse(type->value.place, "task.type",
                  absl::StrCat("must be one of ", kTaskTypes, ", got ", type->value.Describe()));
  }
  WEIR_ASSIGN_OR_RETURN(placed.task.index, ReadIndex(index->value));
  return placed;
}

// In a part of a cluster, the one address of the own job means "me" whatever the index, so it moves to the
// task's index.
void MoveToOwnIndex(const Task& task, Listing* listing) {
  const auto job = listing->jobs.find(task.type);
  if (!listing->IsDynamic() || listing->derived || job == listing->jobs.end() || job->second.size() != 1)
    return;
  ListedAddress own = std::move(job->second.begin()->second);
  job->second.clear();
  job->second.emplace(task.index, std::move(own));
}

absl::Status CheckServers(const Listing& listing, const Task& task) {
  if (task.type == "ps") return absl::OkStatus();  // a server may know of itself alone
  const auto ps = listing.jobs.find("ps");
  if (ps == listing.jobs.end()) {
    return Refuse(listing.place, listing.path + ".ps",
                  absl::StrCat("lists no server, and ", task.ToString(), " cannot train without one"));
  }
  uint32_t expected = 0;
  for (const auto& [index, listed] : ps->second) {
    if (index != expected++) {
      return Refuse(
          listed.place, listed.path,
          absl::StrCat("ps:", expected - 1, " is not listed; servers are numbered from 0 without gaps"));
    }
  }
  return absl::OkStatus();
}

// A task without a cluster runs in one process only if it says so with an empty cluster, as TensorFlow does,
// and is worker:0 or chief:0. A task whose cluster was forgotten must not train alone. Nor must a task that
// was given a part of a cluster without its servers, as Kubeflow's operator gives it to a chief and an
// evaluator of a job with dynamic workers.
absl::Status CheckAlone(const JsonValue& root, const PlacedTask& placed) {
  const JsonMember* cluster = root.Find("cluster");
  if (cluster == nullptr) cluster = root.Find("sparseCluster");
  const bool says_so = cluster != nullptr;
  if (says_so && cluster->value.Find("ps") != nullptr) {
    return Refuse(cluster->value.place, cluster->key,
                  absl::StrCat(placed.task.ToString(),
                               " has no cluster: \"ps\" lists no server. A Kubeflow job with "
                               "enableDynamicWorker has workers and servers only; leave the ",
                               placed.task.type, " out, or enableDynamicWorker"));
  }
  const bool trains = placed.task.type == "worker" || placed.task.type == "chief";
  if (says_so && trains && placed.task.index == 0) return absl::OkStatus();
  return Refuse(placed.place, "task",
                absl::StrCat(placed.task.ToString(), " has no cluster: \"cluster\" ",
                             says_so ? "is empty" : "is missing",
                             trains && placed.task.index == 0
                                 ? "; give it, or write \"cluster\": {} for a job in one process"
                                 : "; a job in one process is worker:0"));
}

absl::StatusOr<TaskEnvironment> MakeEnvironment(Listing listing, const PlacedTask& placed) {
  const Task& task = placed.task;
  MoveToOwnIndex(task, &listing);
  WEIR_ASSIGN_OR_RETURN(ClusterSpec cluster, MakeSpec(listing, &task));
  std::optional<std::string> address = cluster.AddressOf(task);
  if (!address.has_value() && task.type != "evaluator") {
    return Refuse(placed.place, "task",
                  absl::StrCat(task.ToString(), " is not in the cluster at ", listing.place.ToString(),
                               ", which has ", ListTasks(listing)));
  }
  WEIR_RETURN_IF_ERROR(CheckServers(listing, task));
  return TaskEnvironment{std::move(cluster), task, address.value_or("")};
}

}  // namespace

std::optional<std::string> ClusterSpec::AddressOf(const Task& task) const {
  const auto job = jobs_.find(task.type);
  if (job == jobs_.end()) return std::nullopt;
  const auto address = job->second.find(task.index);
  if (address == job->second.end()) return std::nullopt;
  return address->second;
}

std::vector<std::string> ClusterSpec::ps_addresses() const {
  std::vector<std::string> addresses;
  if (const auto job = jobs_.find("ps"); job != jobs_.end()) {
    for (const auto& [index, address] : job->second) addresses.push_back(address);
  }
  return addresses;
}

std::optional<uint32_t> ClusterSpec::num_workers() const {
  if (dynamic_) return std::nullopt;
  uint32_t count = 0;
  for (const char* type : {"chief", "worker"}) {
    if (const auto job = jobs_.find(type); job != jobs_.end())
      count += static_cast<uint32_t>(job->second.size());
  }
  return count;
}

std::optional<uint32_t> ClusterSpec::WorkerRank(const Task& task) const {
  if (task.type == "chief") return 0;
  if (task.type != "worker") return std::nullopt;
  return task.index + (jobs_.count("chief") != 0 ? 1 : 0);
}

absl::StatusOr<ClusterSpec> ParseClusterSpec(absl::string_view text, absl::string_view source) {
  WEIR_ASSIGN_OR_RETURN(const JsonValue root, ParseJson(text, source));
  WEIR_ASSIGN_OR_RETURN(const std::optional<Listing> listing, FindListing(root, source, /*bare=*/true));
  return MakeSpec(*listing, nullptr);
}

absl::StatusOr<ClusterSpec> ReadClusterSpec(const std::string& cluster) {
  JsonValue ignored;
  WEIR_ASSIGN_OR_RETURN(const std::optional<Listing> listing, ReadNamed(cluster, &ignored));
  return MakeSpec(*listing, nullptr);
}

absl::StatusOr<std::optional<TaskEnvironment>> FromEnvironment(const char* tf_config,
                                                               const std::string& cluster,
                                                               const std::string& task, const Pod& pod) {
  std::optional<Listing> listing;
  std::optional<PlacedTask> placed;
  const JsonPlace flag{std::make_shared<const std::string>("--task=" + task), 0, 0};
  const bool by_pod = task == kTaskOfPod;
  if (!task.empty() && !by_pod) {
    WEIR_ASSIGN_OR_RETURN(Task parsed, ParseTask(task, "--task"));
    placed = PlacedTask{std::move(parsed), flag};
  }
  if (!cluster.empty()) {
    JsonValue root;
    WEIR_ASSIGN_OR_RETURN(listing, ReadNamed(cluster, &root));
    if (task.empty()) {
      WEIR_ASSIGN_OR_RETURN(placed, ReadTask(root));
    }
  }
  const bool complete = listing.has_value() && (placed.has_value() || by_pod);
  if (!complete && tf_config != nullptr && !absl::StripAsciiWhitespace(tf_config).empty()) {
    WEIR_ASSIGN_OR_RETURN(const JsonValue root, ParseJson(tf_config, "TF_CONFIG"));
    if (!listing.has_value()) {
      WEIR_ASSIGN_OR_RETURN(listing, FindListing(root, "TF_CONFIG", /*bare=*/false));
    }
    if (!placed.has_value() && !by_pod) {
      WEIR_ASSIGN_OR_RETURN(placed, ReadTask(root));
      if (!listing.has_value() && placed.has_value()) WEIR_RETURN_IF_ERROR(CheckAlone(root, *placed));
    }
  }
  if (!listing.has_value()) {
    if (task.empty()) return std::nullopt;
    return absl::InvalidArgumentError(
        absl::StrCat("--task=", task,
                     ": there is no cluster for it; give --cluster=FILE, --cluster=dns:... or TF_CONFIG"));
  }
  if (by_pod) {
    WEIR_ASSIGN_OR_RETURN(Task found,
                          FindTaskOfPod(pod, PodsOf(*listing), *flag.source, listing->place.ToString()));
    placed = PlacedTask{std::move(found), flag};
  }
  if (!placed.has_value()) {
    return Refuse(
        listing->place, "task",
        "is missing: which task is this? Give --task=TYPE:INDEX, such as --task=ps:0, or --task=pod "
        "where the pod's name says it");
  }
  return MakeEnvironment(*std::move(listing), *placed);
}

}  // namespace weir

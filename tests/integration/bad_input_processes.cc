#include "tests/integration/bad_input_processes.h"

#include "common/program/exit_codes.h"

namespace weir {
namespace {

std::string Csv(int lines, int first = 0) {
  std::string text;
  for (int i = first; i < first + lines; ++i) {
    const int label = i % 2;
    text += std::to_string(label + 0.25 * (i % 3)) + "," + std::to_string(0.1 * (i % 7)) + "," +
            std::to_string(1 - label) + "," + std::to_string(label) + "\n";
  }
  return text;
}

std::string BigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}
std::string IdxImages(uint32_t n) {
  return std::string("\0\0\x08\x03", 4) + BigEndian(n) + BigEndian(2) + BigEndian(2) +
         std::string(size_t{n} * 4, '\x10');
}
std::string IdxLabels(uint32_t n) {
  std::string file = std::string("\0\0\x08\x01", 4) + BigEndian(n);
  for (uint32_t i = 0; i < n; ++i) file += static_cast<char>(i % 2);
  return file;
}

constexpr char kJob[] = R"({
  "name": "bad_input",
  "model": {"layers": [{"type": "dense", "name": "hidden", "units": 16}, {"type": "relu"},
                       {"type": "dense", "name": "out", "units": 2}]},
  "data": {"format": "csv", "train": {"path": "train.csv"}, "test": {"path": "test.csv"}, "batch_size": 8},
  "train": {"epochs": 5},
  "consistency": {"mode": "async"},
  "cluster": {"min_workers": 1, "lease_seconds": 3, "start_seconds": 60},
  "server": {"min_shard_kib": 0}
})";

std::string IdxJob(const std::string& images, const std::string& labels) {
  return R"({"model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 2}]},
             "data": {"format": "idx", "train": {"images": ")" +
         images + R"(", "labels": ")" + labels + R"("},
             "test": {"images": "images", "labels": "labels"}}})";
}

constexpr char kOneServer[] =
    R"({"cluster": {"ps": ["127.0.0.1:0"], "worker": ["a:1"]}, "task": {"type": "ps", "index": 0}})";

}  // namespace

BadInputFiles::BadInputFiles() {
  config = folder.Write("job.json", kJob);
  folder.Write("train.csv", Csv(kBadInputExamples));
  folder.Write("test.csv", Csv(50));
  folder.Write("short.csv", Csv(300));
  folder.Write("order.csv", Csv(kBadInputExamples, /*first=*/1));
  folder.Write("word.csv", Csv(4) + "0.5,many,0,1\n" + Csv(4));
  folder.Write("columns.csv", Csv(2) + "0.5,0,1\n");
  folder.Write("empty.csv", "");
  folder.Write("images", IdxImages(20));
  folder.Write("labels", IdxLabels(20));
  folder.Write("cut_images", IdxImages(20).substr(0, 50));
  folder.Write("cut_header", IdxImages(20).substr(0, 7));
  folder.Write("other_magic", "PNG!" + IdxImages(20).substr(4));
  folder.Write("fewer_labels", IdxLabels(19));
  folder.Write("huge_images", std::string("\0\0\x08\x03", 4) + std::string(12, '\xff'));
  for (const char* images : {"cut_images", "cut_header", "other_magic", "huge_images"}) {
    folder.Write(std::string(images) + ".json", IdxJob(images, "labels"));
  }
  folder.Write("fewer_labels.json", IdxJob("images", "fewer_labels"));
  folder.Write("no_file.json", IdxJob("nowhere", "labels"));
  folder.Write("syntax.json", "{\"model\": }");
  folder.Write("duplicate.json", "{\"seed\": 1,\n \"seed\": 2}");
  folder.Write("no_ps.json", R"({"worker": ["127.0.0.1:1"]})");
}

std::vector<BadProcess> BadProcesses() {
  const std::string worker = "worker", server = "ps_server", job = "--config=@job.json";
  const auto in_job = [&](const std::string& what, std::vector<std::string> args,
                          std::vector<std::string> message) {
    args.insert(args.begin(), job);
    return BadProcess{what, worker, args, "worker:1", kExitConfig, message};
  };
  const auto spec = [&](const std::string& what, const std::string& tf_config,
                        std::vector<std::string> message) {
    return BadProcess{what, worker, {job}, tf_config, kExitConfig, message};
  };
  const auto data = [&](const std::string& what, const std::string& config,
                        std::vector<std::string> message) {
    return BadProcess{what, worker, {"--config=@" + config}, "", kExitConfig, message};
  };
  return {
      // The command line.
      {"unknown flag", worker, {job, "--colour=red"}, "", kExitUsage, {"--colour=red"}},
      {"unknown flag", server, {job, "--colour=red"}, "", kExitUsage, {"--colour=red"}},
      {"no config", worker, {}, "", kExitUsage, {"--config is required"}},
      {"no config", server, {}, "", kExitUsage, {"--config is required"}},
      {"value not in the list", worker, {job, "--log_format=xml"}, "", kExitUsage, {"xml", "text", "json"}},
      {"value out of range", server, {job, "--http_port=99999"}, "", kExitUsage, {"--http_port", "65535"}},
      {"--summary of a worker in a cluster",
       worker,
       {job, "--summary=/tmp/s"},
       "worker:1",
       kExitUsage,
       {"ps:0 writes it"}},
      // The config.
      data("syntax error", "syntax.json", {"syntax.json:1:11: unexpected '}'"}),
      data("duplicate key", "duplicate.json", {"duplicate.json:2:2", "seed"}),
      data("missing file", "nowhere.json", {"nowhere.json: cannot be read: No such file"}),
      {"syntax error", server, {"--config=@syntax.json"}, "ps:1", kExitConfig, {"syntax.json:1:11"}},
      in_job("unknown field", {"--set", "optimizer.lerning_rate=1"},
             {"optimizer.lerning_rate: unknown field (did you mean \"learning_rate\"?)"}),
      in_job("wrong type", {"--set", "data.batch_size=many"},
             {"data.batch_size: must be a whole number in [1, 1048576], got \"many\""}),
      in_job("out of range", {"--set", "data.batch_size=0"},
             {"data.batch_size: must be a whole number in [1, 1048576], got 0"}),
      in_job("impossible combination", {"--set", "consistency.staleness=3"},
             {"consistency.staleness: is not used with mode \"async\""}),
      in_job("impossible combination", {"--set", "train.examples=5"},
             {"train.examples", "cannot be given together with train.epochs"}),
      in_job("override without a value", {"--set", "train.epochs"},
             {"--set train.epochs: must be PATH=VALUE"}),
      in_job("a model that the data does not fit", {"--set", "model.layers[2].units=3"}, {"3", "2"}),
      // The cluster spec.
      spec("malformed", R"({"cluster": {"ps": ["a:1"], "worker": ["b:1")",
           {"TF_CONFIG:1:", "unexpected end"}),
      spec("duplicate keys",
           R"({"cluster": {"ps": ["a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}})",
           {"TF_CONFIG:1:29: key \"ps\" is already there, at TF_CONFIG:1:14"}),
      spec("task not in the cluster",
           R"({"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 3}})",
           {"worker:3 is not in the cluster", "ps:0, worker:0"}),
      spec("address without a port",
           R"({"cluster": {"ps": ["a"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0}})",
           {"cluster.ps[0]: address \"a\" has no port"}),
      spec("two tasks on one address",
           R"({"cluster": {"ps": ["a:1"], "worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})",
           {"cluster.worker[0]: address \"a:1\" is also that of cluster.ps[0]"}),
      spec("no server", R"({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})",
           {"cluster.ps: lists no server"}),
      {"no cluster for --task",
       worker,
       {job, "--task=worker:0"},
       "",
       kExitConfig,
       {"there is no cluster for it"}},
      {"no such task",
       worker,
       {job, "--task=boss:0"},
       "worker:1",
       kExitConfig,
       {"--task: must be TYPE:INDEX"}},
      {"no server in the file",
       worker,
       {job, "--cluster=@no_ps.json", "--task=worker:0"},
       "",
       kExitConfig,
       {"lists no server"}},
      {"no cluster for a server", server, {job}, "", kExitConfig, {"a ps_server needs a cluster"}},
      {"the wrong program", worker, {job}, "ps:1", kExitConfig, {"the task is ps:1", "start `ps_server`"}},
      {"the wrong program",
       server,
       {job},
       "worker:1",
       kExitConfig,
       {"the task is worker:1", "start `worker`"}},
      // Addresses and files of a server.
      {"port taken",
       server,
       {job},
       "ps:1",
       kExitConfig,
       {"ps:1 cannot listen on 127.0.0.1:", "another process listens there"}},
      {"an address of another machine",
       server,
       {job, "--bind=192.0.2.1", "--insecure_plaintext"},
       kOneServer,
       kExitConfig,
       {"cannot listen on 192.0.2.1:0"}},
      {"not loopback",
       server,
       {job, "--bind=0.0.0.0"},
       kOneServer,
       kExitConfig,
       {"--bind=0.0.0.0 is not loopback", "--insecure_plaintext"}},
      {"a summary that cannot be written",
       server,
       {job, "--summary=/nowhere/s.json"},
       kOneServer,
       kExitConfig,
       {"--summary=/nowhere/s.json could not be written"}},
      {"a port file that cannot be written",
       server,
       {job, "--port_file=/nowhere/port"},
       kOneServer,
       kExitConfig,
       {"--port_file=/nowhere/port"}},
      // Data.
      data("IDX file cut short", "cut_images.json",
           {"cut_images: the file is cut short: 34 bytes", "expected 80"}),
      data("IDX header cut short", "cut_header.json", {"cut_header: the file is cut short"}),
      data("wrong magic", "other_magic.json", {"other_magic: not an IDX file: it starts with 50 4e 47 21"}),
      data("count mismatch", "fewer_labels.json", {"20 images", "19 labels"}),
      data("sizes that no memory has", "huge_images.json", {"huge_images", "are allowed"}),
      data("missing data file", "no_file.json", {"data.train.images: cannot read", "nowhere"}),
      in_job("bad CSV value", {"--set", "data.train.path=word.csv"}, {"word.csv:5:5: value 1 is 'many'"}),
      in_job("bad CSV line", {"--set", "data.train.path=columns.csv"},
             {"columns.csv:3:1: 3 values; expected 4"}),
      in_job("empty CSV file", {"--set", "data.train.path=empty.csv"}, {"empty.csv"}),
      // Errors that only the running job can detect.
      in_job(
          "other layer size", {"--set", "model.layers[0].units=32"},
          {"the config of worker:1 differs from that of ps:0", "model.layers[0].units: expected 16, got 32"}),
      in_job("other learning rate", {"--set", "optimizer.learning_rate=0.5"},
             {"the config of worker:1 differs from that of ps:0",
              "optimizer.learning_rate: expected 0.01, got 0.5"}),
      in_job("other data set size", {"--set", "data.train.path=short.csv"},
             {"the training set of worker:1 has 300 examples; that of the job has 400"}),
      in_job("other examples, as many", {"--set", "data.train.path=order.csv"},
             {"the workers differ in the training set's examples: worker:1 has features ",
              ", and worker:0, which joined before, has features "}),
      in_job("a history that cannot be written", {"--history=/nowhere/h"}, {"/nowhere/h"}),
  };
}

RunResult Run(const BadProcess& bad, const BadInputFiles& files, const TestJob& job) {
  std::vector<std::string> args = {bad.program + "/" + bad.program};
  for (std::string arg : bad.args) {
    const size_t at = arg.find("=@");
    if (at != std::string::npos) arg.replace(at + 1, 1, files.folder.path(""));
    args.push_back(arg);
  }
  std::map<std::string, std::string> environment;
  if (!bad.tf_config.empty()) {
    environment["TF_CONFIG"] = bad.tf_config[0] == '{' ? bad.tf_config : job.TfConfig(bad.tf_config);
  }
  return RunToEnd(std::move(args), std::move(environment));
}

}  // namespace weir

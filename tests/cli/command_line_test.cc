// The command line of `weir` as a process: what it refuses, with which code and message.
#include "common/program/command_line.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/config/job_config.h"
#include "common/program/exit_codes.h"
#include "common/system/subprocess.h"
#include "tests/cli/fake_coordinator.h"
#include "tests/cli/weir_process.h"

namespace weir {
namespace {

using Catch::Contains;
using Catch::EndsWith;
using Catch::StartsWith;

TEST_CASE("a bad command line exits with 64 and says what is allowed") {
  struct Case {
    std::vector<std::string> args;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {{},
       {"subcommand",
        "up, run, slurm, task, status, demo, config, checkpoint, table, certs, export, import, replay, "
        "manifest, data"}},
      {{"upp"},
       {"'upp' is not known here (did you mean \"up\"?)",
        "up, run, slurm, task, status, demo, config, checkpoint, table, certs, export, import, replay, "
        "manifest",
        "see `weir --help`"}},
      {{"up"}, {"config is required", "allowed after `weir up`", "--workers"}},
      {{"up", "job.json", "--worker=2"},
       {"'--worker=2' is not known here (did you mean \"--workers\"?)", "see `weir up --help`"}},
      {{"up", "job.json", "--ps=0"}, {"--ps", "0", "1", "64"}},
      {{"up", "job.json", "--ps=two"}, {"--ps", "two"}},
      {{"up", "job.json", "--seed=-1"}, {"--seed", "-1"}},
      {{"up", "job.json", "--http_port=65536"}, {"--http_port", "65535"}},
      {{"up", "job.json", "other.json"}, {"other.json"}},
      {{"up", "job.json", "--ps=2", "python", "train.py"},
       {"'python' is not known here", "put -- before it: weir up job.json --ps=2 -- python train.py"}},
      {{"up", "job.json", "--"}, {"after -- comes a program"}},
      {{"up", "--ps=0", "job.json", "--", "python", "--ps=2"}, {"--ps", "0", "1", "64"}},
      {{"up", "job.json", "--device=tpu"}, {"the device 'tpu' is not known", "cuda:N"}},
      {{"demo", "--device=cpu,cuda:0"}, {"mixes kinds"}},
      {{"demo", "--seeds=0"}, {"--seeds", "1000"}},
      {{"up", "$HOME/job.json"}, {"config", "\"$HOME/job.json\" has $HOME in it"}},
      {{"up", "job.json", "--summary=gs://b/s"}, {"--summary", "\"gs://b/s\" begins with gs:"}},
      {{"export", "~ann/step-1", "x"}, {"checkpoint", "begins with ~ann"}},
      {{"config"}, {"check, show, fields"}},
      {{"config", "check"}, {"config is required", "weir config check"}},
      {{"status"}, {"--cluster=FILE", "--address=HOST:PORT"}},
      {{"status", "--cluster=a.json", "--address=a:1"}, {"--cluster", "--address"}},
      {{"status", "--address=nowhere"}, {"--address", "nowhere"}},
      {{"checkpoint"}, {"take, list, verify"}},
      {{"data"}, {"clicks"}},
      {{"data", "clicks"}, {"directory is required", "weir data clicks"}},
      {{"data", "clicks", "d", "--rows=0"}, {"--rows", "1", "100000000"}},
      {{"checkpoint", "verify"}, {"checkpoint is required", "weir checkpoint verify"}},
      {{"checkpoint", "take"}, {"--cluster=FILE", "--address=HOST:PORT"}},
      {{"checkpoint", "take", "--cluster=a.json", "--address=a:1"}, {"--cluster", "--address"}},
      {{"export", "runs"}, {"out is required"}},
      {{"up", "job.json", "--restart=-1"}, {"--restart"}},
      {{"up", "job.json", "--restart=many"}, {"--restart", "many"}},
      {{"up", "job.json", "--resume=a", "--init_from=b"}, {"--resume", "--init_from"}},
      {{"config", "show", "job.json", "--ps=0"}, {"--ps", "1024"}},
      {{"manifest"}, {"config is required", "weir manifest"}},
      {{"import", "model.safetensors"}, {"directory is required", "weir import"}},
      {{"manifest", "job.json", "--format=helm"}, {"--format", "jobset"}},
      {{"bench"}, {"wire"}},
      {{"bench", "wire", "--sizes=3XB"}, {"3XB", "1KB to 64GB"}},
      {{"bench", "wire", "--layouts=2by2"}, {"2by2", "2x4"}},
      {{"bench", "wire", "--optimizers=lion"}, {"lion", "momentum"}},
      {{"bench", "wire", "--listen=a:1", "--connect=a:1"}, {"--listen", "--connect"}},
  };
  for (const Case& c : cases) {
    const WeirResult result = Weir(c.args);
    INFO(result.output);
    CHECK(result.code == kExitUsage);
    for (const auto& text : c.says) CHECK_THAT(result.output, Contains(text));
  }
}

TEST_CASE("ps_server and worker say the same of theirs, and their version") {
  for (const std::string program : {"ps_server", "worker"}) {
    const std::string path = program + "/" + program;
    const WeirResult wrong = Weir({"--confg=job.json"}, path);
    CHECK(wrong.code == kExitUsage);
    CHECK_THAT(wrong.output, Contains("'--confg=job.json' is not known here (did you mean \"--config\"?)") &&
                                 Contains("see `" + program + " --help`"));
    const WeirResult without = Weir({}, path);
    CHECK(without.code == kExitUsage);
    CHECK_THAT(without.output, Contains("--config is required"));
    const WeirResult version = Weir({"--version"}, path);
    CHECK(version.code == 0);
    CHECK_THAT(version.output, StartsWith(program + " "));
  }
}

TEST_CASE("help of a command, manual pages and completion, of the same definitions") {
  const WeirResult all = Weir({"help"});
  for (const char* command : {"up", "checkpoint", "completion"}) CHECK_THAT(all.output, Contains(command));
  CHECK(Weir({"help", "up"}).output == Weir({"up", "--help"}).output);
  CHECK_THAT(Weir({"help", "checkpoint", "take"}).output, Contains("--address"));
  const WeirResult none = Weir({"help", "upp"});
  CHECK(none.code == kExitUsage);
  CHECK_THAT(none.output, Contains("there is no command 'upp'"));
  const WeirResult page = Weir({"man", "checkpoint", "take"});
  CHECK_THAT(page.output,
             StartsWith(".TH \"WEIR-CHECKPOINT-TAKE\" 1") &&
                 Contains(".B \\-\\-address=HOST:PORT\nAddress of ps:0 [not with \\-\\-cluster]\n"));
  const WeirResult up = Weir({"up", "--help"});
  for (const char* line : {"config FILE                 Job config (JSON with comments) [required]",
                           "--ps=N                      Servers [1 to 64; default: 1]", "--seed=N ",
                           "--restart[=N]               Start tasks that died again",
                           "[not with --init_from]", "--tls                       Mutual TLS"}) {
    CHECK_THAT(up.output, Contains(line));
  }
  CHECK_THAT(
      Weir({"manifest", "--help"}).output,
      Contains("--format=TEXT               What to write [kustomize, jobset, tfjob; default: kustomize]"));

  // As bash calls it: the words so far, the last of them unfinished.
  const auto complete = [](const std::string& words) {
    Subprocess::Options options;
    options.args = {"/bin/bash", "-c",
                    ". <(cli/weir completion); compopt() { :; }; COMP_WORDS=(" + words +
                        "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _weir; echo ${COMPREPLY[@]}"};
    const auto result = RunCommand(std::move(options), std::chrono::seconds(60));
    REQUIRE(result.ok());
    return result->output;
  };
  CHECK(complete("weir che") == "checkpoint\n");
  CHECK(complete("weir checkpoint ''") == "take list verify --help\n");
  CHECK(complete("weir up --work") == "--workers=\n");
  CHECK(complete("weir up --ps=2 --verb") == "--verbose\n");
  CHECK(complete("weir up cli/wei") == "cli/weir\n");
}

TEST_CASE("help names the options that exclude one in the order of their names, wherever they lie") {
  CLI::App app;
  for (const std::vector<const char*>& made :
       {std::vector<const char*>{"--a", "--b", "--c", "--d"}, {"--h", "--g", "--f", "--e"}}) {
    CLI::Option* const one = app.add_flag(absl::StrCat("--not", made[0] + 1));
    for (const char* const name : made) one->excludes(app.add_flag(name));
  }
  CHECK(Describe(*app.get_option("--not-a")).description == " [not with --a, --b, --c, --d]");
  CHECK(Describe(*app.get_option("--not-h")).description == " [not with --e, --f, --g, --h]");
}

TEST_CASE("help and version") {
  for (const std::vector<std::string>& args : {std::vector<std::string>{"--help"}, {"help"}}) {
    const WeirResult result = Weir(args);
    CHECK(result.code == 0);
    CHECK_THAT(result.output,
               Contains("weir up --ps=2 --workers=4 configs/digits.json") && Contains("Exit codes"));
  }
  for (const char* command : {"up", "run", "status", "demo", "config", "checkpoint", "export", "import",
                              "manifest", "bench", "doctor"}) {
    const WeirResult result = Weir({command, "--help"});
    CHECK(result.code == 0);
    CHECK_THAT(result.output, Contains("Examples:\n  weir " + std::string(command)));
  }
  CHECK(Weir({"version"}).output == Weir({"--version"}).output);
}

TEST_CASE("a command whose program is not there says how to get it, and still gives help") {
  namespace fs = std::filesystem;
  const fs::path alone = fs::path(std::getenv("TEST_TMPDIR")) / "alone" / "bin" / "weir";
  fs::create_directories(alone.parent_path());
  fs::copy_file("cli/weir", alone, fs::copy_options::overwrite_existing);
  const WeirResult run = Weir({"bench", "wire"}, alone);
  CHECK(run.code == kExitInternal);
  CHECK_THAT(run.output,
             Contains("./dev build //bench:weir_bench") && Contains(alone.parent_path().string()));
  CHECK(Weir({"replay", "runs"}, alone).code == kExitInternal);
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"bench", "--help"}, {"bench", "wire", "--help"}, {"bench", "wire", "-h"}}) {
    const WeirResult help = Weir(args, alone);
    CHECK(help.code == 0);
    CHECK_THAT(help.output,
               Contains("weir bench wire --sizes=") && Contains("./dev build //bench:weir_bench"));
  }
}

TEST_CASE("config check and show, where the other programs are not there") {
  namespace fs = std::filesystem;
  const fs::path weir = fs::path(std::getenv("TEST_TMPDIR")) / "config" / "bin" / "weir";
  fs::create_directories(weir.parent_path());
  fs::copy_file("cli/weir", weir, fs::copy_options::overwrite_existing);
  const WeirResult good = Weir({"config", "check", "configs/digits.json"}, weir);
  CHECK(good.code == 0);
  CHECK_THAT(
      good.output,
      StartsWith("configs/digits.json: ok (job \"digits\", 4 layers)\n"
                 "  not checked: the data, and whether the model fits it (the program worker is not "));
  const WeirResult bad = Weir({"config", "check", "configs/digits.json", "--set", "seed=x"}, weir);
  CHECK(bad.code == kExitConfig);
  CHECK(bad.output == "--set seed=x: seed: must be a whole number at least 0, got \"x\"\n");
  CHECK(Weir({"config", "show", "/nowhere.json"}, weir).code == kExitConfig);
  // An override takes one word, wherever it stands.
  CHECK(Weir({"config", "show", "--set=train.epochs=3", "configs/digits.json", "--ps=2"}, weir).code == 0);

  const std::string show = weir.string() + " config show configs/digits.json --set train.epochs=3 ";
  const WeirResult shown = Weir({"-c", show + "2>/dev/null"}, "/bin/sh");
  CHECK(shown.code == 0);
  CHECK_THAT(shown.output, Contains("\"epochs\": 3,"));
  CHECK(ParseJobConfig(shown.output, "shown").ok());
  CHECK_THAT(
      Weir({"-c", show + ">/dev/null"}, "/bin/sh").output,
      StartsWith("memory of a server, W = bytes of its weights: ") &&
          EndsWith("\ncheckpoints: none (checkpoint.directory is not set); a lost server ends the job\n"));
}

TEST_CASE("the doctor speaks to people and programs") {
  const WeirResult text = Weir({"doctor"});
  CHECK(text.code == 0);
  CHECK_THAT(text.output, Contains("cpu kernels") && Contains("congestion control") && Contains("cublas"));
  const WeirResult json = Weir({"doctor", "--json"});
  CHECK(json.code == 0);
  CHECK_THAT(json.output, Contains("\"cpu_kernels\": \"") && Contains("\"devices\": ["));
}

TEST_CASE("status of a running cluster") {
  v1::ClusterStatus status;
  status.set_name("digits");
  status.set_step(12);
  FakeCoordinator coordinator(&status);
  REQUIRE(coordinator.port() != 0);
  const std::string file = std::string(std::getenv("TEST_TMPDIR")) + "/cluster.json";
  std::ofstream(file) << R"({"ps": [")" << coordinator.address() << R"("]})";
  for (const std::string& flag : {"--address=" + coordinator.address(), "--cluster=" + file}) {
    const WeirResult text = Weir({"status", flag});
    CHECK(text.code == 0);
    CHECK_THAT(text.output, Contains("digits"));
    CHECK_THAT(Weir({"status", flag, "--json"}).output, Contains("\"step\": 12"));
  }
  std::ofstream(file) << R"({"worker": ["a:1"]})";
  const WeirResult no_server = Weir({"status", "--cluster=" + file});
  CHECK(no_server.code == kExitConfig);
  CHECK_THAT(no_server.output, Contains("cluster.json") && Contains("ps"));

  const WeirResult no_count = Weir({"status", "--cluster=dns:ps=weir-ps"});
  CHECK(no_count.code == kExitConfig);
  CHECK_THAT(no_count.output, Contains("--cluster:1:8: ps: must be JOB=NAME:COUNT"));

  FakeCoordinator other(nullptr);
  REQUIRE(other.port() != 0);
  const WeirResult wrong = Weir({"status", "--address=" + other.address()});
  CHECK(wrong.code == kExitConfig);
  CHECK_THAT(wrong.output, Contains("ps:0") && Contains(other.address()));
}

TEST_CASE("a checkpoint of a running job") {
  v1::ClusterStatus status;
  {
    FakeCoordinator coordinator(&status);
    REQUIRE(coordinator.port() != 0);
    const WeirResult none = Weir({"checkpoint", "take", "--address=" + coordinator.address()});
    CHECK(none.code == kExitConfig);
    CHECK_THAT(none.output, Contains("no checkpoint: checkpoint.directory is not set"));
  }
  status.set_checkpoint("/runs/7/step-00001200");
  status.set_step(1200);
  FakeCoordinator coordinator(&status);
  REQUIRE(coordinator.port() != 0);
  const WeirResult taken = Weir({"checkpoint", "take", "--address=" + coordinator.address()});
  CHECK(taken.code == 0);
  CHECK(taken.output == "/runs/7/step-00001200  (step 1,200)\n");
  const WeirResult nobody = Weir({"checkpoint", "take", "--address=127.0.0.1:1"});
  CHECK(nobody.code == kExitPeerLost);
  CHECK_THAT(nobody.output, Contains("ps:0 at 127.0.0.1:1 does not answer"));
}

TEST_CASE("status of a cluster that is not there names ps:0 and its address") {
  const WeirResult result = Weir({"status", "--address=127.0.0.1:1"});
  CHECK(result.code == kExitPeerLost);
  CHECK_THAT(result.output, Contains("ps:0 at 127.0.0.1:1 does not answer"));

  const WeirResult no_file = Weir({"status", "--cluster=/no/such/file"});
  CHECK(no_file.code == kExitConfig);
  CHECK_THAT(no_file.output, Contains("/no/such/file"));
}

TEST_CASE("config fields prints what a config may have") {
  const WeirResult result = Weir({"config", "fields"});
  CHECK(result.code == 0);
  CHECK_THAT(result.output, StartsWith("// A training job, as people write it in JSON"));
  CHECK_THAT(result.output, Contains("message JobConfig {\n") &&
                                Contains("optional float learning_rate = 2 [default = 0.01,") &&
                                !Contains("import \"proto/"));
}

TEST_CASE("config schema prints the JSON Schema that comes with the configs") {
  const WeirResult result = Weir({"config", "schema"});
  CHECK(result.code == 0);
  CHECK_THAT(result.output, StartsWith("{\n \"$schema\": \"http://json-schema.org/draft-07/schema#\""));
  CHECK_THAT(result.output, Contains("\"enum\": [\n      \"sync\",\n      \"bounded\",\n      \"async\""));
}

TEST_CASE("config init writes a job that config check takes, and never over a file") {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "config_init";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  for (const char* mode : {"sync", "bounded", "async"}) {
    const std::string path = folder / absl::StrCat(mode, ".json");
    const WeirResult made = Weir({"config", "init", path, absl::StrCat("--mode=", mode), "--optimizer=adamw",
                                  "--workers=3", "--checkpoints=s3://bucket/job"});
    INFO(made.output);
    CHECK(made.code == 0);
    const WeirResult shown = Weir({"config", "show", path});
    CHECK(shown.code == 0);
    CHECK_THAT(shown.output, Contains(absl::StrCat("\"mode\": \"", mode, "\"")) && Contains("\"adamw\"") &&
                                 Contains("s3://bucket/job"));
  }
  const std::string taken = folder / "sync.json";
  const WeirResult again = Weir({"config", "init", taken});
  CHECK(again.code == kExitConfig);
  CHECK_THAT(again.output,
             Contains(absl::StrCat(taken, ": cannot be written: File exists; name another file")));
  const WeirResult wrong = Weir({"config", "init", folder / "new.json", "--optimizer=sgdd"});
  CHECK(wrong.code == kExitConfig);
  CHECK_THAT(wrong.output, Contains("optimizer.type: must be one of sgd, momentum"));
  CHECK_FALSE(std::filesystem::exists(folder / "new.json"));
}

TEST_CASE("config show says a server's memory in bytes where the data tell the model's size") {
  const auto show = [](std::vector<std::string> more) {
    std::vector<std::string> args = {"config", "show", "configs/digits.json"};
    args.insert(args.end(), more.begin(), more.end());
    const WeirResult result = Weir(args);
    CHECK(result.code == 0);
    return result.output;
  };
  // 9,610 parameters are 18 blocks of 512 and one of 394, which is the tenth of the first server: 5,002
  // elements. They come eleven times, with 4 bytes each, beside 4 MiB of chunks.
  CHECK_THAT(
      show({"--ps=2", "--workers=4"}),
      Contains("that is at most 4414392 bytes (4.2 MiB) with 9610 parameters, 2 servers and 4 workers"));
  CHECK_THAT(show({}), Contains("1 server and 1 worker,"));
  CHECK_THAT(show({"--set", "cluster.workers=3"}), Contains("1 server and 3 workers,"));
  const std::string none = R"({"images": "/none", "labels": "/none"})";
  CHECK_THAT(show({"--set", R"(data={"format": "idx", "train": )" + none + R"(, "test": )" + none + "}"}),
             Contains("in bytes: not known here (data.train.images: cannot read /none: No such file"));
}

TEST_CASE("config check looks at the data and at whether the model fits it") {
  const std::filesystem::path folder = std::filesystem::path(std::getenv("TEST_TMPDIR")) / "config_check";
  std::filesystem::create_directories(folder);
  const std::string job = folder / "job.json";
  const auto write = [&](const std::string& units, const std::string& data) {
    std::ofstream(job)
        << R"({"name": "small", "model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": )"
        << units << R"(}]}, "data": )" << data << "}";
  };
  const auto check = [&] { return Weir({"config", "check", job}); };
  const std::string digits = R"({"format": "digits"})";
  write("10", digits);
  WeirResult result = check();
  CHECK(result.code == 0);
  CHECK(result.output ==
        job +
            ": ok (job \"small\")\n"
            "  data: digits, 1500 training and 297 test examples of shape [1, 8, 8], 10 classes\n"
            "  model: 2 layers, 650 parameters\n");
  write("5", digits);
  result = check();
  CHECK(result.code == kExitConfig);
  CHECK_THAT(result.output,
             StartsWith(job + ": model.layers[1] is the last and gives the shape [5], but the data "
                              "needs [10]"));
  CHECK(Weir({"config", "check", job, "--set", "model.layers[1].units=10"}).code == 0);

  const std::string idx =
      R"({"format": "idx", "classes": 10, "train": {"images": "images", "labels": "labels"},)"
      R"( "test": {"images": "images", "labels": "labels"}})";
  write("10", idx);
  result = check();
  CHECK(result.code == kExitConfig);
  CHECK_THAT(result.output, Contains("data.train.images: cannot read " + (folder / "images").string() +
                                     ": No such file or directory"));
  // 3 images of 2 x 2.
  const auto number = [](char n) { return std::string(3, '\0') + n; };
  const std::string images =
      std::string("\0\0\x08\x03", 4) + number(3) + number(2) + number(2) + std::string(12, '\1');
  std::ofstream(folder / "images") << images;
  std::ofstream(folder / "labels") << std::string("\0\0\x08\x01", 4) + number(4) + std::string(4, '\1');
  result = check();
  CHECK(result.code == kExitConfig);
  CHECK_THAT(result.output, Contains("has 3 images, but") && Contains("has 4 labels"));
  std::ofstream(folder / "labels") << std::string("\0\0\x08\x01", 4) + number(3) + std::string(3, '\1');
  result = check();
  CHECK(result.code == 0);
  CHECK_THAT(result.output, Contains("  data: training set: 3 examples of shape [1, 2, 2]; test set: 3 ") &&
                                !Contains("not checked"));
  const auto sizes = [&](const std::vector<std::string>& sets = {}) {
    std::vector<std::string> flags = {"--sizes", "--config=" + job};
    for (const std::string& set : sets) flags.push_back("--set=" + set);
    return Weir(flags, "worker/worker");
  };
  // Twice three images of 4 bytes, doubled while they are read, and their labels; 50 parameters six times;
  // for each of 32 examples twice the outputs (4, 10), a gradient (10), two inputs (4).
  CHECK(sizes().output == "{\"parameters\": 50, \"worker_bytes\": 7160, \"unknown\": \"\"}\n");
  // The weights of a worker's own, and two slots: kept for each of its two parts.
  const std::string local = R"(local={"steps": 2, "inner": {"type": "adam"}})", six = "consistency.parts=6";
  CHECK_THAT(sizes({local, six, "cluster.workers=4"}).output, Contains(": 7760, "));
  CHECK_THAT(sizes({local, six, "cluster.workers=4", "local.keep_state=true"}).output, Contains(": 8160, "));
  // Small files are read whole.
  std::ofstream(folder / "images") << images.substr(0, images.size() - 1);
  result = check();
  CHECK(result.code == kExitConfig);
  CHECK_THAT(result.output, Contains("images: the file is cut short"));
  std::ofstream(folder / "images") << "no images";
  CHECK_THAT(check().output, Contains("images: not an IDX file"));

  const std::string csv =
      R"({"format": "csv", "train": {"path": "table.csv"}, "test": {"path": "table.csv"}})";
  write("2", csv);
  const std::string lines = "1,2,0\n3,4,1\n";
  std::ofstream(folder / "table.csv") << lines;
  result = check();
  CHECK(result.code == 0);
  CHECK_THAT(result.output, Contains("  data: training set: lines of 2 numbers and a label; test set: ") &&
                                !Contains("not checked"));
  CHECK_THAT(sizes().output, StartsWith("{\"parameters\": 6, \"worker_bytes\": null, "));
  write("3", csv);
  CHECK_THAT(check().output, Contains("gives the shape [3], but the data needs [2]"));
  // Of a large file the beginning is read.
  {
    std::ofstream large(folder / "table.csv");
    for (size_t bytes = 0; bytes <= 16 << 20; bytes += lines.size()) large << lines;
  }
  result = check();
  CHECK(result.code == 0);
  CHECK_THAT(result.output, Contains("  not checked: the values in the data files") &&
                                Contains("  not checked: whether the last layer has a logit for each class"));
  // How many lines the file has is not known.
  CHECK_THAT(sizes().output, StartsWith("{\"parameters\": 9, \"worker_bytes\": null, "));
  std::ofstream(folder / "table.csv") << "1,2,0\n3,four,1\n";
  CHECK(sizes().code == kExitConfig);
  CHECK_THAT(check().output, Contains("table.csv:2:3"));
}

TEST_CASE("config check refuses what weir up would refuse on this machine") {
  const std::filesystem::path folder = std::filesystem::path(std::getenv("TEST_TMPDIR")) / "check_as_up";
  std::filesystem::create_directories(folder);
  const std::string job = folder / "job.json";
  std::ofstream(job) << R"({"model": {"layers": [{"type": "flatten"}, {"type": "dense", "units": 8192}, )"
                        R"({"type": "dense", "units": 10}]}, "data": {"format": "digits"}})";
  std::ofstream(folder / "labels.csv") << "1,2,0\n3,4,7\n";
  const std::string csv = (folder / "labels.csv").string();
  struct Case {
    std::vector<std::string> set, says;
  };
  const std::string one = "`weir up` starts 1 worker, unless cluster.workers or --workers=N says how many";
  const std::vector<Case> cases = {
      {{"checkpoint.init_from=/nowhere"}, {"checkpoint.init_from: /nowhere"}},
      {{"checkpoint.directory=job.json/runs"},
       {"checkpoint.directory: " + job + "/runs: " + job + " is not a folder"}},
      {{"cluster.min_workers=2"},
       {"cluster.min_workers: must be at most cluster.workers, which is 1, got 2", one}},
      {{"consistency.backup_workers=1"},
       {"consistency.backup_workers: must be below cluster.workers, which is 1", one}},
      {{"debug={\"worker_delay\": 0.1, \"delayed_worker\": 1}"},
       {"debug.delayed_worker: must be below", one}},
      {{"wire.congestion_control=nosuch"},
       {"wire.congestion_control: congestion control \"nosuch\" is not known"}},
      {{"server.memory_limit_mib=4"}, {"server.memory_limit_mib allows 4.0 MiB"}},
      {{"data={\"format\": \"csv\", \"classes\": 3, \"train\": {\"path\": \"" + csv +
            "\"}, \"test\": {\"path\": \"" + csv + "\"}}",
        "model.layers[2].units=3"},
       {csv + ":2: the label is 7; data.classes has the classes 0 to 2"}},
  };
  for (const Case& c : cases) {
    std::vector<std::string> args = {"config", "check", job};
    for (const std::string& field : c.set) args.insert(args.end(), {"--set", field});
    const WeirResult result = Weir(args);
    INFO(result.output);
    CHECK(result.code == kExitConfig);
    for (const std::string& text : c.says) CHECK_THAT(result.output, Contains(text));
  }
  CHECK(Weir({"config", "check", job}).code == 0);
  CHECK(Weir({"config", "check", job, "--workers=2", "--set", "cluster.min_workers=2"}).code == 0);
  const WeirResult up = Weir({"up", job, "--set", "cluster.min_workers=2"});
  CHECK(up.code == kExitConfig);
  CHECK_THAT(up.output, Contains(one));
}

}  // namespace
}  // namespace weir

#include "cli/command_line/up_command.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_join.h"
#include "cli/command_line/shared_options.h"
#include "cli/commands/up.h"
#include "common/program/command_line.h"

namespace weir {

UpWords SplitOffProgram(int argc, char** argv) {
  char** const end = argv + argc;
  char** const dashes =
      argc > 1 && std::strcmp(argv[1], "up") == 0 ? std::find(argv, end, std::string("--")) : end;
  UpWords words;
  words.count = static_cast<int>(dashes - argv);
  if (dashes != end) words.program.emplace(dashes + 1, end);
  return words;
}

constexpr const char* kUpExamples = R"(Examples:
  weir up --ps=2 --workers=4 configs/digits.json
  weir up --ps=2 --workers=2 configs/fashion_mlp.json --seed=7 --summary=out.json
  weir up --workers=4 configs/digits.json --set 'consistency={"mode":"bounded","staleness":3}' --verbose
  weir up --ps=2 --workers=4 job.json -- python train.py ARGS

What follows -- is a program that each worker runs instead of `worker`, with its arguments.)";

void AddUpCommand(Commands& commands, std::optional<std::vector<std::string>> program) {
  const auto options = std::make_shared<UpOptions>();
  CLI::App* command = commands.Add("up", "Runs a job with servers and workers on this machine", kUpExamples);
  AddConfigFile(command, &options->config);
  command->add_option("--ps", options->ps, "Servers")->check(CLI::Range(1, 64))->capture_default_str();
  command->add_option("--workers", options->workers, "Workers (default: the config's cluster.workers, or 1)")
      ->check(CLI::Range(1, 256));
  command->add_option("--seed", options->seed, "Everything random follows from it (default: the config's)")
      ->check(WholeNumber());
  AddDevice(command, &options->device);
  AddOverrides(command, &options->overrides);
  command->add_option("--summary", options->summary, "Writes the summary there as JSON")->type_name("FILE");
  CLI::Option* log_dir =
      command
          ->add_option(
              "--log_dir", options->log_dir,
              "Logs of all tasks (default: a fresh folder in $TMPDIR or /tmp, which goes if all went well)")
          ->type_name("DIR");
  command->add_flag("--keep_logs", options->keep_logs, "Keeps that fresh folder, and names it")
      ->excludes(log_dir);
  command->add_flag(
      "--evaluator", options->evaluator,
      "Adds a task that evaluates every so often: `worker` the test set, PROGRAM what it likes");
  command->add_flag("--tls", options->tls,
                    "Mutual TLS between the tasks, with certificates made for this job");
  command
      ->add_option("--http_port", options->http_port,
                   "Port of ps:0's dashboard, /metrics, /healthz and /readyz; 0: any free port")
      ->check(CLI::Range(0, 65535));
  command
      ->add_option("--bin_dir", options->bin_dir,
                   "Where ps_server and worker are (default: beside this program)")
      ->type_name("DIR");
  command
      ->add_flag(
          "--restart{3}", options->restart,
          "Starts tasks that died again, each so many times (--restart alone: 3); servers only where the "
          "job has checkpoints")
      ->type_name("N")
      ->check(CLI::Range(0, 1000));
  CLI::Option* resume = command
                            ->add_option("--resume", options->resume,
                                         "Goes on with the job whose checkpoints are there, and saves there")
                            ->type_name("DIR");
  command
      ->add_option("--init_from", options->init_from,
                   "Starts a new job with the weights of a checkpoint, or of the newest of a folder "
                   "(DIR/best: the best)")
      ->type_name("DIR")
      ->excludes(resume);
  command->add_flag("--verbose", options->verbose,
                    "Shows all lines of all tasks, not warnings and errors alone");

  const bool has_program = program.has_value();
  if (has_program) options->program = *std::move(program);
  commands.OnRun(command, [command, options, has_program] {
    if (has_program && options->program.empty()) {
      return BadCommandLine(*command, "after -- comes a program, with its arguments");
    }
    return RunUp(*options);
  });
}

void HintAtDashes(const CLI::App& app, int argc, char** argv) {
  const std::vector<std::string> unknown = app.get_subcommand("up")->remaining();
  if (unknown.empty() || unknown.front()[0] == '-') return;
  std::vector<std::string> words(argv + 1, argv + argc);
  words.insert(std::find(words.begin(), words.end(), unknown.front()), "--");
  std::fprintf(stderr, "if `%s` is the program that each worker runs, put -- before it: weir %s\n",
               unknown.front().c_str(), absl::StrJoin(words, " ").c_str());
}

}  // namespace weir

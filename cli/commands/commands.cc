#include "cli/commands/commands.h"

#include <cstdio>
#include <cstdlib>

#include "common/config/written_text.h"
#include "common/program/command_line.h"
#include "common/rpc/tls.h"

namespace weir {

CLI::App* Commands::Add(const char* name, const char* what, const char* examples) {
  CLI::App* command = app_.add_subcommand(name, what);
  command->footer(examples);
  return command;
}

CLI::App* Commands::AddGroup(const char* name, const char* what, const char* examples) {
  CLI::App* group = Add(name, what, examples);
  group->require_subcommand(1);
  return group;
}

void Commands::OnRun(const CLI::App* command, Runner run) { runners_.emplace_back(command, std::move(run)); }

int Commands::Run() const {
  for (const auto& [command, run] : runners_) {
    if (command->parsed()) return run();
  }
  std::abort();  // a command has no runner
}

void AddConfigFile(CLI::App* command, std::string* config) {
  command->add_option("config", *config, "Job config (JSON with comments)")->type_name("FILE")->required();
}

void AddOverrides(CLI::App* command, std::vector<std::string>* overrides) {
  command->add_option("--set", *overrides, "Overrides a field of the config; may be given again")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void AddDevice(CLI::App* command, std::string* device) {
  command
      ->add_option(
          "--device", *device,
          "Where workers compute: auto (a GPU if there is one), cpu, cuda:N; cuda:0,cuda:1 for replicas "
          "in each worker")
      ->check([](const std::string& text) { return std::string(ParseDevices(text).status().message()); })
      ->capture_default_str();
}

std::vector<CLI::Option*> AddCluster(CLI::App* command, ClusterFlags* flags) {
  CLI::Option* cluster = command
                             ->add_option("--cluster", flags->cluster,
                                          "Cluster spec or a TF_CONFIG, or dns:ps=NAME:COUNT for pods")
                             ->type_name("FILE");
  CLI::Option* address = command->add_option("--address", flags->address, "Address of ps:0")
                             ->type_name("HOST:PORT")
                             ->excludes(cluster);
  FileOrVariable(
      command->add_option("--token_file", flags->token_file, "The job's token, if its servers have one"),
      "WEIR_TOKEN_FILE");
  AddTlsFlags(command, &flags->tls);
  return {cluster, address};
}

void AddCheckpoint(CLI::App* command, std::string* path, const char* what) {
  command->add_option("checkpoint", *path, what)->type_name("DIR")->required();
}

int Refuse(int exit_code, absl::string_view message) {
  std::fprintf(stderr, "error: %s\n", std::string(message).c_str());
  return exit_code;
}

CLI::Validator WholeNumber() {
  return CLI::Validator(
      [](const std::string& text) {
        const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        return digits ? "" : "must be a whole number from 0 to 2^64 - 1, got '" + text + "'";
      },
      "");
}

}  // namespace weir

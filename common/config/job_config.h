#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job_config.pb.h"

// A job's config: JSON with comments, read strictly into the schema of proto/job_config.proto. Pure
// functions, but for the files and folders that they name.
namespace weir {

// Reads, overrides, validates, and fills in what follows from the config alone (a layer's name, stride,
// padding and init). Every other default is the schema's: use the proto's accessors. An override
// ("a.b[0].c=value", see ApplyOverride() in job_config.cc) wins over the text and is applied before anything
// is checked. A "$schema", which is for editors, may stand in the text.
//
// Paths are checked (common/config/written_text.h), but relative ones and "~" stay.
//
// InvalidArgument with all problems found, one a line: "source:line:column: field.path: what is allowed, what
// was seen"; for a value from an override, "--set a.b=c" stands for the place.
absl::StatusOr<v1::JobConfig> ParseJobConfig(absl::string_view text, absl::string_view source,
                                             const std::vector<std::string>& overrides = {});

// ParseJobConfig() for a file, whose paths (data.*, checkpoint.*) become absolute. Relative paths, also those
// of overrides, start at the file's folder; "~" is the home folder.
absl::StatusOr<v1::JobConfig> LoadJobConfig(const std::string& path,
                                            const std::vector<std::string>& overrides = {});
// Makes the paths of a config from ParseJobConfig() absolute: relative ones start at `folder`, or at the
// working folder if that is "".
absl::Status MakePathsAbsolute(const std::string& folder, v1::JobConfig* config);

// JSON that parses back to an equal config, except that a section without content, which means nothing, is
// left out. With defaults, also shows the schema's defaults of fields that apply: momentum does not under
// adam. Fields whose default depends on what is found at run time (cluster.workers, data.scale) show only if
// they are set.
std::string ToJson(const v1::JobConfig& config, bool with_defaults);

// "" if workers with these configs may train together, else the first field that differs in words:
// "optimizer.learning_rate: expected 0.1, got 0.01", `expected` first. `debug` may differ, and so may the
// paths of data and checkpoints, but not whether there are any.
std::string FirstDifference(const v1::JobConfig& expected, const v1::JobConfig& got);

// Whether layers of this type compute in the host's memory by themselves, so that a worker with one needs the
// CPU.
bool IsForCpuOnly(v1::LayerConfig::Type type);

// Whether pushes travel in a quantised type (common/codec/value_codec.h).
bool QuantisesPushes(const v1::WireConfig& wire);

}  // namespace weir

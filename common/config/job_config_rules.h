#pragma once

#include "common/config/proto_json.h"
#include "proto/job_config.pb.h"

// Rules and defaults that need several fields of a job config at once.
namespace weir {

// Adds a problem for each impossible combination of fields. Each field alone is already valid.
void CheckJobConfigRules(const v1::JobConfig& config, ConfigProblems* problems);

// Returns whether an unset field applies, given its message's other fields: momentum does not under adam.
bool FieldApplies(const google::protobuf::Message& message, const google::protobuf::FieldDescriptor& field);

// Sets what follows from the config alone: each layer's name, stride, padding and init, columns'
// vocabularies, Lion's beta2, LAMB's epsilon, and a warm-up in epochs as its share of the job.
void FillContextDefaults(v1::JobConfig* config);

}  // namespace weir

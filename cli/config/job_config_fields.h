#pragma once

namespace weir {

// proto/job_config.proto as text, for people: who has installed a wheel or a bundle has no such file.
extern const char kJobConfigFields[];

}  // namespace weir

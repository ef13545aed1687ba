#pragma once

namespace weir {

// The text of proto/job_config.proto, for people: a wheel and a bundle do not have the file.
extern const char kJobConfigFields[];

}  // namespace weir

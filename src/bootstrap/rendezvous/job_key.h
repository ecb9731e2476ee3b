// These functions read the secrets of the job from their variables or from files.
#pragma once

#include <string>

#include "base/config.h"
#include "base/status.h"

namespace fdl {

// Returns an empty key if none is set. A file (a mounted Secret) may end in newlines. A key that is too short,
// not counting spaces at its ends, and a file that cannot be read or contains a NUL byte are errors that name their
// variable.
Result<std::string> given_job_key(const Config& config);
// The same for the secret of the metrics endpoint, of any length.
Result<std::string> given_metrics_token(const Config& config);

}  // namespace fdl

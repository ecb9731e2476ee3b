// given_job_key() reads the secret of the job from its variable or from a file.
#pragma once

#include <string>

#include "base/config.h"
#include "base/status.h"

namespace fdl {

// Returns an empty key if none is set. A file (a mounted Secret) may end in newlines. A key that is too short and a
// file that cannot be read are errors that name their variable.
Result<std::string> given_job_key(const Config& config);

}  // namespace fdl

// Job key: the secret that was given to the job, from its variable or from a file.
#pragma once

#include <string>

#include "base/config.h"
#include "base/status.h"

namespace fdl {

// Empty where none was given. A file (a mounted Secret) may end in newlines. A key that is too short, and a file that
// cannot be read, are errors that say which.
Result<std::string> given_job_key(const Config& config);

}  // namespace fdl

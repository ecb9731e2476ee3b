// read_small_file reads a regular file of bounded size.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "base/status.h"

namespace fdl {

// Returns the whole content, or nothing if there is no such file. Anything but a regular file is not opened, because a
// pipe could wait without end and a device need not end. Such a file and a longer one are INVALID_ARGUMENT; errors of
// the system are those of Status::from_errno(). All texts quote the path.
Result<std::optional<std::string>> read_small_file(const std::string& path, std::size_t most_bytes);

}  // namespace fdl

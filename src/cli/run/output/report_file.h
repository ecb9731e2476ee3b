// The file of --report, which the launcher writes when a rank has failed.
#pragma once

#include <string>

#include "base/status.h"

namespace fdl {

// Returns whether the file can be written later, without making it: its absence tells that no rank has failed.
Status check_report_file(const std::string& path);

// Writes one line. It does not wait for the reader of a pipe. The error names the option, the file and the reason.
Status write_report_file(const std::string& path, const std::string& line);

}  // namespace fdl

// PMIx, through the library of the launcher, opened at run time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/launcher_service/launcher_service.h"

namespace fdl {

// Returns the files to try, in order: FARANDOLE_PMIX_LIBRARY alone if it is set; else those of the installation that
// started this process; else the loader's own.
std::vector<std::string> find_pmix(const Variables& variables, const Config& config);

// Opens the first of the files, unless a libpmix is in this process already. UNSUPPORTED lists what was tried.
Result<std::unique_ptr<LauncherService>> open_pmix(const std::vector<std::string>& files);

// Returns whether open_pmix() would find a library. Loads nothing.
bool has_pmix(const Variables& variables, const Config& config);

}  // namespace fdl

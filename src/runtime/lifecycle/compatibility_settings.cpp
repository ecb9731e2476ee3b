// The settings that describe the build come first in the list, because other differences may follow from them.
#include "runtime/lifecycle/compatibility_settings.h"

#include "algorithms/catalog.h"
#include "base/version.h"
#include "runtime/lifecycle/assemble.h"

namespace fdl {

std::vector<CompatibilitySetting> compatibility_settings(const Config& config, const TuningTable& table) {
  constexpr const char* build = "install the same build of farandole on all hosts";
  std::vector<CompatibilitySetting> settings{{"version of farandole", std::string(kVersion), build},
                                             {"transports built in", built_transports(), build},
                                             {"algorithms", catalog_fingerprint(), build}};
  for (const Setting& setting : config.settings) {
    if (!setting.alike) continue;
    settings.push_back({setting.name, setting.meant, "set " + setting.variable + " to one value on all ranks"});
  }
  settings.push_back(
      {"tuning table", table.fingerprint(),
       "name one table on all ranks with FARANDOLE_TUNING (`farandole config` says which is in force), or "
       "set it to built-in everywhere"});
  return settings;
}

}  // namespace fdl

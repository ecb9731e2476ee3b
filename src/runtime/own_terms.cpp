// Own terms: the build first, for what else differs may only follow from it.
#include "runtime/own_terms.h"

#include "algorithms/catalog.h"
#include "base/version.h"
#include "runtime/assemble.h"

namespace fdl {

std::vector<Term> own_terms(const Config& config, const TuningTable& table) {
  static const std::string build = "install the same build of farandole on all hosts";
  std::vector<Term> terms{{"version of farandole", std::string(kVersion), build},
                          {"transports built in", built_transports(), build},
                          {"algorithms", catalog_fingerprint(), build}};
  for (const Setting& setting : config.settings) {
    if (!setting.alike) continue;
    terms.push_back({setting.name, setting.meant, "set " + setting.variable + " to one value on all ranks"});
  }
  terms.push_back({"tuning table", table.fingerprint(),
                   "name one table on all ranks with FARANDOLE_TUNING (`farandole config` says which is in force), or "
                   "set it to built-in everywhere"});
  return terms;
}

}  // namespace fdl

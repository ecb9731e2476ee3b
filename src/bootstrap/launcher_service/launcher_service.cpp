// launcher_service() keeps one object for each service.
#include "bootstrap/launcher_service/launcher_service.h"

#include <fmt/core.h>

#include <cstdlib>
#include <memory>

#include "base/mutex.h"
#include "bootstrap/launcher_service/pmi_service.h"
#include "bootstrap/launcher_service/pmix_service.h"

namespace fdl {

Status not_all_came(std::string_view service) {
  return Status(
      Code::timeout,
      fmt::format("{}: not all ranks that the launcher started have reached the start of farandole in time; the "
                  "launcher does not tell which; look for a rank that is still busy before init, or raise "
                  "FARANDOLE_START_TIMEOUT_S",
                  service));
}

Result<LauncherService*> launcher_service(std::string_view name, const Variables& variables, const Config& config) {
  static Mutex mutex;
  // Intentionally leaked, because threads of the service may run while the process exits. The handlers below leave it.
  static auto& pmi = *new std::unique_ptr<LauncherService>;
  static auto& pmix = *new std::unique_ptr<LauncherService>;
  MutexLock lock(mutex);
  if (name == "pmi") {
    if (!pmi) {
      FDL_ASSIGN_OR_RETURN(pmi, open_pmi(variables));
      std::atexit([] { pmi->leave(); });
    }
    return pmi.get();
  }
  if (name == "pmix") {
    if (!pmix) {
      FDL_ASSIGN_OR_RETURN(pmix, open_pmix(find_pmix(variables, config)));
      std::atexit([] { pmix->leave(); });
    }
    return pmix.get();
  }
  return Status(Code::invalid_argument,
                fmt::format("the rendezvous 'launcher://{}' names no service of a launcher; use launcher://pmix or "
                            "launcher://pmi",
                            name));
}

bool has_launcher_service(std::string_view name, const Variables& variables, const Config& config) {
  if (name == "pmi") return has_pmi(variables);
  return name == "pmix" && has_pmix(variables, config);
}

}  // namespace fdl

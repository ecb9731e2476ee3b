// MetricsServer finds and loads the metrics module.
#include "runtime/telemetry/metrics_server.h"

#include <dlfcn.h>
#include <signal.h>

#include <string>

namespace fdl {
namespace {

// The folder of the file that contains this code: of the shared library, or of an executable that links the library
// statically.
std::string own_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

Status cannot(int port, const std::string& why) {
  return Status(Code::resource, "metrics on port " + std::to_string(port) + ": " + why);
}

}  // namespace

Result<std::unique_ptr<MetricsServer>> serve_metrics(const std::shared_ptr<const Metrics>& metrics,
                                                     const MetricsAddress& address) {
  const int port = address.port;
  void* module = ::dlopen((own_folder() + kMetricsModule).c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed
  if (module == nullptr) {
    const char* why = ::dlerror();
    return cannot(port,
                  std::string(why == nullptr ? "no module" : why) +
                      "; the module needs Debian's libprometheus-cpp-core1.0, and FARANDOLE_METRICS when it is built");
  }
  const auto entry_point = reinterpret_cast<MetricsEntryPoint>(::dlsym(module, kMetricsEntryPoint));
  if (entry_point == nullptr) return cannot(port, std::string(kMetricsModule) + " is of another version");
  // The server's thread inherits the mask and so takes no signals.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::string why;
  std::unique_ptr<MetricsServer> server(entry_point(metrics, address, why));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (server == nullptr)
    return cannot(port, why +
                            "; set FARANDOLE_METRICS_PORT to a free port, and FARANDOLE_METRICS_ADDRESS to an address "
                            "of this host or *");
  return server;
}

}  // namespace fdl

// The functions are looked up in the version that the header of this build has: later libraries keep those.
#include "transports/ofi/ofi_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"

namespace fdl {
namespace {

constexpr const char* kSoname = "libfabric.so.1";
constexpr uint32_t kInterface = FI_VERSION(1, 9);      // what this code was written for
constexpr uint32_t kNewInterface = FI_VERSION(1, 18);  // asked for by it, the provider efa uses the device's own writes

template <typename Function>
bool look_up(void* library, const char* name, const char* version, Function& function) {
  void* found = ::dlvsym(library, name, version);
  if (found == nullptr) found = ::dlsym(library, name);
  function = reinterpret_cast<Function>(found);
  return found != nullptr;
}

std::string file_of(void* function) {
  Dl_info info{};
  return ::dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : kSoname;
}

}  // namespace

Status OfiLibrary::open(const Config& config) {
  std::vector<std::string> files;
  if (!config.ofi_library.empty()) {
    files = {config.ofi_library};
  } else {
    files = {"/opt/amazon/efa/lib/libfabric.so.1", "/opt/amazon/efa/lib64/libfabric.so.1", kSoname};
  }
  // The providers psm and psm2 would install handlers of SIGSEGV that write files into the current folder.
  for (const char* name : {"HFI_NO_BACKTRACE", "IPATH_NO_BACKTRACE"}) ::setenv(name, "1", 0);
  // Kernels before 5.15 copy registered pages after a fork, so that the device writes into pages of the child.
  ::setenv("FI_EFA_FORK_SAFE", "1", 0);
  void* library = config.ofi_library.empty() ? ::dlopen(kSoname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
  std::string tried;
  for (std::size_t i = 0; library == nullptr && i < files.size(); ++i) {
    library = ::dlopen(files[i].c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) tried += fmt::format("{}{}", tried.empty() ? "" : "; ", ::dlerror());
  }
  if (library == nullptr) {
    return Status(Code::unsupported,
                  fmt::format("ofi: libfabric was not found ({}); install Debian's libfabric1 or AWS's EFA installer, "
                              "or name the file in FARANDOLE_OFI_LIBRARY",
                              tried));
  }
  if (!look_up(library, "fi_version", "FABRIC_1.0", version_of_) ||
      !look_up(library, "fi_strerror", "FABRIC_1.0", text_of_) ||
      !look_up(library, "fi_dupinfo", "FABRIC_1.3", duplicate_) ||
      !look_up(library, "fi_freeinfo", "FABRIC_1.3", free_) || !look_up(library, "fi_getinfo", "FABRIC_1.3", find_) ||
      !look_up(library, "fi_fabric", "FABRIC_1.1", fabric_)) {
    return Status(Code::unsupported,
                  fmt::format("ofi: {} is not libfabric: {}; name another file in FARANDOLE_OFI_LIBRARY", files.back(),
                              ::dlerror()));
  }
  const uint32_t version = version_of_();
  version_ = fmt::format("{}.{}", FI_MAJOR(version), FI_MINOR(version));
  description_ = fmt::format("libfabric {} ({})", version_, file_of(reinterpret_cast<void*>(find_)));
  interface_ = FI_VERSION_LT(version, kNewInterface) ? kInterface : kNewInterface;
  if (FI_VERSION_LT(version, kInterface)) {
    return Status(Code::unsupported, fmt::format("ofi: {} is too old; farandole needs 1.9 or newer", description_));
  }
  return {};
}

Result<OfiLibrary::Infos> OfiLibrary::find(const fi_info* hints) const {
  fi_info* found = nullptr;
  const int code = find_(interface_, nullptr, nullptr, 0, hints, &found);
  if (code != 0) return Status(Code::unsupported, fmt::format("fi_getinfo: {} ({})", text_of(code), code));
  return Infos(found, free_);
}

Result<const OfiLibrary*> OfiLibrary::of_process(const Config& config) {
  static Mutex mutex;
  static const OfiLibrary* only = nullptr;  // never destroyed: providers have threads
  MutexLock lock(mutex);
  if (only == nullptr) {
    auto opened = std::make_unique<OfiLibrary>();
    FDL_RETURN_IF_ERROR(opened->open(config));
    only = opened.release();
  }
  return only;
}

}  // namespace fdl

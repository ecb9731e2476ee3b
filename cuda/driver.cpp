// Driver::open() loads the library, looks up every function, and reports a missing one with what to install.
#include "cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <map>
#include <memory>

#include "base/mutex.h"

namespace fdl::cuda {
namespace {

constexpr int kOldest = 11040;  // the first version with all functions that are used here

// The error for a library that dlopen() refuses.
Status not_opened(const std::string& library) {
  const char* reason = ::dlerror();
  return Status(
      Code::unsupported,
      fmt::format("cuda: the driver {} cannot be opened ({}): install NVIDIA's driver, and in a container run "
                  "it with the NVIDIA container runtime; FARANDOLE_CUDA_LIBRARY names another",
                  library, reason == nullptr ? "no reason given" : reason));
}

// Fills all function pointers of `driver`. A missing function means a wrong library or a driver that is too old.
Status look_up(void* handle, Driver& driver) {
  std::string missing;
#define ROW(name, parameters)                                                    \
  driver.name = reinterpret_cast<decltype(driver.name)>(::dlsym(handle, #name)); \
  if (driver.name == nullptr && missing.empty()) missing = #name;
  FDL_CUDA_FUNCTIONS(ROW)
#undef ROW
#define ROW(name, parameters) driver.name = reinterpret_cast<decltype(driver.name)>(::dlsym(handle, #name));
  FDL_NEWER_CUDA_FUNCTIONS(ROW)
#undef ROW
  if (missing.empty()) return ok_status();
  if (driver.cuDriverGetVersion == nullptr) {
    return Status(Code::unsupported, fmt::format("cuda: {} is no CUDA driver: it has no {}", driver.library, missing));
  }
  (void)driver.cuDriverGetVersion(&driver.version);
  return Status(Code::unsupported,
                fmt::format("cuda: the driver {} is too old: it serves CUDA {} and has no {}; {} or newer is needed",
                            driver.library, version_text(driver.version), missing, version_text(kOldest)));
}

// Initializes the driver and reads its version.
Status begin(Driver& driver) {
  const Outcome outcome = driver.cuInit(0);
  if (outcome == kNoDevice) {
    return Status(Code::unsupported,
                  "cuda: the driver finds no device (CUDA_ERROR_NO_DEVICE): is one attached, and is "
                  "CUDA_VISIBLE_DEVICES empty? nvidia-smi -L lists them");
  }
  if (outcome != kSuccess) {
    return Status(Code::unsupported,
                  fmt::format("cuda: the driver does not start: cuInit: {}; try nvidia-smi", driver.describe(outcome)));
  }
  (void)driver.cuDriverGetVersion(&driver.version);
  return ok_status();
}

Result<const Driver*> open_now(const std::string& name) {
  auto driver = std::make_unique<Driver>();
  driver->library = name.empty() ? "libcuda.so.1" : name;
  void* const handle = ::dlopen(driver->library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return not_opened(driver->library);
  FDL_RETURN_IF_ERROR(look_up(handle, *driver));
  FDL_RETURN_IF_ERROR(begin(*driver));
  return static_cast<const Driver*>(driver.release());  // intentionally leaked: lives until the process exits
}

}  // namespace

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

Result<const Driver*> Driver::open(const std::string& library) {
  static Mutex mutex;
  // Intentionally leaked, so that it outlives every static object that may call. Failures are kept, too: a driver does
  // not appear later.
  static auto* const opened = new std::map<std::string, Result<const Driver*>>;
  const MutexLock lock(mutex);
  const auto found = opened->find(library);
  if (found != opened->end()) return found->second;
  return opened->emplace(library, open_now(library)).first->second;
}

std::string Driver::describe(Outcome outcome) const {
  // Both stay null if the driver has no such number.
  const char* name = nullptr;
  const char* text = nullptr;
  (void)cuGetErrorName(outcome, &name);
  (void)cuGetErrorString(outcome, &text);
  return fmt::format("{} ({}): {}", name == nullptr ? "an unknown error" : name, outcome,
                     text == nullptr ? "no description" : text);
}

}  // namespace fdl::cuda

// Finds the MPI of this process: what it has loaded comes first, so that the process does not get a second one.
#include "transports/mpi/mpi_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "base/log.h"
#include "base/mutex.h"
#include "system/process/process.h"
#include "transports/mpi/mpi_adaptor.h"

namespace fdl {
namespace {

// An ABI: the names of its libraries, and a symbol that no other has (null: recognized by name alone).
struct Abi {
  const char* name;
  std::vector<std::string> files;
  const char* symbol;
  MakeMpiAdaptor (*adaptor)();
};

// In the order in which a library is compared with them. Intentionally leaked, because threads may run while the
// process exits.
const std::vector<Abi>& abis() {
  static const auto& all = *new std::vector<Abi>{
      {"Open MPI", {"libmpi.so.40"}, "ompi_mpi_comm_world", open_mpi_adaptor},
      {"the standard ABI of MPI 5", {"libmpi_abi.so.1", "libmpi_abi.so.0"}, nullptr, standard_mpi_adaptor},
      {"MPICH", {"libmpi.so.12", "libmpich.so.12"}, nullptr, mpich_adaptor},
  };
  return all;
}

const Abi& open_mpi() { return abis().front(); }
const Abi& mpich() { return abis().back(); }

std::string name_in(const std::string& path) { return std::filesystem::path(path).filename().string(); }

const Abi& abi_of(void* library, const std::string& file) {
  for (const Abi& abi : abis()) {
    if (abi.symbol != nullptr ? ::dlsym(library, abi.symbol) != nullptr : name_in(file).starts_with("libmpi_abi")) {
      return abi;
    }
  }
  return mpich();
}

// The libraries of this process whose name is that of an MPI.
std::vector<std::string> loaded() {
  std::vector<std::string> found;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        const std::string name = name_in(info->dlpi_name);
        for (const Abi& abi : abis()) {
          for (const std::string& file : abi.files) {
            if (name == file || name.starts_with(file + ".")) {
              static_cast<std::vector<std::string>*>(data)->emplace_back(info->dlpi_name);
            }
          }
        }
        return 0;
      },
      &found);
  return found;
}

bool is_started(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD);
  int started = 0;
  if (library == nullptr) return false;
  if (auto* initialized = reinterpret_cast<int (*)(int*)>(::dlsym(library, "MPI_Initialized"))) initialized(&started);
  return started != 0;
}

// A process can have several MPIs, if its packages bring their own. Only one of them can have been started.
Result<std::optional<std::string>> choose_loaded() {
  const std::vector<std::string> found = loaded();
  if (found.empty()) return std::optional<std::string>();
  std::vector<std::string> started;
  for (const std::string& file : found) {
    if (is_started(file)) started.push_back(file);
  }
  const auto& candidates = started.empty() ? found : started;
  if (candidates.size() == 1) return std::optional(candidates.front());
  return Status(
      Code::unsupported,
      fmt::format("mpi: this process has loaded {} MPIs{}: {}; name the one to use in FARANDOLE_MPI_LIBRARY",
                  candidates.size(), started.empty() ? "" : " and started them", fmt::join(candidates, ", ")));
}

// The files to try for the launcher that started this process, with the ABI of that launcher.
struct FromLauncher {
  const Abi* abi = nullptr;
  std::string launcher;
  std::vector<std::string> files;
};
FromLauncher choose_by_launcher(const Environment& environment) {
  FromLauncher chosen;
  if (environment.has("OMPI_COMM_WORLD_RANK")) {
    chosen = {&open_mpi(), "Open MPI's mpirun", {}};
  } else if (environment.has("PMI_RANK")) {
    chosen = {&mpich(), "a launcher that speaks PMI (MPICH, Intel MPI)", {}};
  } else {
    return chosen;
  }
  std::vector<std::filesystem::path> prefixes;
  for (const char* name : {"OPAL_PREFIX", "I_MPI_ROOT"}) {
    if (const auto prefix = environment.get(name)) prefixes.emplace_back(*prefix);
  }
  if (const auto launcher = prefix_of_parent()) prefixes.emplace_back(*launcher);
  std::error_code error;
  for (const auto& prefix : prefixes) {
    for (const char* folder : {"lib", "lib64", "lib/release"}) {
      for (const std::string& file : chosen.abi->files) {
        if (std::filesystem::exists(prefix / folder / file, error)) chosen.files.push_back(prefix / folder / file);
      }
    }
  }
  chosen.files.insert(chosen.files.end(), chosen.abi->files.begin(), chosen.abi->files.end());
  return chosen;
}

Result<std::unique_ptr<MpiLibrary>> open(const Config& config) {
  std::vector<std::string> files;
  std::string why;
  if (!config.mpi_library.empty()) {
    files = {config.mpi_library};
    why = "FARANDOLE_MPI_LIBRARY";
  } else {
    FDL_ASSIGN_OR_RETURN(const auto present, choose_loaded());
    if (present) {
      files = {*present};
    } else {
      FromLauncher found = choose_by_launcher(Environment::of_process());
      files = std::move(found.files);
      why = std::move(found.launcher);
    }
  }
  if (files.empty()) {
    return Status(Code::unsupported,
                  "mpi: no mpirun has started this process and no MPI is loaded; start it with mpirun, or name the "
                  "library in FARANDOLE_MPI_LIBRARY");
  }
  std::string tried;
  for (const std::string& file : files) {
    // Open MPI's own plug-ins look its symbols up among all libraries of the process.
    void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      tried += fmt::format("{}{}", tried.empty() ? "" : "; ", ::dlerror());
      continue;
    }
    const Abi& abi = abi_of(library, file);
    const MakeMpiAdaptor make = abi.adaptor();
    if (make != nullptr) return make(library, file);
    return Status(
        Code::unsupported,
        fmt::format("mpi: {} has the ABI of {}, which this build of farandole does not know; use another MPI, "
                    "or build farandole where that MPI's header is installed",
                    file, abi.name));
  }
  return Status(Code::unsupported,
                fmt::format("mpi: the library of {} was not found ({}); install it, or name its file in "
                            "FARANDOLE_MPI_LIBRARY",
                            why, tried));
}

}  // namespace

Result<MpiLibrary*> MpiLibrary::of_process(const Config& config) {
  static Mutex mutex;
  static MpiLibrary* only = nullptr;  // never destroyed: MPI ends with the process
  MutexLock lock(mutex);
  if (only == nullptr) {
    FDL_ASSIGN_OR_RETURN(auto opened, open(config));
    only = opened.release();
    log_at(only->world_rank() == 0 ? LogLevel::info : LogLevel::debug, "mpi: {}", only->description());
  }
  return only;
}

}  // namespace fdl

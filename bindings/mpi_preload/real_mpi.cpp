// RealMpi is looked up behind this library, in the order of the loader; else in a library that was opened later.
#include "real_mpi.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "report.h"

namespace fdl::mpi_preload {
namespace {

#ifdef OPEN_MPI
constexpr const char* kAbi = "openmpi";
#elif FDL_STANDARD_MPI
constexpr const char* kAbi = "standard";
#else
constexpr const char* kAbi = "mpich";
#endif

const char* name_in(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}
bool begins_with(const char* text, const char* begin) { return std::strncmp(text, begin, std::strlen(begin)) == 0; }

// A program such as a Python may open its MPI without making it global. The file is found by its name then.
void* opened_mpi() {
  void* found = nullptr;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* result) {
        const char* name = name_in(info->dlpi_name);
        if (!begins_with(name, "libmpi.so") && !begins_with(name, "libmpich.so") && !begins_with(name, "libmpi_abi.so")) {
          return 0;
        }
        *static_cast<void**>(result) = ::dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
        return 1;
      },
      &found);
  return found;
}

// Open MPI alone has that variable; a library of the standard ABI is known by its name.
const char* abi_of_process() {
  if (find_symbol("ompi_mpi_comm_world") != nullptr) return "openmpi";
  Dl_info file{};
  void* start = find_symbol("PMPI_Init");
  if (start == nullptr || ::dladdr(start, &file) == 0) return kAbi;  // a missing function is reported by its name
  return begins_with(name_in(file.dli_fname), "libmpi_abi.so") ? "standard" : "mpich";
}

void check_abi() {
  if (const char* abi = abi_of_process(); std::strcmp(abi, kAbi) != 0) {
    end_process("this library has the ABI %s, but the program has loaded an MPI of another ABI; preload "
                "libfarandole_mpi_preload_%s.so instead",
                kAbi, abi);
  }
}

template <typename Function>
void look_up(Function& function, const char* name, bool is_needed) {
  function = reinterpret_cast<Function>(find_symbol(name));
  if (function == nullptr && is_needed) end_process("the program has loaded no MPI with %s; MPI 3 is needed", name);
}

RealMpi load() {
  check_abi();
  RealMpi all{};
#define ROW(name) look_up(all.name, "PMPI_" #name, true);
  FDL_REAL_SUPPORT(ROW)
#undef ROW
#define FDL_ROW(name, function, parameters, arguments) look_up(all.name, "PMPI_" #name, true);
#include "collective_rows.h"
#if MPI_VERSION >= 4
  // An older library has none, and then the program calls none.
#define FDL_ROW(name, function, parameters, arguments) look_up(all.name##_c, "PMPI_" #name "_c", false);
#include "collective_rows.h"
#endif
#define FDL_PERSISTENT(name, function, parameters, arguments, ours) \
  look_up(all.name, "PMPI_" #name, false);                          \
  look_up(all.of_long_counts.name##_c, "PMPI_" #name "_c", false);
#include "persistent_rows.h"
  all.world = MPI_COMM_WORLD;
  all.self = MPI_COMM_SELF;
  all.no_comm = MPI_COMM_NULL;
  all.integer = MPI_INT;
  all.byte = MPI_BYTE;
  all.real_number = MPI_FLOAT;
  all.minimum = MPI_MIN;
  all.sum = MPI_SUM;
  all.errors_return = MPI_ERRORS_RETURN;
  return all;
}

}  // namespace

void* find_symbol(const char* name) {
  if (void* found = ::dlsym(RTLD_NEXT, name)) return found;
  static void* const library = opened_mpi();
  return library == nullptr ? nullptr : ::dlsym(library, name);
}

// A program may hold the library's variable itself (a copy relocation), so its own scope comes first.
void* variable_of_mpi(const char* name) {
  if (void* found = ::dlsym(RTLD_DEFAULT, name)) return found;
  return find_symbol(name);
}

const RealMpi& real() {
  static const RealMpi all = load();
  return all;
}

}  // namespace fdl::mpi_preload

// NcclLibrary finds libnccl, reads its version, and looks up the functions of that version.
#include "transports/nccl/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <optional>

namespace fdl {
namespace {

constexpr const char* kSoname = "libnccl.so.2";
constexpr int kFlags = RTLD_NOW | RTLD_LOCAL;

struct Found {
  void* library = nullptr;
  const char* origin = "";
};

// Attempts collects the errors of dlopen, for the error in case all attempts fail.
class Attempts {
 public:
  void* open(const std::string& path, int flags = kFlags) {
    void* library = ::dlopen(path.c_str(), flags);
    if (library == nullptr) note(path, ::dlerror());
    return library;
  }
  void note(const std::string& what, const char* why) {
    tried_ += fmt::format("{}{}: {}", tried_.empty() ? "" : "; ", what, why == nullptr ? "failed" : why);
  }
  const std::string& tried() const { return tried_; }

 private:
  std::string tried_;
};

// Python packages are installed side by side: farandole in site-packages/farandole, NVIDIA's in
// site-packages/nvidia/nccl.
std::optional<std::string> beside_this_library() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<void*>(&nccl_version_text), &here) == 0 || here.dli_fname == nullptr) return {};
  std::error_code ignored;
  // Searches beside each of the five folders above this library.
  std::filesystem::path folder = std::filesystem::weakly_canonical(here.dli_fname, ignored).parent_path();
  for (int up = 0; up < 5 && folder.has_relative_path(); ++up, folder = folder.parent_path()) {
    const auto candidate = folder / "nvidia/nccl/lib" / kSoname;
    if (std::filesystem::exists(candidate, ignored)) return candidate.string();
  }
  return {};
}

// The order is documented at NcclLibrary::open().
Result<Found> find(const std::string& path) {
  Attempts attempts;
  if (!path.empty()) {
    if (void* library = attempts.open(path)) return Found{library, "set by nccl_library"};
    return Status(Code::unsupported, fmt::format("nccl: cannot open what nccl_library names ({})", attempts.tried()));
  }
  // A loaded NCCL is preferred, so that the process does not get a second one.
  if (void* library = ::dlopen(kSoname, kFlags | RTLD_NOLOAD)) return Found{library, "already in this process"};
  if (const auto packaged = beside_this_library()) {
    if (void* library = attempts.open(*packaged)) return Found{library, "Python's nvidia-nccl"};
  } else {
    attempts.note("nvidia/nccl/lib", "not beside this library");
  }
  if (void* library = attempts.open(kSoname)) return Found{library, "the system's"};
  return Status(
      Code::unsupported,
      fmt::format("nccl: no {} found ({}); install the Python package nvidia-nccl-cu12 or nvidia-nccl-cu13, or "
                  "name the file in FARANDOLE_NCCL_LIBRARY",
                  kSoname, attempts.tried()));
}

// The path of the library that contains a function.
std::string file_of(const void* function) {
  Dl_info info{};
  return ::dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "?";
}

void* symbol(void* library, const char* name) { return ::dlsym(library, name); }

// Fills `functions`. Returns the first function that every version has and this library lacks, or null.
const char* look_up(void* library, int version, nccl::Functions& functions) {
  const char* missing = nullptr;
// Only functions that every version has are required; the others stay null.
#define ROW(name, since, result, arguments)                                                     \
  if (version >= since) {                                                                       \
    functions.name = reinterpret_cast<decltype(functions.name)>(symbol(library, "nccl" #name)); \
    if (since == 0 && functions.name == nullptr && missing == nullptr) missing = "nccl" #name;  \
  }
  FDL_NCCL_FUNCTIONS(ROW)
#undef ROW
  return missing;
}

}  // namespace

std::string nccl_version_text(int version) {
  // Versions before 2.9 were numbered with fewer digits.
  if (version < 10000) return fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

NcclFeatures nccl_features(int version, const std::function<bool(const char*)>& has_symbol) {
  NcclFeatures features;
#define ROW(name, since, symbol, meaning) features.name = version >= since && (*symbol == '\0' || has_symbol(symbol));
  FDL_NCCL_FEATURES(ROW)
#undef ROW
  return features;
}

std::string describe(const NcclFeatures& features) {
  std::string names;
#define ROW(name, since, symbol, meaning) \
  if (features.name) names += names.empty() ? #name : ", " #name;
  FDL_NCCL_FEATURES(ROW)
#undef ROW
  return names;
}

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::open(const std::string& path) {
  FDL_ASSIGN_OR_RETURN(const Found found, find(path));
  auto library = std::make_shared<NcclLibrary>();
  const auto get_version =
      reinterpret_cast<decltype(nccl::Functions::GetVersion)>(symbol(found.library, "ncclGetVersion"));
  if (get_version == nullptr || get_version(&library->version_) != nccl::Outcome::success) {
    return Status(Code::unsupported,
                  fmt::format("nccl: {} is not NCCL: it does not return its version", path.empty() ? kSoname : path));
  }
  library->file_ = file_of(reinterpret_cast<const void*>(get_version));
  library->origin_ = found.origin;
  if (library->version_ < kNcclMinimum) {
    return Status(Code::unsupported, fmt::format("nccl: {} is NCCL {}, too old; 2.18 or newer is needed",
                                                 library->file_, nccl_version_text(library->version_)));
  }
  if (const char* missing = look_up(found.library, library->version_, library->functions_)) {
    return Status(Code::unsupported, fmt::format("nccl: {} (NCCL {}) has no {}; it is damaged or not NVIDIA's NCCL",
                                                 library->file_, nccl_version_text(library->version_), missing));
  }
  library->features_ =
      nccl_features(library->version_, [&](const char* name) { return symbol(found.library, name) != nullptr; });
  return std::shared_ptr<const NcclLibrary>(std::move(library));
}

std::string NcclLibrary::text_for(nccl::Outcome outcome, nccl::Comm comm) const {
  const char* what = functions_.GetErrorString(outcome);
  const char* last = functions_.GetLastError(comm);
  std::string words = what == nullptr ? fmt::format("error {}", static_cast<int>(outcome)) : what;
  if (last != nullptr && *last != '\0') words += fmt::format(" ({})", last);
  return words;
}

std::string NcclLibrary::description() const {
  const std::string features = describe(features_);
  return fmt::format("NCCL {} ({}, {}){}{}", nccl_version_text(version_), file_, origin_, features.empty() ? "" : ": ",
                     features);
}

}  // namespace fdl

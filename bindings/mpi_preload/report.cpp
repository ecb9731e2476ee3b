// One error class of MPI stands for all failures of farandole. Its text is that of the last one.
#include "report.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "host_world.h"
#include "real_mpi.h"

namespace fdl::mpi_preload {
namespace {

void print(const char* format, va_list arguments) {
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  std::fprintf(stderr, "farandole: MPI preload: %s\n", text);
}

Level least_level() {
  const char* name = std::getenv("FARANDOLE_LOG_LEVEL");
  if (name == nullptr) return Level::warning;
  if (std::strcmp(name, "trace") == 0 || std::strcmp(name, "debug") == 0) return Level::debug;
  return std::strcmp(name, "info") == 0 ? Level::info : Level::warning;
}

bool is_zero(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::strcmp(value, "0") == 0;
}

}  // namespace

void say(Level level, const char* format, ...) {
  if (level < least_level()) return;
  va_list arguments;
  va_start(arguments, format);
  print(format, arguments);
  va_end(arguments);
}

void end_process(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print(format, arguments);
  va_end(arguments);
  std::_Exit(1);
}

bool is_wanted() { return !is_zero("FARANDOLE_MPI_PRELOAD"); }

bool is_measuring() { return !is_zero("FARANDOLE_MPI_PRELOAD_MEASURE"); }

bool is_spin_set() { return std::getenv("FARANDOLE_SPIN_US") != nullptr; }

int enough_worth() {
  constexpr int kEnough = 32;
  const char* wish = std::getenv("FARANDOLE_MPI_PRELOAD_AFTER");
  if (wish == nullptr) return kEnough;
  char* end = nullptr;
  const long worth = std::strtol(wish, &end, 10);
  if (end != wish && *end == 0 && worth >= 0 && worth <= 1'000'000) return static_cast<int>(worth);
  say(Level::warning, "FARANDOLE_MPI_PRELOAD_AFTER=%s is ignored: give a number from 0 to 1000000", wish);
  return kEnough;
}

int code_of(fdl_result result, MPI_Comm comm) {
  if (result != FDL_OK) return raise_last_error(comm);
  catch_up();
  return MPI_SUCCESS;
}

int raise_last_error(MPI_Comm comm) {
  static std::mutex mutex;
  static int code = 0;
  {
    const std::lock_guard lock(mutex);
    if (int made = 0; code == 0 && real().Add_error_class(&made) == MPI_SUCCESS) real().Add_error_code(made, &code);
    std::string text = std::string("farandole: ") + fdl_last_error()->text;
    if (text.size() >= MPI_MAX_ERROR_STRING) text.resize(MPI_MAX_ERROR_STRING - 1);
    real().Add_error_string(code, text.c_str());
  }
  real().Comm_call_errhandler(comm, code);
  return code;
}

}  // namespace fdl::mpi_preload

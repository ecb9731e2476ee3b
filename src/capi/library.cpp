// C API, part library: the functions that need no world: errors, types, log and configuration.
#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "algorithms/choice/choose.h"
#include "base/log.h"
#include "base/version.h"
#include "bootstrap/topology/topology.h"
#include "capi/objects.h"
#include "data/compression.h"
#include "runtime/lifecycle/tuning.h"
#include "schedule/print/describe.h"

namespace fdl::capi {
namespace {

// The last failure of a thread owns the texts, so that the pointers in fdl_error live until the next failure. One a
// thread: a failure in another thread cannot replace the text between a call and fdl_last_error(). A call in an exit
// handler comes after the end of the thread's objects; its error is made anew, and intentionally leaked.
Error& last_error() {
  thread_local Error* last = nullptr;
  struct Owner {
    ~Owner() { delete std::exchange(last, nullptr); }
  };
  thread_local const Owner owner;  // NOLINT(clang-diagnostic-exit-time-destructors)
  if (last == nullptr) last = new Error;
  return *last;
}

constexpr fdl_error kNoError{FDL_OK, -1, "", "", "", "", ""};
constexpr fdl_error kShortOfMemory{FDL_RESOURCE, -1, "this process is short of memory", "", "", "", ""};

// It points into last_error(), so the two change together, in report() only. It has no destructor, so it can be read in
// exit handlers.
thread_local fdl_error last_view = kNoError;

}  // namespace

// The C constants have the numbers of the internal enumerations, so values are converted by a cast in both directions.
// A renumbered row does not compile.
#define SAME(name, number) static_assert(static_cast<int>(Code::name) == number)
SAME(ok, FDL_OK);
SAME(invalid_argument, FDL_INVALID_ARGUMENT);
SAME(mismatch, FDL_MISMATCH);
SAME(peer_lost, FDL_PEER_LOST);
SAME(timeout, FDL_TIMEOUT);
SAME(aborted, FDL_ABORTED);
SAME(shut_down, FDL_SHUT_DOWN);
SAME(not_initialized, FDL_NOT_INITIALIZED);
SAME(unsupported, FDL_UNSUPPORTED);
SAME(resource, FDL_RESOURCE);
SAME(transport, FDL_TRANSPORT);
SAME(authentication, FDL_AUTHENTICATION);
SAME(internal, FDL_INTERNAL);
#undef SAME
#define SAME(name, number) static_assert(static_cast<int>(Dtype::name) == number)
SAME(uint8, FDL_UINT8);
SAME(int8, FDL_INT8);
SAME(uint16, FDL_UINT16);
SAME(int16, FDL_INT16);
SAME(uint32, FDL_UINT32);
SAME(int32, FDL_INT32);
SAME(uint64, FDL_UINT64);
SAME(int64, FDL_INT64);
SAME(float16, FDL_FLOAT16);
SAME(bfloat16, FDL_BFLOAT16);
SAME(float32, FDL_FLOAT32);
SAME(float64, FDL_FLOAT64);
SAME(bool_, FDL_BOOL);
SAME(float8_e4m3, FDL_FLOAT8_E4M3);
SAME(float8_e5m2, FDL_FLOAT8_E5M2);
#undef SAME
static_assert(kDtypeCount == FDL_FLOAT8_E5M2 + 1, "a new dtype needs an enumerator in farandole.h");
#define SAME(name, number) static_assert(static_cast<int>(Op::name) == number)
SAME(sum, FDL_SUM);
SAME(average, FDL_AVERAGE);
SAME(min, FDL_MIN);
SAME(max, FDL_MAX);
SAME(product, FDL_PRODUCT);
SAME(bit_and, FDL_BIT_AND);
SAME(bit_or, FDL_BIT_OR);
SAME(bit_xor, FDL_BIT_XOR);
SAME(logical_and, FDL_LOGICAL_AND);
SAME(logical_or, FDL_LOGICAL_OR);
SAME(logical_xor, FDL_LOGICAL_XOR);
SAME(user, FDL_USER);
SAME(adasum, FDL_ADASUM);
#undef SAME
static_assert(kOpCount == FDL_ADASUM + 1);

// Success leaves the last error as it is, as errno does.
fdl_result report(const Status& status) noexcept {
  if (status.ok()) return FDL_OK;
  last_view = kShortOfMemory;
  try {
    Error& last = last_error();
    last = status.error();
    last_view = {static_cast<fdl_result>(last.code),
                 last.culprit_rank,
                 last.text.c_str(),
                 last.culprit_host.c_str(),
                 last.operation.c_str(),
                 last.phase.c_str(),
                 last.group.c_str()};
  } catch (const std::exception&) {
  }
  return last_view.code;
}

fdl_result refuse(std::string_view text) noexcept {
  try {
    return report(Status(Code::invalid_argument, std::string(text)));
  } catch (const std::exception& error) {
    return report_exception(error);
  }
}

fdl_result report_exception(const std::exception& error) noexcept {
  try {
    return report(status_of_exception(error));
  } catch (const std::exception&) {
    last_view = kShortOfMemory;
    return last_view.code;
  }
}

std::string at_rank(fdl_comm* comm) { return " (rank " + std::to_string(comm->world->runtime->facts().rank) + ")"; }

void* stream_on_any_thread(void* stream) {
  constexpr std::uintptr_t kStreamOfThread = 2;
  return reinterpret_cast<std::uintptr_t>(stream) == kStreamOfThread ? nullptr : stream;
}

// As snprintf: a short target gets a prefix, and the result is the size of the whole text with its final 0.
std::size_t copy_text(std::string_view text, char* target, std::size_t capacity) noexcept {
  if (target != nullptr && capacity > 0) {
    // The prefix always ends with a zero byte, also when the target is too short.
    const std::size_t count = std::min(capacity - 1, text.size());
    std::memcpy(target, text.data(), count);
    target[count] = '\0';
  }
  return text.size() + 1;
}

}  // namespace fdl::capi

using namespace fdl;
using namespace fdl::capi;

namespace {

// The steps of all ranks are printed, and their number grows with the square of this.
constexpr int kMostExplained = 1024;

}  // namespace

const fdl_error* fdl_last_error(void) { return &capi::last_view; }

fdl_result fdl_fail(fdl_result code, const char* text) try {
  if (text == nullptr) return refuse("fdl_fail: text must not be NULL");
  if (code < FDL_INVALID_ARGUMENT || code > FDL_INTERNAL) return refuse("fdl_fail: code must be that of a failure");
  return report(Status(static_cast<Code>(code), text));
}
FDL_REPORT_EXCEPTIONS

// The names are string literals, so data() ends with a zero byte.
const char* fdl_result_name(fdl_result result) { return name_of(static_cast<Code>(result)).data(); }

#define FDL_TEXT_INNER(x) #x
#define FDL_TEXT(x) FDL_TEXT_INNER(x)
static_assert(kVersion == FDL_TEXT(FDL_VERSION_MAJOR) "." FDL_TEXT(FDL_VERSION_MINOR) "." FDL_TEXT(FDL_VERSION_PATCH));

const char* fdl_version(void) { return kVersion.data(); }

size_t fdl_dtype_size(fdl_dtype dtype) { return is_dtype(dtype) ? size_of(static_cast<Dtype>(dtype)) : 0; }

const char* fdl_dtype_name(fdl_dtype dtype) {
  return is_dtype(dtype) ? name_of(static_cast<Dtype>(dtype)).data() : "no dtype";
}

const char* fdl_compression_name(fdl_compression compression) {
  return is_compression(compression) ? name_of(static_cast<Compression>(compression)).data() : "no compression";
}

fdl_result fdl_compression_round_trip(fdl_compression compression, const float* input, float* output, size_t count,
                                      double* error_bound) try {
  if (!is_compression(compression) || compression == FDL_COMPRESSION_NONE) {
    return refuse("fdl_compression_round_trip: compression " + std::to_string(compression) + " does not exist");
  }
  if (count > 0 && (input == nullptr || output == nullptr)) {
    return refuse("fdl_compression_round_trip: input and output must not be NULL");
  }
  if (auto fault = fault_of_count(count, sizeof *input)) {
    return refuse("fdl_compression_round_trip: " + *fault);
  }
  const double bound = round_trip(static_cast<Compression>(compression), input, output, count);
  if (error_bound != nullptr) *error_bound = bound;
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

fdl_result fdl_op_create(fdl_user_function function, void* context, int commutative, fdl_op** op) try {
  if (function == nullptr || op == nullptr) return refuse("fdl_op_create: function and op must not be NULL");
  // The kernels get a pointer to the object itself as context, so it must stay in place until fdl_op_destroy().
  auto made = std::make_unique<fdl_op>();
  made->function = function;
  made->context = context;
  // Without commutativity only algorithms that reduce in rank order are chosen.
  made->op.commutative = commutative != 0;
  made->op.context = made.get();
  // The user's function takes the C enumeration, the kernels pass its number; this adapter converts.
  made->op.function = [](const void* source, void* target, std::size_t count, int dtype, void* self) {
    const auto* user = static_cast<const fdl_op*>(self);
    user->function(source, target, count, static_cast<fdl_dtype>(dtype), user->context);
  };
  *op = made.release();
  return FDL_OK;
}
FDL_REPORT_EXCEPTIONS

void fdl_op_destroy(fdl_op* op) { delete op; }

void fdl_log_sink(fdl_log_function function, void* context) try {
  if (function == nullptr) return set_log_sink(nullptr);
  // The line is copied because a string_view has no final zero byte. The function may be called by several threads at
  // once.
  set_log_sink([function, context](LogLevel level, std::string_view line) {
    function(static_cast<fdl_log_level>(level), std::string(line).c_str(), context);
  });
}
FDL_KEEP_EXCEPTIONS

size_t fdl_config_describe(char* text, size_t capacity) try {
  // Read anew by each call: the table shows the environment of now, which a world that exists does not follow.
  auto config = Config::read(Environment::of_process());
  if (!config.ok()) return copy_text("error: " + config.status().text() + "\n", text, capacity);
  std::string table;
  for (const Setting& row : config->settings) {
    // A key is secret; whether one is set is not.
    const bool secret = row.is_secret() && !row.value.empty();
    table += fmt::format("{:<18} {:<10} {:<12} {}\n", row.name, secret ? "(set)" : row.value, row.source, row.meaning);
  }
  return copy_text(table, text, capacity);
}
FDL_WRITE_EXCEPTIONS

size_t fdl_host_identity(char* text, size_t capacity) try { return copy_text(host_identity(), text, capacity); }
FDL_WRITE_EXCEPTIONS

size_t fdl_explain(const char* collective, int ranks, size_t bytes, const char* algorithm, char* text,
                   size_t capacity) try {
  // Names are compared with the table of collectives, so a new collective needs no change here.
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    const auto candidate = static_cast<Collective>(kind);
    if (collective == nullptr || name_of(candidate) != collective) continue;
    if (ranks < 1 || ranks > kMostExplained) {
      return copy_text(fmt::format("error: ranks must be from 1 to {}\n", kMostExplained), text, capacity);
    }
    auto tuning = tuning_in_force();
    if (!tuning.ok()) return copy_text("error: " + tuning.status().text() + "\n", text, capacity);
    // Over TCP, because collectives in shared memory run without a schedule and have no steps to print.
    const GroupShape shape{.ranks = ranks, .ranks_per_host = ranks, .transport = "tcp", .table = &tuning->table};
    auto choice = choose(candidate, shape, static_cast<int64_t>(bytes), algorithm == nullptr ? "auto" : algorithm);
    if (!choice.ok()) return copy_text("error: " + choice.status().text() + "\n", text, capacity);
    std::vector<Schedule> schedules;
    for (int rank = 0; rank < ranks; ++rank) {
      schedules.push_back(write_schedule(*choice->algorithm, shape, rank));
    }
    return copy_text(std::string(choice->algorithm->name) + ": " + choice->why + "\ntuning table: " + tuning->source +
                         " (" + tuning->table.fingerprint() + ")\n" + describe(schedules),
                     text, capacity);
  }
  return copy_text(std::string("error: '") + (collective == nullptr ? "" : collective) + "' is no collective\n", text,
                   capacity);
}
FDL_WRITE_EXCEPTIONS

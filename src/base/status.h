// Status and Result report every failure that is not a bug of this library. An error states what failed on which rank
// and what to do.
#pragma once

#include <cerrno>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace fdl {

// The numbers are those of fdl_result (static_asserts in capi check this) and never change their meaning.
enum class Code : int32_t {
  ok = 0,
  invalid_argument = 1,  // a fault of the caller; nothing happened
  mismatch = 2,          // the ranks' calls differ; nothing happened, and the group stays usable
  peer_lost = 3,
  timeout = 4,
  aborted = 5,
  shut_down = 6,
  not_initialized = 7,
  unsupported = 8,
  resource = 9,  // memory, files, locks
  transport = 10,
  authentication = 11,
  internal = 12,  // a bug: please report
};

std::string_view name_of(Code code);

// All facts about one failure. `text` is one self-contained sentence: the rank, the failure, and what to do.
struct Error {
  Code code = Code::internal;
  std::string text;
  int culprit_rank = -1;  // world rank at fault; -1 if there is no such rank
  std::string culprit_host;
  std::string operation;  // "allreduce 'grad_7'"
  std::string phase;      // "ring, step 9: recv_reduce chunk 3 from rank 2"
  std::string group;
};

// Success is one null pointer. A failure is a shared, immutable Error, so copies are cheap and report the same facts.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string text);
  explicit Status(Error error);

  // A failure for which one rank is at fault.
  static Status blame(int world_rank, std::string host, Code code, std::string text);
  // The failure of a system call, with the usual remedy: "socket: Too many open files; ... raise `ulimit -n`".
  static Status from_errno(std::string_view what, int error_number = errno);
  // The same where a shortage of descriptors, memory or space is the cause; ok otherwise.
  static Status shortage(std::string_view what, int error_number = errno);

  bool ok() const { return error_ == nullptr; }
  Code code() const { return ok() ? Code::ok : error_->code; }
  const Error& error() const {
    FDL_CHECK(!ok());
    return *error_;
  }
  // Lives as long as this status or a copy of it; for success it is an empty static string.
  const std::string& text() const;

  // Returns the same failure with ", while <doing>" appended to its text. No effect on success.
  Status while_doing(std::string_view doing) const;
  // Returns the same failure with `operation`, `phase` or `group` filled in if they were empty. No effect on success.
  Status during(std::string_view operation, std::string_view phase = {}, std::string_view group = {}) const;

 private:
  // Immutable and shared between threads: only the reference count changes, atomically.
  std::shared_ptr<const Error> error_;
};

inline Status ok_status() { return {}; }

// The failure that an exception of the standard library means: RESOURCE if memory or a thread cannot be had.
Status status_of_exception(const std::exception& error);

// A value, or the Status that explains why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  // Both constructors are implicit, so that a function can return a value or a failure.
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { FDL_CHECK(!status_.ok()); }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() {
    FDL_CHECK(ok());
    return *value_;
  }
  const T& value() const {
    FDL_CHECK(ok());
    return *value_;
  }
  T& operator*() { return value(); }
  const T& operator*() const { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  // Moves the value out; call it at most once.
  T take() { return std::move(value()); }

 private:
  // Exactly one of the two is set: a value, or a status that is a failure. take() leaves a moved-from value behind.
  std::optional<T> value_;
  Status status_;
};

}  // namespace fdl

// Returns from the function with the status if it is a failure.
#define FDL_RETURN_IF_ERROR(expression)        \
  do {                                         \
    ::fdl::Status fdl_status_ = (expression);  \
    if (!fdl_status_.ok()) return fdl_status_; \
  } while (false)

// The line number makes the temporary's name unique, so one function can use the macro several times.
#define FDL_CONCAT_INNER(a, b) a##b
#define FDL_CONCAT(a, b) FDL_CONCAT_INNER(a, b)
// FDL_ASSIGN_OR_RETURN(auto fd, open_something()) assigns the value, or returns the failure from the function.
#define FDL_ASSIGN_OR_RETURN(declaration, expression)                                             \
  auto FDL_CONCAT(fdl_result_, __LINE__) = (expression);                                          \
  if (!FDL_CONCAT(fdl_result_, __LINE__).ok()) return FDL_CONCAT(fdl_result_, __LINE__).status(); \
  declaration = FDL_CONCAT(fdl_result_, __LINE__).take()

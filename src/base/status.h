// Status and Result: how everything that the world can make fail tells so, with who, what, and what to do.
#pragma once

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace fdl {

// The numbers are those of fdl_result (static_asserts in capi keep them in step) and never change their meaning.
enum class Code : int32_t {
  ok = 0,
  invalid_argument = 1,  // the caller erred; nothing happened
  mismatch = 2,          // ranks disagree; nothing happened, the group lives on
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

// Everything that is known about one failure. `text` is one sentence that can stand alone: who, what, what to do.
struct Error {
  Code code = Code::internal;
  std::string text;
  int culprit_rank = -1;  // world rank; -1 where nobody in particular is at fault
  std::string culprit_host;
  std::string operation;  // "allreduce 'grad_7'"
  std::string phase;      // "ring, step 9: recv_reduce chunk 3 from rank 2"
  std::string group;
};

// Cheap when it succeeds (one null pointer), shared when it fails; copies tell the same story.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string text);
  explicit Status(Error error);

  static Status blame(int world_rank, std::string host, Code code, std::string text);
  // For a failed system call: "socket: no more file descriptors (EMFILE); raise ulimit -n". Reads errno unless told.
  static Status from_errno(std::string_view what, int error_number = errno);

  bool ok() const { return error_ == nullptr; }
  Code code() const { return ok() ? Code::ok : error_->code; }
  const Error& error() const {
    FDL_CHECK(!ok());
    return *error_;
  }
  const std::string& text() const;

  // The same failure with ", while <doing>" behind its text. No effect on success.
  Status while_doing(std::string_view doing) const;
  // The same failure with `operation`, `phase` or `group` filled in where they were empty. No effect on success.
  Status during(std::string_view operation, std::string_view phase = {}, std::string_view group = {}) const;

 private:
  std::shared_ptr<const Error> error_;
};

inline Status ok_status() { return {}; }

// A value, or the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
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
  T take() { return std::move(value()); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace fdl

// Leaves the function with the status if it is a failure.
#define FDL_RETURN_IF_ERROR(expression)        \
  do {                                         \
    ::fdl::Status fdl_status_ = (expression);  \
    if (!fdl_status_.ok()) return fdl_status_; \
  } while (false)

#define FDL_CONCAT_INNER(a, b) a##b
#define FDL_CONCAT(a, b) FDL_CONCAT_INNER(a, b)
// FDL_ASSIGN_OR_RETURN(auto fd, open_something()): the value, or leave with the reason.
#define FDL_ASSIGN_OR_RETURN(declaration, expression)                                             \
  auto FDL_CONCAT(fdl_result_, __LINE__) = (expression);                                          \
  if (!FDL_CONCAT(fdl_result_, __LINE__).ok()) return FDL_CONCAT(fdl_result_, __LINE__).status(); \
  declaration = FDL_CONCAT(fdl_result_, __LINE__).take()

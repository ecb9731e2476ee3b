// Status creates failures and adds context to them.
#include "base/status.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

namespace fdl {

std::string_view name_of(Code code) {
  switch (code) {
    case Code::ok:
      return "OK";
    case Code::invalid_argument:
      return "INVALID_ARGUMENT";
    case Code::mismatch:
      return "MISMATCH";
    case Code::peer_lost:
      return "PEER_LOST";
    case Code::timeout:
      return "TIMEOUT";
    case Code::aborted:
      return "ABORTED";
    case Code::shut_down:
      return "SHUT_DOWN";
    case Code::not_initialized:
      return "NOT_INITIALIZED";
    case Code::unsupported:
      return "UNSUPPORTED";
    case Code::resource:
      return "RESOURCE";
    case Code::transport:
      return "TRANSPORT";
    case Code::authentication:
      return "AUTHENTICATION";
    case Code::internal:
      return "INTERNAL";
  }
  return "UNKNOWN";
}

Status::Status(Code code, std::string text) : Status(Error{.code = code, .text = std::move(text)}) {}

Status::Status(Error error) : error_(std::make_shared<const Error>(std::move(error))) {
  FDL_CHECK(error_->code != Code::ok);
}

Status Status::blame(int world_rank, std::string host, Code code, std::string text) {
  return Status(
      Error{.code = code, .text = std::move(text), .culprit_rank = world_rank, .culprit_host = std::move(host)});
}

namespace {

// Made when the library is loaded, because a process that is short of memory cannot make them later. They are leaked
// intentionally: threads may run while the process exits.
const std::string& no_text = *new std::string;
const Status& short_of_memory = *new Status(Code::resource, "this process is short of memory");

// Returns what a user can do about an error number, for those that have a usual remedy.
const char* remedy(int error_number) {
  switch (error_number) {
    case EMFILE:
      return "; this process has no file descriptor left: raise `ulimit -n`";
    case ENFILE:
      return "; the host has no file descriptor left";
    case ENOMEM:
      return "; memory is short: check the memory limit of the container or cgroup";
    case ENOSPC:
      return "; the file system (or /dev/shm) is full";
    case EACCES:
    case EPERM:
      return "; a permission, seccomp or container policy forbids it";
    case EADDRINUSE:
      return "; another process uses that address: choose another port";
    case EADDRNOTAVAIL:
      return "; this host has no free port to connect from (net.ipv4.ip_local_port_range), or not that address";
    case ECONNREFUSED:
      return "; nothing listens at that address (yet)";
    default:
      return "";
  }
}

// A shortage of descriptors, memory or space is RESOURCE; all other errors of system calls count as TRANSPORT.
Code code_of(int error_number) {
  switch (error_number) {
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
      return Code::resource;
    default:
      return Code::transport;
  }
}

}  // namespace

Status Status::from_errno(std::string_view what, int error_number) {
  return Status(code_of(error_number), std::string(what) + ": " + std::strerror(error_number) + remedy(error_number));
}

Status Status::shortage(std::string_view what, int error_number) {
  return code_of(error_number) == Code::resource ? from_errno(what, error_number) : Status();
}

const std::string& Status::text() const { return ok() ? no_text : error_->text; }

// A Status is shared and immutable, so adding context copies the error. It happens on the way of a failure only.
Status Status::while_doing(std::string_view doing) const {
  if (ok()) return *this;
  Error richer = *error_;
  richer.text += ", while ";
  richer.text += doing;
  return Status(std::move(richer));
}

Status Status::during(std::string_view operation, std::string_view phase, std::string_view group) const {
  if (ok()) return *this;
  Error richer = *error_;
  // The innermost caller sets a field first, and its value is the most precise one.
  if (richer.operation.empty()) richer.operation = operation;
  if (richer.phase.empty()) richer.phase = phase;
  if (richer.group.empty()) richer.group = group;
  return Status(std::move(richer));
}

Status status_of_exception(const std::exception& error) {
  if (dynamic_cast<const std::length_error*>(&error) != nullptr) {
    return Status(Code::invalid_argument, "a count or length is more than memory can hold (was it negative?)");
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return short_of_memory;
  }
  if (const auto* refused = dynamic_cast<const std::system_error*>(&error)) {
    return Status(Code::resource,
                  std::string("the system refuses this process a thread or a lock: ") + refused->what());
  }
  return Status(Code::internal, std::string("an unexpected exception: ") + error.what());
}

}  // namespace fdl

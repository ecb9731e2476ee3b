// The C API's opaque objects, and how its functions report failures.
#pragma once

#define FDL_BUILDING
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "capi/arguments.h"
#include "farandole/farandole.h"
#include "runtime/lifecycle/runtime.h"

struct fdl_op {
  fdl::UserOp op;
  fdl_user_function function = nullptr;
  void* context = nullptr;
};

struct fdl_group {
  fdl_world* world = nullptr;
  fdl::Group* group = nullptr;
};

// Groups, communicators and handles that were not destroyed keep the world's memory until they are.
struct fdl_world {
  std::unique_ptr<fdl::Runtime> runtime;
  std::atomic<int> users{1};
  fdl_group all;

  void hold() { users.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

struct fdl_comm {
  fdl_world* world = nullptr;
  std::unique_ptr<fdl::OrderedComm> ordered;
  std::vector<std::size_t> even_counts;  // the equal counts of a blocking call

  fdl::Communicator& comm() { return *ordered->comm; }
};

struct fdl_request {
  fdl_comm* comm = nullptr;
  std::string title;
  bool is_message = false;
  fdl::Operation operation;
  fdl::Message message;
  std::vector<std::size_t> counts;
  std::vector<std::size_t> recv_counts;
  uint64_t bytes = 0;    // of the metrics: what this rank gives
  int64_t began_ns = 0;  // 0: nobody counts

  fdl::Completion& completion() { return is_message ? message.completion : operation.completion; }
};

// Whoever waits for it may have to drive its world, and keeps it.
struct fdl_handle {
  fdl_handle(fdl_world* of, std::shared_ptr<fdl::Handle> made) : world(of), handle(std::move(made)) { world->hold(); }
  ~fdl_handle() { world->release(); }

  fdl_world* world;
  std::shared_ptr<fdl::Handle> handle;
};

namespace fdl::capi {

// Keeps `status` as this thread's last error and returns its code.
fdl_result report(const Status& status);
fdl_result refuse(std::string text);  // INVALID_ARGUMENT

// "allreduce: count..." and so on: arguments that are wrong are named, with the rank.
std::string at_rank(fdl_comm* comm);

// The stream to work with in its place. CUDA's number 2 is another stream on each thread; the default stream waits for
// all of them, and they for it, on whichever thread it is given work.
void* stream_on_any_thread(void* stream);

// Copies at most `capacity` bytes of text with a final 0; returns what the whole needs.
std::size_t copy_text(const std::string& text, char* target, std::size_t capacity);

}  // namespace fdl::capi

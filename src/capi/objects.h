// This file defines the C API's opaque objects, and the functions with which the API reports failures.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "capi/arguments.h"
#include "farandole/farandole.h"
#include "runtime/lifecycle/runtime.h"

// `op` has a pointer to this object as its context, so the object never moves.
struct fdl_op {
  fdl::UserOp op;
  fdl_user_function function = nullptr;
  void* context = nullptr;
};

// Does not own the runtime's group; the runtime ends it.
struct fdl_group {
  fdl_world* world = nullptr;
  fdl::Group* group = nullptr;
};

// Reference-counted: the application's object counts 1, and each group, communicator and handle that was not destroyed
// counts 1. The last release() deletes it, on any thread.
struct fdl_world {
  std::unique_ptr<fdl::Runtime> runtime;
  std::atomic<int> users{1};
  fdl_group all;

  void hold() { users.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    // Release: the writes of each owner come before the deletion. Acquire: the deleting thread sees them.
    if (users.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

// Keeps a world during a call: another thread may destroy it, or the object that keeps it, meanwhile.
class HeldWorld {
 public:
  explicit HeldWorld(fdl_world* world) : world_(world) { world_->hold(); }
  ~HeldWorld() { world_->release(); }
  HeldWorld(const HeldWorld&) = delete;
  HeldWorld& operator=(const HeldWorld&) = delete;

 private:
  fdl_world* const world_;
};

// Used by one thread at a time, with the exceptions that farandole.h lists.
struct fdl_comm {
  fdl_world* world = nullptr;
  std::unique_ptr<fdl::OrderedComm> ordered;
  std::vector<std::size_t> even_counts;  // the equal counts of a blocking call
  std::atomic<bool> uses_device{false};  // a call on a device was made

  fdl::Communicator& comm() { return *ordered->comm; }
  // Whether the progress of this communicator belongs to its world: see Runtime::share().
  bool is_shared() const { return ordered->calls.load(std::memory_order_acquire) != nullptr; }
};

// A collective or a message in flight. The engine links to the operation inside, so it stays in place until it is done.
struct fdl_request {
  fdl_comm* comm = nullptr;
  fdl::OrderedCall call;

  fdl::Completion& completion() { return call.completion(); }
};

// A handle keeps its world, because a thread that waits for it may have to drive the world.
struct fdl_handle {
  fdl_handle(fdl_world* of, std::shared_ptr<fdl::Handle> made) : world(of), handle(std::move(made)) { world->hold(); }
  ~fdl_handle() { world->release(); }

  fdl_world* world;
  std::shared_ptr<fdl::Handle> handle;
  std::atomic<bool> is_own{false};  // the application completes it, and has not yet done so
};

namespace fdl::capi {

// Keeps `status` as this thread's last error and returns its code. Without memory for its texts the error is RESOURCE.
fdl_result report(const Status& status) noexcept;
// Reports INVALID_ARGUMENT with this text.
fdl_result refuse(std::string_view text) noexcept;
// Reports an exception of the standard library. No exception may leave a function of the C API.
fdl_result report_exception(const std::exception& error) noexcept;
// Ends the body of a function of the C API: fdl_result fdl_x(...) try { ... } FDL_REPORT_EXCEPTIONS
#define FDL_REPORT_EXCEPTIONS                  \
  catch (const std::exception& error) {        \
    return fdl::capi::report_exception(error); \
  }
// The same for a function without a result, whose caller may read fdl_last_error().
#define FDL_KEEP_EXCEPTIONS                                \
  catch (const std::exception& error) {                    \
    static_cast<void>(fdl::capi::report_exception(error)); \
  }
// The same for a function that writes a text.
#define FDL_WRITE_EXCEPTIONS                                                                 \
  catch (const std::exception&) {                                                            \
    return fdl::capi::copy_text("error: this process is short of memory\n", text, capacity); \
  }

// " (rank 3)", the end of a text about a wrong argument.
std::string at_rank(fdl_comm* comm);

// The stream on which the library works for `stream`. CUDA's handle 2 means the calling thread's own default stream,
// which is another one on the progress thread. It is replaced by the legacy default stream (null), which waits for the
// per-thread streams and for which they wait, on any thread.
void* stream_on_any_thread(void* stream);

// Copies at most `capacity` bytes of text with a final 0; returns what the whole needs.
std::size_t copy_text(std::string_view text, char* target, std::size_t capacity) noexcept;

}  // namespace fdl::capi

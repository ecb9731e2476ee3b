// Keeps TensorFlow's callback alive until the operation is done.
#include "completion.h"

#include <pthread.h>

#include <cstdint>
#include <utility>

namespace farandole_tensorflow {

namespace {

// Whether an address lies in the calling thread's stack.
bool is_on_stack(const void* address) {
  struct Bounds {
    uintptr_t begin = 0, end = 0;
    Bounds() {
      pthread_attr_t attributes;
      if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
      void* lowest = nullptr;
      size_t size = 0;
      if (pthread_attr_getstack(&attributes, &lowest, &size) == 0) {
        begin = reinterpret_cast<uintptr_t>(lowest);
        end = begin + size;
      }
      pthread_attr_destroy(&attributes);
    }
  };
  thread_local const Bounds bounds;
  const auto value = reinterpret_cast<uintptr_t>(address);
  return bounds.begin <= value && value < bounds.end;
}

}  // namespace

void Completion::take(TF_AsyncOpKernelDoneCallback* callback) {
  // TensorFlow passes the address of a std::function that is a parameter of the function that calls the kernel. It is
  // destroyed when the kernel returns, so its content is moved here. Both sides use libstdc++, whose layout of
  // std::function does not change. A callback that lives elsewhere is used as the C API says.
  if (is_on_stack(callback)) {
    own_ = std::move(*reinterpret_cast<std::function<void()>*>(callback));
    callback_ = nullptr;
  } else {
    callback_ = callback;
  }
}

void Completion::operator()() {
  if (callback_ != nullptr) return tensorflow().RunAsyncOpKernelDoneCallback(std::exchange(callback_, nullptr));
  // The callback may free the kernel, and what it captured is freed with it: it runs as a local object.
  const std::function<void()> done = std::exchange(own_, nullptr);
  done();
}

}  // namespace farandole_tensorflow

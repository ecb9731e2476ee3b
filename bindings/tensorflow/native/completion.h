// The function with which an asynchronous kernel tells TensorFlow that it has finished.
#pragma once

#include <functional>

#include "tensorflow_api.h"

namespace farandole_tensorflow {

// Takes the callback that TensorFlow passes to an asynchronous kernel, and calls it once, at any time, in any thread.
// Neither function may be called by two threads at a time.
class Completion {
 public:
  // Call it in the kernel's thread, before the kernel returns.
  void take(TF_AsyncOpKernelDoneCallback* callback);
  void operator()();

 private:
  std::function<void()> own_;
  TF_AsyncOpKernelDoneCallback* callback_ = nullptr;
};

}  // namespace farandole_tensorflow

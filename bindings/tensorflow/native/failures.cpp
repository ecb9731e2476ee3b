// The classes of errors, and a record of the last loss for elastic jobs.
#include "failures.h"

#include <mutex>
#include <string>

namespace farandole_tensorflow {

namespace {

// The class that programs written for Horovod expect: a disagreement is a failed precondition, an invalid argument its
// own class, and all that ends a group is unknown.
TF_Code code_of(fdl_result result) {
  switch (result) {
    case FDL_OK:
      return TF_OK;
    case FDL_INVALID_ARGUMENT:
      return TF_INVALID_ARGUMENT;
    case FDL_MISMATCH:
    case FDL_NOT_INITIALIZED:
      return TF_FAILED_PRECONDITION;
    case FDL_UNSUPPORTED:
      return TF_ABORTED;
    default:
      return TF_UNKNOWN;
  }
}

// The last error that ended a group. A graph reports text only; an elastic job also needs the lost rank.
struct Loss {
  std::mutex mutex;
  fdl_result code = FDL_OK;
  int culprit_rank = -1;
  std::string text;
};

Loss& last_loss() {
  static Loss* one = new Loss;  // intentionally leaked, as the table of process sets
  return *one;
}

void note_loss(const fdl_error& error) {
  Loss& loss = last_loss();
  std::lock_guard lock(loss.mutex);
  loss.code = error.code;
  loss.culprit_rank = error.culprit_rank;
  loss.text = error.text;
}

}  // namespace

// TensorFlow copies the status. The kernel must still call its completion.
void fail(TF_OpKernelContext* context, const Status& status) {
  tensorflow().OpKernelContext_Failure(context, status.get());
}

void fail(TF_OpKernelContext* context, fdl_result code, const char* text) {
  Status status;
  status.set(code_of(code), text);
  fail(context, status);
}

void fail_with_last_error(TF_OpKernelContext* context) {
  // Of this thread: valid until its next call of the library.
  const fdl_error& error = *fdl_last_error();
  if (code_of(error.code) == TF_UNKNOWN) note_loss(error);
  fail(context, error.code, error.text);
}

}  // namespace farandole_tensorflow

// The name of the last error that ended a group, with its text and culprit; null if there was none. Called by
// farandole/tensorflow/library.py.
extern "C" __attribute__((visibility("default"))) const char* farandole_tensorflow_last_loss(char* text,
                                                                                             size_t capacity,
                                                                                             int* culprit_rank) {
  auto& loss = farandole_tensorflow::last_loss();
  std::lock_guard lock(loss.mutex);
  if (loss.code == FDL_OK || capacity == 0) return nullptr;
  text[loss.text.copy(text, capacity - 1)] = '\0';
  *culprit_rank = loss.culprit_rank;
  return fdl_result_name(loss.code);
}

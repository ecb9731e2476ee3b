// Errors of farandole as TensorFlow reports them.
#pragma once

#include <farandole/farandole.h>

#include "tensorflow_api.h"

namespace farandole_tensorflow {

// Fails the op with the calling thread's last error of farandole.
void fail_with_last_error(TF_OpKernelContext* context);

// Fails the op with an error of this library: a code and one sentence.
void fail(TF_OpKernelContext* context, fdl_result code, const char* text);

// Fails the op with an error that TensorFlow itself has reported.
void fail(TF_OpKernelContext* context, const Status& status);

}  // namespace farandole_tensorflow

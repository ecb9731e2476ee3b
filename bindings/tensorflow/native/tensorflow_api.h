// The part of TensorFlow's C API for kernels that this library uses, declared here and found at run time.
//
// Nothing of TensorFlow is included or linked, so one binary serves every release since 2.13. The declarations are
// those of tensorflow/c/{ops,kernels,tf_tensor,tf_status}.h, which TensorFlow keeps compatible.
#pragma once

#include <cstddef>
#include <cstdint>

namespace farandole_tensorflow {

// TensorFlow's objects, which this library never looks into.
struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;

// The values of TF_DataType and TF_Code that occur here.
enum TF_DataType : int { TF_INT32 = 3 };
enum TF_Code : int {
  TF_OK = 0,
  TF_UNKNOWN = 2,
  TF_INVALID_ARGUMENT = 3,
  TF_FAILED_PRECONDITION = 9,
  TF_ABORTED = 10,
};

using CreateFunction = void* (*)(TF_OpKernelConstruction*);
using ComputeFunction = void (*)(void*, TF_OpKernelContext*);
using ComputeAsyncFunction = void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using DeleteFunction = void (*)(void*);
using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);
using Deallocator = void (*)(void* data, size_t length, void* argument);

// One row a function: result, name without the prefix TF_, parameters.
#define FDL_TENSORFLOW_FUNCTIONS(ROW)                                                                                  \
  ROW(TF_Status*, NewStatus, ())                                                                                       \
  ROW(void, DeleteStatus, (TF_Status*))                                                                                \
  ROW(void, SetStatus, (TF_Status*, TF_Code, const char*))                                                             \
  ROW(TF_Code, GetCode, (const TF_Status*))                                                                            \
  ROW(const char*, Message, (const TF_Status*))                                                                        \
  ROW(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                                                  \
  ROW(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                                        \
  ROW(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                                       \
  ROW(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                                      \
  ROW(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                         \
  ROW(void, OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, ShapeFunction))                    \
  ROW(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                               \
  ROW(int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                                            \
  ROW(void, ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))              \
  ROW(void, ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))             \
  ROW(TF_ShapeHandle*, NewShapeHandle, ())                                                                             \
  ROW(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                                      \
  ROW(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                                       \
  ROW(TF_ShapeHandle*, ShapeInferenceContextVectorFromSize, (TF_ShapeInferenceContext*, size_t))                       \
  ROW(int, ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))                               \
  ROW(int64_t, ShapeInferenceContextRank, (TF_ShapeInferenceContext*, TF_ShapeHandle*))                                \
  ROW(void, ShapeInferenceContextSubshape,                                                                             \
      (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t, int64_t, TF_ShapeHandle*, TF_Status*))                     \
  ROW(void, ShapeInferenceContextConcatenateShapes,                                                                    \
      (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*))                      \
  ROW(TF_KernelBuilder*, NewKernelBuilder,                                                                             \
      (const char*, const char*, CreateFunction, ComputeFunction, DeleteFunction))                                     \
  ROW(TF_KernelBuilder*, NewAsyncKernelBuilder,                                                                        \
      (const char*, const char*, CreateFunction, ComputeAsyncFunction, DeleteFunction))                                \
  ROW(void, RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                                       \
  ROW(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                      \
  ROW(void, OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))          \
  ROW(void, OpKernelConstruction_GetAttrSize, (TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*)) \
  ROW(void, OpKernelConstruction_GetAttrString, (TF_OpKernelConstruction*, const char*, char*, size_t, TF_Status*))    \
  ROW(void, OpKernelConstruction_GetAttrStringList,                                                                    \
      (TF_OpKernelConstruction*, const char*, char**, size_t*, int, void*, size_t, TF_Status*))                        \
  ROW(int64_t, GetIterId, (TF_OpKernelContext*))                                                                       \
  ROW(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                             \
  ROW(void, SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                                       \
  ROW(TF_Tensor*, AllocateOutput, (TF_OpKernelContext*, int, TF_DataType, const int64_t*, int, size_t, TF_Status*))    \
  ROW(TF_Tensor*, ForwardInputOrAllocateOutput,                                                                        \
      (TF_OpKernelContext*, const int*, int, int, const int64_t*, int, int*, TF_Status*))                              \
  ROW(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                                \
  ROW(void, RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))                                             \
  ROW(TF_Tensor*, NewTensor, (TF_DataType, const int64_t*, int, void*, size_t, Deallocator, void*))                    \
  ROW(void, DeleteTensor, (TF_Tensor*))                                                                                \
  ROW(TF_DataType, TensorType, (const TF_Tensor*))                                                                     \
  ROW(int, NumDims, (const TF_Tensor*))                                                                                \
  ROW(int64_t, Dim, (const TF_Tensor*, int))                                                                           \
  ROW(size_t, TensorByteSize, (const TF_Tensor*))                                                                      \
  ROW(void*, TensorData, (const TF_Tensor*))

struct TensorFlowApi {
#define FDL_ROW(result, name, parameters) result(*name) parameters = nullptr;
  FDL_TENSORFLOW_FUNCTIONS(FDL_ROW)
#undef FDL_ROW
};

// Finds all functions in the TensorFlow that this process has loaded. False if it has none, or one that lacks a
// function: nothing may be registered then.
bool find_tensorflow();

// The functions. Valid after find_tensorflow() has returned true.
const TensorFlowApi& tensorflow();

// A status, which TensorFlow's functions write into.
class Status {
 public:
  Status() : status_(tensorflow().NewStatus()) {}
  ~Status() { tensorflow().DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  bool ok() const { return tensorflow().GetCode(status_) == TF_OK; }
  void set(TF_Code code, const char* text) { tensorflow().SetStatus(status_, code, text); }
  TF_Status* get() const { return status_; }

 private:
  TF_Status* status_;
};

}  // namespace farandole_tensorflow

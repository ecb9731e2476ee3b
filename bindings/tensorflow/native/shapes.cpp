// This file defines shape inference through TensorFlow's C API.
#include "shapes.h"

#include <limits>

namespace farandole_tensorflow {

namespace {

constexpr int64_t kToTheEnd = std::numeric_limits<int64_t>::max();

// Owns a handle. TensorFlow keeps shapes themselves for as long as its context, so handles may end in any order.
class Shape {
 public:
  Shape() : Shape(tensorflow().NewShapeHandle()) {}
  explicit Shape(TF_ShapeHandle* handle) : handle_(handle) {}
  ~Shape() { tensorflow().DeleteShapeHandle(handle_); }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;
  TF_ShapeHandle* get() const { return handle_; }

 private:
  TF_ShapeHandle* handle_;
};

bool failed(const TF_Status* status) { return tensorflow().GetCode(status) != TF_OK; }

// Gives output `index` the shape of the input with the same index, with an unknown first dimension.
void set_other_rows(TF_ShapeInferenceContext* context, int index, TF_Status* status) {
  const TensorFlowApi& tf = tensorflow();
  Shape input;
  tf.ShapeInferenceContextGetInput(context, index, input.get(), status);
  // Outputs are unknown by default. Inputs without dimensions are an error of the kernel, which has a better text.
  if (failed(status) || !tf.ShapeInferenceContextRankKnown(context, input.get()) ||
      tf.ShapeInferenceContextRank(context, input.get()) < 1)
    return;
  Shape rest, output;
  tf.ShapeInferenceContextSubshape(context, input.get(), 1, kToTheEnd, rest.get(), status);
  if (failed(status)) return;
  const Shape rows(tf.ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(-1)));  // -1: unknown
  tf.ShapeInferenceContextConcatenateShapes(context, rows.get(), rest.get(), output.get(), status);
  if (!failed(status)) tf.ShapeInferenceContextSetOutput(context, index, output.get(), status);
}

// Without the token.
int tensor_count(TF_ShapeInferenceContext* context) {
  return static_cast<int>(tensorflow().ShapeInferenceContextNumInputs(context)) - 1;
}

}  // namespace

void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int count = tensor_count(context);
  for (int i = 0; i < count && !failed(status); ++i) {
    Shape input;
    tensorflow().ShapeInferenceContextGetInput(context, i, input.get(), status);
    if (!failed(status)) tensorflow().ShapeInferenceContextSetOutput(context, i, input.get(), status);
  }
}

void other_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int count = tensor_count(context);
  for (int i = 0; i < count && !failed(status); ++i) set_other_rows(context, i, status);
}

void exchanged_rows(TF_ShapeInferenceContext* context, TF_Status* status) {
  set_other_rows(context, 0, status);
  if (failed(status)) return;
  const Shape counts(tensorflow().ShapeInferenceContextVectorFromSize(context, static_cast<size_t>(-1)));
  tensorflow().ShapeInferenceContextSetOutput(context, 1, counts.get(), status);
}

void scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const Shape none(tensorflow().ShapeInferenceContextScalar(context));
  tensorflow().ShapeInferenceContextSetOutput(context, 0, none.get(), status);
}

void nothing(TF_ShapeInferenceContext*, TF_Status*) {}

}  // namespace farandole_tensorflow

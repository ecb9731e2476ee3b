// Shape inference: what TensorFlow knows about the shapes of an op's outputs before it runs.
#pragma once

#include "tensorflow_api.h"

namespace farandole_tensorflow {

// All of these ignore the last input, the token.

// Each output has the shape of its input.
void same_shapes(TF_ShapeInferenceContext* context, TF_Status* status);
// Each output has the shape of its input, but for the first dimension, which is unknown.
void other_rows(TF_ShapeInferenceContext* context, TF_Status* status);
// Alltoall: the rows of the first input, of an unknown number, and a vector with a number of rows for each rank.
void exchanged_rows(TF_ShapeInferenceContext* context, TF_Status* status);
// One output without dimensions.
void scalar(TF_ShapeInferenceContext* context, TF_Status* status);
// No output.
void nothing(TF_ShapeInferenceContext* context, TF_Status* status);

}  // namespace farandole_tensorflow

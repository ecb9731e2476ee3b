// The attributes of an op's node, read once when its kernel is made.
#pragma once

#include <farandole/farandole.h>

#include <string>
#include <vector>

#include "tensorflow_api.h"

namespace farandole_tensorflow {

// Fields that an op has no attribute for keep their defaults.
struct Attributes {
  std::vector<std::string> names;  // of each tensor, the same on all ranks
  int process_set = 0;
  fdl_reduce_op op = FDL_SUM;
  double prescale = 1.0, postscale = 1.0;
  int root_rank = 0;  // in the world
  std::string fact;
};

// The groups of attributes that an op may have, as bits.
enum AttributeGroup : unsigned { kNames = 1, kProcessSet = 2, kReduction = 4, kRoot = 8, kFact = 16 };

// Adds the attributes of the groups to an op's definition.
void define_attributes(TF_OpDefinitionBuilder* builder, unsigned groups);

// Reads the attributes of the groups. On failure `status` has TensorFlow's error.
Attributes read_attributes(TF_OpKernelConstruction* construction, unsigned groups, Status& status);

}  // namespace farandole_tensorflow

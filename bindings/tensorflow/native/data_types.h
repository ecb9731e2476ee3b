// The types that TensorFlow and farandole share.
#pragma once

#include <farandole/farandole.h>

#include <string>

#include "tensorflow_api.h"

namespace farandole_tensorflow {

// The number of a TensorFlow type in farandole. The ops accept no other types, so each has one.
fdl_dtype dtype_of(TF_DataType type);

// The names of all types for the definition of an attribute: "{float, double, ...}".
std::string type_list();

}  // namespace farandole_tensorflow

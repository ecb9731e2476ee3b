// One row a type: TensorFlow's number, its name in op definitions, and farandole's number.
#include "data_types.h"

namespace farandole_tensorflow {

namespace {

// TensorFlow's numbers are part of saved models, so that they never change. Types of 8-bit floats are left out: the
// oldest of the releases that this library serves has none.
struct TypeRow {
  int number;  // of TF_DataType
  const char* name;
  fdl_dtype dtype;
};

constexpr TypeRow kTypeRows[] = {
    {1, "float", FDL_FLOAT32},      {2, "double", FDL_FLOAT64}, {3, "int32", FDL_INT32},   {4, "uint8", FDL_UINT8},
    {5, "int16", FDL_INT16},        {6, "int8", FDL_INT8},      {9, "int64", FDL_INT64},   {10, "bool", FDL_BOOL},
    {14, "bfloat16", FDL_BFLOAT16}, {17, "uint16", FDL_UINT16}, {19, "half", FDL_FLOAT16}, {22, "uint32", FDL_UINT32},
    {23, "uint64", FDL_UINT64},
};

}  // namespace

fdl_dtype dtype_of(TF_DataType type) {
  for (const TypeRow& row : kTypeRows)
    if (row.number == static_cast<int>(type)) return row.dtype;
  // Not reached: the op's definition lists the types of the rows.
  return FDL_UINT8;
}

std::string type_list() {
  std::string all;
  for (const TypeRow& row : kTypeRows) all += (all.empty() ? "{" : ", ") + std::string(row.name);
  return all + "}";
}

}  // namespace farandole_tensorflow

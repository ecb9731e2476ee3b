// The structs of the DLPack standard (version 1) that a consumer reads.
#pragma once

#include <cstdint>

namespace farandole_python::dlpack {

constexpr uint32_t kMajor = 1;  // of another major version only `major` and `minor` may be read

struct Device {
  int32_t kind;  // 1: CPU, 2: CUDA, 3: pinned memory of CUDA, which the CPU can use as its own
  int32_t index;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t ndim;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // null: row-major and compact
  uint64_t byte_offset;
};

// "dltensor"
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

// "dltensor_versioned"
struct Versioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(Versioned*);
  uint64_t flags;  // bit 0: read-only
  Tensor tensor;
};

enum Code : uint8_t {
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8E4M3fn = 10,
  kFloat8E5M2 = 12
};

}  // namespace farandole_python::dlpack

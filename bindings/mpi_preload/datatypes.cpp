// The tables are filled when they are first used: constants of Open MPI are known only at run time.
#include "datatypes.h"

#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "real_mpi.h"

namespace fdl::mpi_preload {
namespace {

enum class Kind { integer, real, truth, opaque };

struct Type {
  MPI_Datatype datatype;
  fdl_dtype dtype;
  Kind kind;
  std::size_t bytes = 0;
};

fdl_dtype integer_of(std::size_t bytes, bool is_signed) {
  switch (bytes) {
    case 1:
      return is_signed ? FDL_INT8 : FDL_UINT8;
    case 2:
      return is_signed ? FDL_INT16 : FDL_UINT16;
    case 4:
      return is_signed ? FDL_INT32 : FDL_UINT32;
    default:
      return is_signed ? FDL_INT64 : FDL_UINT64;
  }
}

template <typename Number>
Type row(MPI_Datatype datatype) {
  if constexpr (std::is_same_v<Number, bool>) return {datatype, FDL_BOOL, Kind::truth};
  if constexpr (std::is_same_v<Number, float>) return {datatype, FDL_FLOAT32, Kind::real};
  if constexpr (std::is_same_v<Number, double>) return {datatype, FDL_FLOAT64, Kind::real};
  return {datatype, integer_of(sizeof(Number), std::is_signed_v<Number>), Kind::integer};
}

// Fortran's types have the sizes that its compilers give them without options. insert() leaves out those of a library
// that was built with other sizes.
std::vector<Type> rows() {
  return {row<double>(MPI_DOUBLE),
          row<float>(MPI_FLOAT),
          row<int>(MPI_INT),
          row<long>(MPI_LONG),
          row<unsigned long>(MPI_UNSIGNED_LONG),
          row<int64_t>(MPI_INT64_T),
          row<uint64_t>(MPI_UINT64_T),
          row<int32_t>(MPI_INT32_T),
          row<uint32_t>(MPI_UINT32_T),
          row<long long>(MPI_LONG_LONG),
          row<unsigned long long>(MPI_UNSIGNED_LONG_LONG),
          row<unsigned>(MPI_UNSIGNED),
          row<short>(MPI_SHORT),
          row<unsigned short>(MPI_UNSIGNED_SHORT),
          row<signed char>(MPI_SIGNED_CHAR),
          row<unsigned char>(MPI_UNSIGNED_CHAR),
          row<int8_t>(MPI_INT8_T),
          row<uint8_t>(MPI_UINT8_T),
          row<int16_t>(MPI_INT16_T),
          row<uint16_t>(MPI_UINT16_T),
          row<bool>(MPI_C_BOOL),
          row<MPI_Aint>(MPI_AINT),
          row<MPI_Offset>(MPI_OFFSET),
          row<MPI_Count>(MPI_COUNT),
          row<double>(MPI_DOUBLE_PRECISION),
          row<float>(MPI_REAL),
          row<float>(MPI_REAL4),
          row<double>(MPI_REAL8),
          row<int32_t>(MPI_INTEGER),
          row<int8_t>(MPI_INTEGER1),
          row<int16_t>(MPI_INTEGER2),
          row<int32_t>(MPI_INTEGER4),
          row<int64_t>(MPI_INTEGER8)};
}

// Types that are only moved.
std::vector<MPI_Datatype> opaque_types() {
  return {MPI_BYTE,
          MPI_CHAR,
          MPI_PACKED,
          MPI_WCHAR,
          MPI_LONG_DOUBLE,
          MPI_C_FLOAT_COMPLEX,
          MPI_C_DOUBLE_COMPLEX,
          MPI_C_LONG_DOUBLE_COMPLEX,
          MPI_2INT,
          MPI_FLOAT_INT,
          MPI_CXX_BOOL,
          MPI_CXX_FLOAT_COMPLEX,
          MPI_CXX_DOUBLE_COMPLEX,
          MPI_CHARACTER,
          MPI_LOGICAL,
          MPI_COMPLEX,
          MPI_DOUBLE_COMPLEX,
          MPI_2INTEGER,
          MPI_2REAL,
          MPI_2DOUBLE_PRECISION,
          MPI_COMPLEX8,
          MPI_COMPLEX16};
}

struct Operation {
  MPI_Op op;
  fdl_reduce_op ours;
  bool of_integers, of_reals, of_truths;
};

std::vector<Operation> operations() {
  return {{MPI_SUM, FDL_SUM, true, true, false},         {MPI_MAX, FDL_MAX, true, true, false},
          {MPI_MIN, FDL_MIN, true, true, false},         {MPI_PROD, FDL_PRODUCT, true, true, false},
          {MPI_BAND, FDL_BIT_AND, true, false, false},   {MPI_BOR, FDL_BIT_OR, true, false, false},
          {MPI_BXOR, FDL_BIT_XOR, true, false, false},   {MPI_LAND, FDL_LOGICAL_AND, false, false, true},
          {MPI_LOR, FDL_LOGICAL_OR, false, false, true}, {MPI_LXOR, FDL_LOGICAL_XOR, false, false, true}};
}

// A handle of MPI as a number: ABIs have ints or pointers.
template <typename Handle>
uint64_t bits_of(Handle handle) {
  if constexpr (std::is_pointer_v<Handle>) {
    return reinterpret_cast<uintptr_t>(handle);
  } else {
    return static_cast<unsigned>(handle);
  }
}

// A hash table of the rows by their handles, of fixed size and without deletion.
class TypeTable {
 public:
  TypeTable() {
    for (const Type& type : rows()) {
      if (size_of(type.datatype) == fdl_dtype_size(type.dtype)) insert(type, fdl_dtype_size(type.dtype));
    }
    for (const MPI_Datatype datatype : opaque_types()) insert({datatype, FDL_UINT8, Kind::opaque}, size_of(datatype));
  }
  static const TypeTable& all() {
    static const TypeTable table;
    return table;
  }
  const Type* find(MPI_Datatype datatype) const {
    for (std::size_t slot = slot_of(datatype);; slot = (slot + 1) % kSlots) {
      if (!filled_[slot]) return nullptr;
      if (slots_[slot].datatype == datatype) return &slots_[slot];
    }
  }

 private:
  static constexpr std::size_t kSlots = 128;
  static std::size_t slot_of(MPI_Datatype datatype) { return (bits_of(datatype) * 0x9E3779B97F4A7C15u) >> 57; }
  // Fortran's types are the null type in a library without Fortran.
  static std::size_t size_of(MPI_Datatype datatype) {
    int bytes = 0;
    if (datatype != MPI_DATATYPE_NULL) real().Type_size(datatype, &bytes);
    return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
  }
  // Two names of one type have one row. A type with gaps has none.
  void insert(Type type, std::size_t bytes) {
    MPI_Aint low = 0, extent = 0;
    if (bytes == 0 || find(type.datatype) != nullptr) return;
    real().Type_get_extent(type.datatype, &low, &extent);
    if (low != 0 || static_cast<std::size_t>(extent) != bytes) return;
    type.bytes = bytes;
    std::size_t slot = slot_of(type.datatype);
    while (filled_[slot]) slot = (slot + 1) % kSlots;
    slots_[slot] = type;
    filled_[slot] = true;
  }
  std::array<Type, kSlots> slots_;
  std::array<bool, kSlots> filled_{};
};

}  // namespace

std::optional<Fold> fold_of(MPI_Datatype datatype, MPI_Op op) {
  static const std::vector<Operation> ops = operations();
  const Type* type = TypeTable::all().find(datatype);
  if (type == nullptr || type->kind == Kind::opaque) return std::nullopt;
  for (const Operation& one : ops) {
    if (one.op != op) continue;
    const bool fits = type->kind == Kind::integer ? one.of_integers
                      : type->kind == Kind::real  ? one.of_reals
                                                  : one.of_truths;
    return fits ? std::optional(Fold{type->dtype, one.ours}) : std::nullopt;
  }
  return std::nullopt;
}

std::size_t plain_bytes(MPI_Datatype datatype) {
  const Type* type = TypeTable::all().find(datatype);
  return type == nullptr ? 0 : type->bytes;
}

}  // namespace fdl::mpi_preload

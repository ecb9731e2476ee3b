// This file converts element types to and from their names.
#include "data/dtype.h"

#include <array>

namespace fdl {
namespace {

constexpr std::string_view without_underscore(std::string_view name) {
  return name.ends_with('_') ? name.substr(0, name.size() - 1) : name;
}

// bool is a keyword, so its enumerator ends with an underscore, which the name omits.
constexpr std::array<std::string_view, kDtypeCount> kNames = {
#define ROW(name, type, kind) without_underscore(#name),
    FDL_DTYPES(ROW)
#undef ROW
};

}  // namespace

std::string_view name_of(Dtype dtype) {
  const auto index = static_cast<std::size_t>(dtype);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::optional<Dtype> dtype_named(std::string_view name) {
  for (std::size_t index = 0; index < kNames.size(); ++index) {
    if (kNames[index] == name) return static_cast<Dtype>(index);
  }
  return std::nullopt;
}

}  // namespace fdl

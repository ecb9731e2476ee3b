// read_pair() reads a pair; its errors name both variables.
#include "bootstrap/launchers/pair.h"

#include <fmt/core.h>

namespace fdl {

Result<Pair> read_pair(const Variables& variables, const char* index, const char* count, bool alone) {
  Pair pair;
  FDL_ASSIGN_OR_RETURN(pair.index, variables.number(index));
  FDL_ASSIGN_OR_RETURN(pair.count, variables.number(count));
  if (count == nullptr || (alone && pair.count < 0)) return pair;
  if ((pair.index < 0) != (pair.count < 0)) {
    return Status(Code::invalid_argument, fmt::format("{} but {}: both are needed, or neither", variables.quote(index),
                                                      variables.quote(count)));
  }
  if (pair.count >= 0 && pair.index >= pair.count) {
    return Status(Code::invalid_argument,
                  fmt::format("{} is not below {}", variables.quote(index), variables.quote(count)));
  }
  return pair;
}

}  // namespace fdl

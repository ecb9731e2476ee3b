// This header provides checks of options that take a number. Those of CLI11 accept NaN, because each comparison with
// NaN is false, and their errors write the largest number with all its digits.
#pragma once

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <cmath>
#include <limits>
#include <string>

namespace fdl {

// Refuses a text that is not a finite number, and a number that `accepts` returns false for. `name` stands in the help,
// `kind` in the error.
inline CLI::Validator number_check(bool (*accepts)(double), const char* name, const char* kind) {
  const auto check = [accepts, kind](std::string& text) {
    double number = 0;
    const bool is_finite = CLI::detail::lexical_cast(text, number) && std::isfinite(number);
    return is_finite && accepts(number) ? std::string() : "'" + text + "' is not a finite number" + kind;
  };
  return {check, name};
}

inline CLI::Validator positive_number() {
  return number_check([](double number) { return number > 0; }, "POSITIVE", " above 0");
}

inline CLI::Validator non_negative_number() {
  return number_check([](double number) { return number >= 0; }, "NONNEGATIVE", ", 0 or more");
}

// Of an option whose type is int.
inline CLI::Validator whole_number() {
  const auto check = [](std::string& text) {
    int number = 0;
    const bool is_whole = CLI::detail::lexical_cast(text, number) && number >= 0;
    return is_whole ? std::string()
                    : fmt::format("'{}' is not a whole number from 0 to {}", text, std::numeric_limits<int>::max());
  };
  return {check, "NONNEGATIVE"};
}

}  // namespace fdl

// SameFunction is true if two declarations of one C function have the same ABI, argument by argument.
#pragma once

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <type_traits>

namespace fdl::test {

template <class T>
concept Complete = requires {
  sizeof(T);
};

// True for a structure of ours that is intentionally a shorter version of theirs.
template <class Ours, class Theirs>
inline constexpr bool kMayBeShorter = false;

template <class Ours, class Theirs>
struct SameFunction;

template <class Ours, class Theirs>
constexpr bool same_value();

// Compares the types that two pointers point to. We write void for a handle that is only passed on.
template <class Ours, class Theirs>
constexpr bool same_pointee() {
  using O = std::remove_cv_t<Ours>;
  using T = std::remove_cv_t<Theirs>;
  if constexpr (std::is_function_v<O> || std::is_function_v<T>) {
    return SameFunction<O, T>::value;
  } else if constexpr (std::is_const_v<Ours> != std::is_const_v<Theirs>) {
    return false;
  } else if constexpr (std::is_void_v<O>) {
    return std::is_void_v<T> || !Complete<T>;
  } else if constexpr (!Complete<O> || !Complete<T>) {
    return !Complete<O> && !Complete<T>;
  } else {
    return kMayBeShorter<O, T> || same_value<O, T>();
  }
}

template <class T>
constexpr bool is_number() {
  return std::is_integral_v<T> || std::is_enum_v<T>;
}

template <class Ours, class Theirs>
constexpr bool same_value() {
  if constexpr (std::is_void_v<Ours> || std::is_void_v<Theirs>) {
    return std::is_void_v<Ours> && std::is_void_v<Theirs>;
  } else if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
      return same_pointee<std::remove_pointer_t<Ours>, std::remove_pointer_t<Theirs>>();
    } else {
      return false;
    }
  } else if constexpr (is_number<Ours>() && is_number<Theirs>()) {
    if constexpr (std::is_integral_v<Ours> && std::is_integral_v<Theirs>) {
      if (std::is_signed_v<Ours> != std::is_signed_v<Theirs>) return false;
    }
    return sizeof(Ours) == sizeof(Theirs);
  } else {
    return std::is_class_v<Ours> && std::is_class_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
           alignof(Ours) == alignof(Theirs) && std::is_trivially_copyable_v<Ours>;
  }
}

template <class Ours, class Theirs>
struct SameFunction : std::false_type {};
template <class Ours, class... OurArguments, class Theirs, class... TheirArguments>
requires(sizeof...(OurArguments) ==
         sizeof...(TheirArguments)) struct SameFunction<Ours(OurArguments...), Theirs(TheirArguments...)>
    : std::bool_constant<same_value<Ours, Theirs>() && (same_value<OurArguments, TheirArguments>() && ...)> {
};

// The names of the constants that one of our headers declares at namespace level.
inline std::set<std::string> constants_of(const std::string& path) {
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::regex constant("\ninline constexpr [\\w:]+ (k\\w+) =");
  std::set<std::string> names;
  for (std::sregex_iterator each(text.begin(), text.end(), constant), end; each != end; ++each) {
    names.insert((*each)[1]);
  }
  return names;
}

// ---- Declarations that must not compare as equal ----
struct OneWord {
  int word;
};
struct TwoWords {
  int words[2];
};
struct Opaque;
static_assert(SameFunction<int(void*, unsigned), int(Opaque*, unsigned)>::value);
static_assert(SameFunction<void(void (*)(void*)), void(void (*)(void*))>::value);
static_assert(!SameFunction<int(int), int(int, int)>::value, "another number of arguments");
static_assert(!SameFunction<int(int, long), int(long, int)>::value, "another order");
static_assert(!SameFunction<int(unsigned), int(int)>::value, "another sign");
static_assert(!SameFunction<int(int), int(int*)>::value, "a pointer");
static_assert(!SameFunction<int(int*), int(long*)>::value, "another pointee");
static_assert(!SameFunction<int(void*), int(const void*)>::value, "const");
static_assert(!SameFunction<int(void*), int(void**)>::value, "a pointer to a handle");
static_assert(!SameFunction<int(OneWord), int(TwoWords)>::value, "another size");
static_assert(!SameFunction<int(OneWord*), int(TwoWords*)>::value, "a pointer to another size");
static_assert(!SameFunction<void(int), int(int)>::value, "another result");
static_assert(!SameFunction<void(void (*)(void*)), void(void (*)(int))>::value, "another function");

}  // namespace fdl::test

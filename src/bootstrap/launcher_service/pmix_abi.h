// The part of PMIx's interface that farandole calls, as the PMIx Standard 4.1 defines it (chapters 3 and 4). The
// library is opened at run time, so that a program starts without it. tests/unit/bootstrap/pmix_abi_test.cpp compares
// these declarations with the header of Debian's libpmix-dev.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fdl::pmix {

inline constexpr std::size_t kLongestNamespace = 255;
inline constexpr std::size_t kLongestKey = 511;

using Outcome = int;
inline constexpr Outcome kSuccess = 0;

struct Process {
  char space[kLongestNamespace + 1];
  uint32_t rank;
};

// PMIX_BOOL and PMIX_STRING are the types that farandole uses. The union's largest member has three pointers'
// size (pmix_envar_t, since version 3).
inline constexpr uint16_t kBool = 1;
inline constexpr uint16_t kString = 3;
struct Value {
  uint16_t type;
  union {
    bool flag;
    char* string;
    void* largest[3];
  } data;
};

struct Info {
  char key[kLongestKey + 1];
  uint32_t flags;
  Value value;
};

inline constexpr uint8_t kGlobal = 3;  // PMIX_GLOBAL: visible to all processes of the job
inline constexpr const char* kCollectData = "pmix.collect";

using Callback = void (*)(Outcome outcome, void* data);
using ValueCallback = void (*)(Outcome outcome, Value* value, void* data);

struct Functions {
  Outcome (*init)(Process* me, Info* info, std::size_t count) = nullptr;
  Outcome (*finalize)(const Info* info, std::size_t count) = nullptr;
  Outcome (*put)(uint8_t scope, const char* key, Value* value) = nullptr;
  Outcome (*commit)() = nullptr;
  Outcome (*fence_nb)(const Process* processes, std::size_t process_count, const Info* info, std::size_t count,
                      Callback callback, void* data) = nullptr;
  Outcome (*get_nb)(const Process* process, const char* key, const Info* info, std::size_t count,
                    ValueCallback callback, void* data) = nullptr;
  const char* (*text_of)(Outcome outcome) = nullptr;
  const char* (*version)() = nullptr;
};

}  // namespace fdl::pmix

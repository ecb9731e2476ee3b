// Compatibility: settings are compared by name, since another version of the library may have other settings.
#include "bootstrap/coordinator/compatibility.h"

#include <fmt/core.h>

#include <algorithm>

namespace fdl {
namespace {

const CompatibilitySetting* find_setting(const std::vector<CompatibilitySetting>& settings, const std::string& name) {
  const auto found = std::ranges::find(settings, name, &CompatibilitySetting::name);
  return found == settings.end() ? nullptr : &*found;
}

std::string words(const CompatibilitySetting* setting) {
  if (setting == nullptr) return "does not know it";
  return "has " + (setting->value.empty() ? "''" : setting->value);
}

}  // namespace

Status compare_settings(std::string_view who, const std::vector<CompatibilitySetting>& have, std::string_view other_who,
                        const std::vector<CompatibilitySetting>& others_have) {
  const auto differ = [&](const CompatibilitySetting& setting, const CompatibilitySetting* mine,
                          const CompatibilitySetting* theirs) {
    return Status(Code::mismatch, fmt::format("all ranks must have the same {}, but {} {} and {} {}; {}", setting.name,
                                              who, words(mine), other_who, words(theirs), setting.remedy));
  };
  for (const CompatibilitySetting& mine : have) {
    const CompatibilitySetting* theirs = find_setting(others_have, mine.name);
    if (theirs == nullptr || theirs->value != mine.value) return differ(mine, &mine, theirs);
  }
  for (const CompatibilitySetting& theirs : others_have) {
    if (find_setting(have, theirs.name) == nullptr) return differ(theirs, nullptr, &theirs);
  }
  return {};
}

}  // namespace fdl

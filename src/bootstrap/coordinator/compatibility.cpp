// compare_settings() matches settings by name, since another version of the library may have other settings.
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
  if (setting == nullptr) return "does not have this setting";
  return "has " + (setting->value.empty() ? "''" : setting->value);
}

}  // namespace

Status compare_settings(std::string_view name, const std::vector<CompatibilitySetting>& settings,
                        std::string_view other_name, const std::vector<CompatibilitySetting>& other_settings) {
  const auto differ = [&](const CompatibilitySetting& setting, const CompatibilitySetting* mine,
                          const CompatibilitySetting* theirs) {
    return Status(Code::mismatch, fmt::format("all ranks must have the same {}, but {} {} and {} {}; {}", setting.name,
                                              name, words(mine), other_name, words(theirs), setting.remedy));
  };
  for (const CompatibilitySetting& mine : settings) {
    const CompatibilitySetting* theirs = find_setting(other_settings, mine.name);
    if (theirs == nullptr || theirs->value != mine.value) return differ(mine, &mine, theirs);
  }
  for (const CompatibilitySetting& theirs : other_settings) {
    if (find_setting(settings, theirs.name) == nullptr) return differ(theirs, nullptr, &theirs);
  }
  return {};
}

}  // namespace fdl

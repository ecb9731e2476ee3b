// Terms: compared by name, for another version may have others.
#include "world/terms.h"

#include <fmt/core.h>

#include <algorithm>

namespace fdl {
namespace {

const Term* find_term(const std::vector<Term>& terms, const std::string& name) {
  const auto found = std::ranges::find(terms, name, &Term::name);
  return found == terms.end() ? nullptr : &*found;
}

std::string words(const Term* term) {
  if (term == nullptr) return "does not know it";
  return "has " + (term->value.empty() ? "''" : term->value);
}

}  // namespace

Status compare_terms(std::string_view who, const std::vector<Term>& have, std::string_view other_who,
                     const std::vector<Term>& others_have) {
  const auto differ = [&](const Term& term, const Term* mine, const Term* theirs) {
    return Status(Code::mismatch, fmt::format("all ranks must have the same {}, but {} {} and {} {}; {}", term.name,
                                              who, words(mine), other_who, words(theirs), term.remedy));
  };
  for (const Term& mine : have) {
    const Term* theirs = find_term(others_have, mine.name);
    if (theirs == nullptr || theirs->value != mine.value) return differ(mine, &mine, theirs);
  }
  for (const Term& theirs : others_have) {
    if (find_term(have, theirs.name) == nullptr) return differ(theirs, nullptr, &theirs);
  }
  return {};
}

}  // namespace fdl

// The ops that return numbers of this rank at run time, and the token.
#pragma once

namespace farandole_tensorflow {

// Registers FarandoleFact and FarandoleToken.
void register_facts();

}  // namespace farandole_tensorflow

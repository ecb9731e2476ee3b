// Finds TensorFlow's functions in the libraries of this process.
#include "tensorflow_api.h"

#include <dlfcn.h>

#include <type_traits>

namespace farandole_tensorflow {

namespace {

TensorFlowApi functions;

}  // namespace

bool find_tensorflow() {
  // TensorFlow loads its libraries with local scope, so dlsym(RTLD_DEFAULT) would not find them. RTLD_NOLOAD returns
  // the library that is loaded already, and never loads another one.
  void* library = ::dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  bool found_all = true;
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    found_all = found_all && function != nullptr;
  };
#define FDL_ROW(result, name, parameters) find(functions.name, "TF_" #name);
  FDL_TENSORFLOW_FUNCTIONS(FDL_ROW)
#undef FDL_ROW
  return found_all;
}

const TensorFlowApi& tensorflow() { return functions; }

}  // namespace farandole_tensorflow

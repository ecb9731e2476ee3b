# Sets the compiler settings of every target, and defines the interface target fdl_flags with warnings and sanitizer.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)

add_library(fdl_flags INTERFACE)
target_compile_options(fdl_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor>
  $<$<BOOL:${FARANDOLE_WERROR}>:-Werror>)
# gcc 12 warns of std::string's own code (restrict) and of designated initialisers that leave defaults in place.
target_compile_options(fdl_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>)
if(FARANDOLE_FUZZ)
  # Coverage, by which libFuzzer chooses inputs, of all code but the kernels of module data, which parse nothing. Each
  # target links libFuzzer itself.
  target_compile_options(fdl_flags INTERFACE -fno-sanitize-recover=all
    $<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,fdl_data>>:-fsanitize=fuzzer-no-link,undefined>)
  target_link_options(fdl_flags INTERFACE -fsanitize=fuzzer-no-link,undefined)
endif()
if(FARANDOLE_SANITIZE)
  # The kernels of module data are compiled without the sanitizer: with it they take minutes to compile, and data_test
  # places its arrays between inaccessible pages, which catch the same faults. One instruction set is enough for the rest.
  target_compile_options(fdl_flags INTERFACE $<$<NOT:$<STREQUAL:$<TARGET_PROPERTY:NAME>,fdl_data>>:-fsanitize=${FARANDOLE_SANITIZE}>
    -fno-omit-frame-pointer -g1)
  # Its tests ask Highway which sets are compiled, so they need the same answer.
  target_compile_definitions(fdl_flags INTERFACE
    "$<$<IN_LIST:$<TARGET_PROPERTY:NAME>,fdl_data;data_test;compression_test>:HWY_COMPILE_ONLY_STATIC>")
  if(FARANDOLE_SANITIZE MATCHES undefined)
    # A report ends the test. A caller in C may pass any number as an enumeration; these two check such numbers, or pass
    # them. Compilers assume nothing about them without -fstrict-enums.
    target_compile_options(fdl_flags INTERFACE -fno-sanitize-recover=undefined
      $<$<STREQUAL:$<TARGET_PROPERTY:NAME>,fdl_capi>:-fno-sanitize=enum>
      $<$<STREQUAL:$<TARGET_PROPERTY:NAME>,capi_random_test>:-fno-sanitize=enum>
      $<$<NOT:$<BOOL:${FARANDOLE_SANITIZE_ACCESSES}>>:-fno-sanitize=null,alignment,object-size,vptr>)
  endif()
  if(FARANDOLE_SANITIZE STREQUAL thread)
    target_compile_options(fdl_flags INTERFACE -Wno-tsan)  # the sanitizer does not support fences
  endif()
  target_link_options(fdl_flags INTERFACE -fsanitize=${FARANDOLE_SANITIZE})
  set(FDL_NO_UNDEFINED "")  # libraries leave the sanitizer's own symbols undefined
else()
  set(FDL_NO_UNDEFINED -Wl,--no-undefined)
endif()

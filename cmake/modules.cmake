# Functions that declare a module: a folder of sources that is compiled into one static library.

# fdl_module(name SOURCES files... USES modules-and-libraries...): the static library fdl_<name>. A test links only the
# modules that it tests.
function(fdl_module name)
  cmake_parse_arguments(MODULE "" "" "SOURCES;USES" ${ARGN})
  add_library(fdl_${name} STATIC ${MODULE_SOURCES})
  target_include_directories(fdl_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(fdl_${name} PUBLIC fdl_flags ${MODULE_USES})
endfunction()

# fdl_flatbuffers(module schema): generates <module>/<schema>_generated.h at build time, for this module alone.
function(fdl_flatbuffers module schema)
  get_filename_component(name ${schema} NAME_WE)
  set(directory ${PROJECT_BINARY_DIR}/generated/${module})
  set(header ${directory}/${module}/${name}_generated.h)
  add_custom_command(OUTPUT ${header} DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${schema} VERBATIM
    COMMAND ${FLATC} --cpp -o ${directory}/${module} ${CMAKE_CURRENT_SOURCE_DIR}/${schema})
  target_sources(fdl_${module} PRIVATE ${header})
  target_include_directories(fdl_${module} SYSTEM PRIVATE ${directory})
endfunction()

# fdl_transport(NAME): adds the folder transports/<name> (or ./<name>) if FARANDOLE_<NAME> is on. Transports are linked
# into the runtime, and FDL_WITH_<NAME> is defined for lifecycle/assemble.cpp.
macro(fdl_transport name folder)
  string(TOUPPER ${name} upper)
  if(FARANDOLE_${upper})
    add_subdirectory(${folder})
    list(APPEND FDL_TRANSPORTS fdl_${name})
    list(APPEND FDL_WITH FDL_WITH_${upper}=1)
  endif()
endmacro()

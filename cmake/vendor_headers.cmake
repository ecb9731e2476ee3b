# Finds CUDA's and NCCL's own headers in a toolkit or in Python's nvidia-* packages. Tests compare our declarations with
# them.
include_guard(DIRECTORY)
file(GLOB packaged ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/*/include)
get_filename_component(toolkit "${FARANDOLE_NVCC}" REALPATH)
get_filename_component(toolkit "${toolkit}" DIRECTORY)
find_file(FARANDOLE_CUDA_HEADER cuda.h HINTS ${toolkit}/../include ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda ${packaged}
          PATH_SUFFIXES include)
find_file(FARANDOLE_NCCL_HEADER nccl.h HINTS ${packaged} PATHS /usr/local/cuda PATH_SUFFIXES include)

# fdl_abi_test(name header needs folders...): fdl_test with the vendor's header, or a line that names what is missing.
function(fdl_abi_test name header needs)
  if(NOT EXISTS "${header}")
    message(STATUS "${name} no (${needs})")
    return()
  endif()
  message(STATUS "${name} yes (${header})")
  fdl_test(${name})
  if(TARGET ${name})
    get_filename_component(folder ${header} DIRECTORY)
    target_include_directories(${name} SYSTEM PRIVATE ${ARGN} ${folder})
    target_compile_definitions(${name} PRIVATE FDL_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  endif()
endfunction()

# Compiles the kernels with nvcc, if it is found, into two images that the module embeds. Sets FDL_HAS_NVCC, and
# FDL_KERNELS_HERE to the text of the table. Only their own sources and the list of architectures rebuild them.
set(FARANDOLE_CUDA_ARCHITECTURES "80;90;100" CACHE STRING "Architectures whose machine code is built in, as far as nvcc supports them")
find_program(FARANDOLE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)

set(FDL_HAS_NVCC OFF)
if(FARANDOLE_SANITIZE)
  set(FDL_KERNELS_HERE "no kernels (none under a sanitizer)")
elseif(NOT FARANDOLE_NVCC)
  set(FDL_KERNELS_HERE "no kernels (nvcc not found; set FARANDOLE_NVCC)")
else()
  execute_process(COMMAND ${FARANDOLE_NVCC} --version OUTPUT_VARIABLE version)
  string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" version "${version}")
  execute_process(COMMAND ${FARANDOLE_NVCC} --list-gpu-code OUTPUT_VARIABLE known)
  string(REGEX MATCHALL "sm_[0-9]+" known "${known}")
  set(targets "")
  set(names "")
  foreach(architecture ${FARANDOLE_CUDA_ARCHITECTURES})
    if("sm_${architecture}" IN_LIST known)
      list(APPEND targets -gencode arch=compute_${architecture},code=sm_${architecture})
      string(APPEND names " sm_${architecture}")
    endif()
  endforeach()
  # Small images are compressed with zstd, which drivers before 550.54 (CUDA 12.4) cannot read. They read the portable
  # image, which is compressed as before nvcc 12.8.
  set(compress "")
  set(compress_for_all "")
  if(version VERSION_GREATER_EQUAL 12.8)
    set(compress --compress-mode=size)
    set(compress_for_all --compress-mode=speed)
  endif()

  set(images ${PROJECT_BINARY_DIR}/generated/cuda)
  file(MAKE_DIRECTORY ${images})
  set(flags -std=c++20 -fmad=false --expt-relaxed-constexpr -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/src)
  set(source ${PROJECT_SOURCE_DIR}/cuda/kernels/kernels.cu)
  list(TRANSFORM FDL_KERNEL_HEADERS PREPEND ${PROJECT_SOURCE_DIR}/)
  # The portable image is PTX, which drivers compile themselves. nvcc declares its own version of PTX, which older drivers
  # refuse, although only a hint needs more than version 7.8 (CUDA 11.8). So the hint is removed and 7.8 declared.
  # The assembler's report of registers and spills is kept in kernels.report, which bench/gpu/inspect.sh reads.
  add_custom_command(OUTPUT ${images}/kernels.fatbin ${images}/portable.fatbin
    DEPENDS ${source} ${FDL_KERNEL_HEADERS} ${CMAKE_CURRENT_LIST_FILE} VERBATIM
    COMMENT "Compiling kernels for${names} and others by nvcc ${version}"
    COMMAND ${FARANDOLE_NVCC} ${flags} -ptx -arch=compute_75 -o ${images}/kernels.ptx ${source}
    COMMAND sed -e "s/^\\.version .*/.version 7.8/" -e "/\\.pragma \"used_bytes_mask/d"
            ${images}/kernels.ptx > ${images}/portable.ptx
    COMMAND ${FARANDOLE_NVCC} -fatbin ${compress_for_all} -gencode arch=compute_75,code=compute_75
            -o ${images}/portable.fatbin ${images}/portable.ptx
    COMMAND ${FARANDOLE_NVCC} ${flags} -Xptxas -v -fatbin ${compress} ${targets} -o ${images}/kernels.fatbin ${source}
            2> ${images}/kernels.report || ! cat ${images}/kernels.report)
  set_source_files_properties(kernels/kernel_image.cpp PROPERTIES
    OBJECT_DEPENDS "${images}/kernels.fatbin;${images}/portable.fatbin"
    COMPILE_DEFINITIONS "FDL_KERNELS=\"${images}\";FDL_KERNELS_COMPILER=\"nvcc ${version}\"")
  set(FDL_HAS_NVCC ON)
  set(FDL_KERNELS_HERE "kernels for${names} and PTX (nvcc ${version})")
endif()

# The CUDA back end: libtalweg-cuda, a shared object of its own that the library opens at run time. Included by the
# top-level CMakeLists.txt, since a language can only be enabled there.
set(TALWEG_CUDA AUTO CACHE STRING "Build the CUDA back end: AUTO (where the toolkit is installed), ON (required), OFF")
set_property(CACHE TALWEG_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TALWEG_CUDA_ARCHITECTURES "" CACHE STRING
    "Compute capabilities to build kernels for, as CMAKE_CUDA_ARCHITECTURES; empty: the local card's, else 80 and 90, with PTX for newer ones")
option(TALWEG_NVTX "Mark runs and steps of the CUDA back end for NVIDIA's profilers" OFF)

# What the back end is made of, also for its emulated twin among the tests.
file(GLOB TALWEG_CUDA_KERNELS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/*.cu)
file(GLOB TALWEG_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backend/cuda/*.c)
foreach(name IN ITEMS atomic_file choices dtype half log memory philox shape status text) # no state among them: a copy of its own does no harm
    list(APPEND TALWEG_CUDA_SOURCES ${PROJECT_SOURCE_DIR}/src/base/${name}.c)
endforeach()
set(TALWEG_CUDA_EXPORTS ${PROJECT_SOURCE_DIR}/src/backend/cuda/exports.map)

set(talweg_cuda_found FALSE)
if(NOT TALWEG_CUDA)
    return()
endif()
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE AND TARGET CUDA::cublasLt)
    set(talweg_cuda_found TRUE)
elseif(TALWEG_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA: no toolkit found; only the CPU back end is built")
    return()
else()
    message(FATAL_ERROR "TALWEG_CUDA is ON, but no CUDA toolkit with nvcc and cuBLASLt was found. Set CUDAToolkit_ROOT, or use AUTO.")
endif()

set(architectures ${TALWEG_CUDA_ARCHITECTURES})
if(NOT architectures)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE cards RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT failed AND cards MATCHES "^[0-9]+[.][0-9]+")
        string(REGEX REPLACE "[.]" "" architectures "${cards}")
        string(REGEX REPLACE "[\r\n ]+" ";" architectures "${architectures}")
        list(REMOVE_DUPLICATES architectures)
    else()
        set(architectures 80-real 90)
    endif()
endif()
# The same for reports: 80-real is machine code, 80-virtual what a newer card's driver compiles, 80 both.
set(talweg_cuda_code)
foreach(architecture IN LISTS architectures)
    if(NOT architecture MATCHES "^([0-9]+[a-z]?)(-real|-virtual)?$")
        list(APPEND talweg_cuda_code ${architecture}) # "all" and the like
        continue()
    endif()
    if(NOT CMAKE_MATCH_2 STREQUAL "-virtual")
        list(APPEND talweg_cuda_code sm_${CMAKE_MATCH_1})
    endif()
    if(NOT CMAKE_MATCH_2 STREQUAL "-real")
        list(APPEND talweg_cuda_code compute_${CMAKE_MATCH_1})
    endif()
endforeach()
list(JOIN talweg_cuda_code " " talweg_cuda_code)
if(NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
set(CMAKE_CUDA_ARCHITECTURES ${architectures})
enable_language(CUDA)

find_path(TALWEG_CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(TALWEG_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
mark_as_advanced(TALWEG_CUDNN_INCLUDE_DIR TALWEG_CUDNN_LIBRARY)
set(talweg_cudnn_found FALSE)
set(cudnn_text "without cuDNN: convolutions by plain kernels, far slower")
if(TALWEG_CUDNN_INCLUDE_DIR AND TALWEG_CUDNN_LIBRARY)
    set(talweg_cudnn_found TRUE)
    set(cudnn_text "cuDNN: ${TALWEG_CUDNN_LIBRARY}")
endif()
message(STATUS "CUDA: toolkit ${CUDAToolkit_VERSION}, kernels for ${architectures}; ${cudnn_text}")

add_library(talweg_cuda SHARED ${TALWEG_CUDA_SOURCES} ${TALWEG_CUDA_KERNELS})
set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/backend/cuda/cuda_describe.c
             APPEND PROPERTY COMPILE_DEFINITIONS "TWI_CUDA_CODE=\"${talweg_cuda_code}\"")
set_target_properties(talweg_cuda PROPERTIES OUTPUT_NAME talweg-cuda CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
                      C_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Shared
                      LINK_DEPENDS ${TALWEG_CUDA_EXPORTS} BUILD_RPATH_USE_ORIGIN ON)
target_include_directories(talweg_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
target_include_directories(talweg_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_compile_options(talweg_cuda PRIVATE $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wpedantic>
                       $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>
                       $<$<AND:$<BOOL:${TALWEG_WERROR}>,$<COMPILE_LANGUAGE:C>>:-Werror>)
if(TALWEG_WERROR) # nor may a kernel's variables leave the registers
    target_compile_options(talweg_cuda PRIVATE
                           "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings;-Xptxas=-warn-spills;-Xcompiler=-Werror>")
endif()
target_link_libraries(talweg_cuda PRIVATE CUDA::cudart CUDA::cublasLt Threads::Threads m)
target_link_options(talweg_cuda PRIVATE LINKER:--version-script=${TALWEG_CUDA_EXPORTS} LINKER:--no-undefined)
if(talweg_cudnn_found)
    target_compile_definitions(talweg_cuda PRIVATE TWI_HAVE_CUDNN=1)
    target_include_directories(talweg_cuda SYSTEM PRIVATE ${TALWEG_CUDNN_INCLUDE_DIR})
    target_link_libraries(talweg_cuda PRIVATE ${TALWEG_CUDNN_LIBRARY})
endif()
if(TALWEG_NVTX)
    target_compile_definitions(talweg_cuda PRIVATE TWI_HAVE_NVTX=1)
    target_link_libraries(talweg_cuda PRIVATE ${CMAKE_DL_LIBS}) # what NVTX asks for a profiler by
endif()
install(TARGETS talweg_cuda)

# A driver of the same major version runs what was built here.
set(talweg_cuda_driver_min "${CUDAToolkit_VERSION_MAJOR}000")

# The CUDA back end itself, built for the emulated device. A test that runs with emulated_environment opens the device "cuda:0"
# like any other: it finds the driver that stands in, and this plug-in.
file(GLOB stand_ins CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cu*_stand_in*.cpp)
add_library(emulated_cuda SHARED ${TALWEG_CUDA_SOURCES} ${TALWEG_CUDA_KERNELS} ${stand_ins})
talweg_emulated(emulated_cuda)
set_target_properties(emulated_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}
                      LINK_DEPENDS ${TALWEG_CUDA_EXPORTS} C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden)
target_include_directories(emulated_cuda PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
target_link_options(emulated_cuda PRIVATE LINKER:--version-script=${TALWEG_CUDA_EXPORTS} LINKER:--no-undefined)
target_link_libraries(emulated_cuda PRIVATE Threads::Threads m)
target_compile_definitions(emulated_cuda PRIVATE TWI_CUDA_CODE="emulated on the CPU")
if(EXISTS ${TALWEG_CUDA_INCLUDE_DIR}/cudnn.h)
    target_compile_definitions(emulated_cuda PRIVATE TWI_HAVE_CUDNN=1)
endif()
set(emulated_environment TALWEG_CUDA_DRIVER=$<TARGET_FILE:emulation_driver> TALWEG_CUDA_PLUGIN=$<TARGET_FILE:emulated_cuda>
    TALWEG_TEST_DEVICE=cuda:0)

# talweg_add_emulated_test(name): the test program of that name once more, on the emulated device.
function(talweg_add_emulated_test name)
    talweg_add_test(emulated.${name} ${launcher} $<TARGET_FILE:${name}>)
    set_property(TEST emulated.${name} APPEND PROPERTY ENVIRONMENT ${emulated_environment})
endfunction()
foreach(name IN ITEMS test_ops test_program_runs test_program test_tied_layers test_user_op test_weights_file test_update_cases
        test_numeric_cases test_pool_values test_cuda_finding test_device_info test_plan_cards)
    talweg_add_emulated_test(${name})
endforeach()

# The CUDA back end itself, built for the emulated device. A test that runs with emulated_environment opens the device "cuda:0"
# like any other: it finds the driver that stands in, and this plug-in.
file(GLOB stand_ins CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cu*_stand_in*.cpp)
# They work for the device, on the host's stack: what they touch, ThreadSanitizer is told by emu_enqueue. Their plain loops
# want vectors: convolutions are most of the time of the trainings on this device.
set_source_files_properties(${stand_ins} PROPERTIES COMPILE_OPTIONS "-fno-sanitize=thread;-O3")
add_library(emulated_cuda SHARED ${TALWEG_CUDA_SOURCES} $<TARGET_OBJECTS:emulated_kernels> ${PROJECT_SOURCE_DIR}/kernels/probe.cu
            ${stand_ins})
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

# All that the quick ones among these tests need, for builds that run nothing else.
add_custom_target(emulated_tests DEPENDS emulated_cuda emulation_driver)

# talweg_add_emulated_test(name): the test program of that name once more, on the emulated device.
function(talweg_add_emulated_test name)
    talweg_add_test(emulated.${name} ${launcher} $<TARGET_FILE:${name}>)
    set_property(TEST emulated.${name} APPEND PROPERTY ENVIRONMENT ${emulated_environment})
endfunction()
foreach(name IN ITEMS test_ops test_program_runs test_program test_tied_layers test_user_op test_weights_file test_update_cases
        test_numeric_cases test_pool_values test_cuda_finding test_device_info test_plan_cards test_feed test_history
        test_initial_values test_set_too_large test_gather test_plan test_gelu
        test_store test_model_file test_precision test_constants test_lend test_lend_cases test_guard test_culprit test_recovery)
    talweg_add_emulated_test(${name})
    add_dependencies(emulated_tests ${name})
    set_property(GLOBAL APPEND PROPERTY TALWEG_DEVICE_TESTS emulated.${name}) # which variants.cmake has sanitizers run
endforeach()
foreach(name IN ITEMS test_evaluate test_trainer test_fit_windows test_accumulate test_recompute test_fit_memory
        test_windows test_fit_errors test_lifetime test_memory_cases test_fit_floor test_fit_refused full_mnist_part full_fit_networks
        full_precision_accuracy
        test_ops_half test_precision_training test_trajectories test_trajectories_half test_checkpoint test_reproducible)
    talweg_add_emulated_test(${name})
endforeach()
set_tests_properties(emulated.test_trajectories_half PROPERTIES COST 60)
set_tests_properties(emulated.test_trajectories PROPERTIES COST 30)
if(TARGET digits) # after two epochs, as on the CPU
    talweg_add_test(emulated.digits $<TARGET_FILE:digits> --epochs 2 --device cuda:0)
    set_property(TEST emulated.digits APPEND PROPERTY ENVIRONMENT ${emulated_environment})
    set_tests_properties(emulated.digits PROPERTIES WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}
                         PASS_REGULAR_EXPRESSION "test accuracy (8[5-9]|9[0-9])[.]")
endif()

# Tests that see the device from behind as well (emu.h). Every call failing in turn takes a few minutes.
file(GLOB back_end_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/test_back_end_*.c)
foreach(source IN LISTS back_end_tests)
    cmake_path(GET source STEM name)
    add_executable(${name} ${source} back_end_task.c user_op_kernels.cu)
    talweg_emulated(${name})
    target_link_libraries(${name} PRIVATE talweg_test)
    add_dependencies(${name} emulated_cuda emulation_driver)
    add_dependencies(emulated_tests ${name})
    talweg_add_test(${name} ${launcher} $<TARGET_FILE:${name}>)
    set_property(GLOBAL APPEND PROPERTY TALWEG_DEVICE_TESTS ${name})
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT ${emulated_environment})
endforeach()
# Every call, and caps byte by byte rather than a few.
set(parts 8)
foreach(part RANGE 1 ${parts})
    math(EXPR first "${part} - 1")
    talweg_add_test(full_back_end_failures.${part} ${launcher} $<TARGET_FILE:test_back_end_failures> all ${first} ${parts})
    set_property(TEST full_back_end_failures.${part} APPEND PROPERTY ENVIRONMENT ${emulated_environment})
endforeach()
foreach(name IN ITEMS memory statuses)
    talweg_add_test(full_back_end_${name} ${launcher} $<TARGET_FILE:test_back_end_${name}> all)
    set_property(TEST full_back_end_${name} APPEND PROPERTY ENVIRONMENT ${emulated_environment})
endforeach()

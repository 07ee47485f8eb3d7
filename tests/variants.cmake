# The same tests in other builds. A variant is a build tree below this one, made by a test of its own, <variant>.build,
# which the variant's other tests, <variant>.<test>, wait for: so one ctest run covers everything.
include(ProcessorCount)
ProcessorCount(processors)
set(quick_programs ${programs})
list(FILTER quick_programs INCLUDE REGEX "^test_")

# What every variant is configured with.
set(variant_options -S ${PROJECT_SOURCE_DIR} -G ${CMAKE_GENERATOR} -DCMAKE_C_COMPILER=${CMAKE_C_COMPILER}
    -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE} -DTALWEG_WERROR=${TALWEG_WERROR} -DTALWEG_ONEDNN=${TALWEG_ONEDNN}
    -DTALWEG_EXAMPLES=OFF -DTALWEG_CUDA=OFF)

# talweg_variant(name TARGETS targets... QUICK tests... SAMPLED tests... LAUNCHER command... OPTIONS cmake-options...
# FULL_OPTIONS cmake-options...): every test_<name> also runs in the variant, those named after QUICK with label quick, the
# others with label full, for which full_<variant>.build builds all, with FULL_OPTIONS too. Those named after SAMPLED are quick
# and full: the quick one checks a part (check_sampled). TARGETS are built for the quick ones. full_<name> would take hours
# there. The emulated device is left to talweg_device_variant: its kernels run under sanitizers in the plain build already.
function(talweg_variant variant)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "TARGETS;QUICK;SAMPLED;LAUNCHER;OPTIONS;FULL_OPTIONS")
    set(tree ${PROJECT_BINARY_DIR}/${variant})
    set(build bash ${CMAKE_CURRENT_SOURCE_DIR}/variant.sh ${CMAKE_COMMAND} ${tree} ${processors})
    set(options ${variant_options} -DTALWEG_TEST_EMULATION=OFF ${arg_OPTIONS})
    string(REPLACE ";" " " targets "${arg_TARGETS}")
    talweg_add_test(${variant}.build ${build} ${targets} ${options})
    set_tests_properties(${variant}.build PROPERTIES FIXTURES_SETUP ${variant} PROCESSORS ${processors} TIMEOUT 900 COST 1000)
    talweg_add_test(full_${variant}.build ${build} all ${options} ${arg_FULL_OPTIONS})
    set_tests_properties(full_${variant}.build PROPERTIES FIXTURES_REQUIRED ${variant} FIXTURES_SETUP full_${variant}
                         PROCESSORS ${processors} COST 900)
    foreach(program IN LISTS quick_programs)
        set(run ${arg_LAUNCHER} ${tree}/bin/${program})
        if(program IN_LIST arg_QUICK)
            talweg_add_test(${variant}.${program} ${run})
            set_tests_properties(${variant}.${program} PROPERTIES FIXTURES_REQUIRED ${variant})
        endif()
        if(program IN_LIST arg_SAMPLED)
            set_property(TEST ${variant}.${program} APPEND PROPERTY ENVIRONMENT TALWEG_TEST_AMOUNT=sampled)
        endif()
        if(program IN_LIST arg_SAMPLED OR NOT program IN_LIST arg_QUICK)
            talweg_add_test(full_${variant}.${program} ${run})
            set_tests_properties(full_${variant}.${program} PROPERTIES FIXTURES_REQUIRED full_${variant} TIMEOUT 1800)
        endif()
    endforeach()
endfunction()

# The longest ones first, so that no processor is idle in the end. Seconds, roughly.
function(talweg_cost)
    while(ARGN)
        list(POP_FRONT ARGN test seconds)
        set_tests_properties(${test} PROPERTIES COST ${seconds})
    endwhile()
endfunction()

# talweg_device_variant(name OPTIONS cmake-options...): the quick tests of the CUDA back end on the emulated device, in the
# full run, as full_<name>.build and full_<name>.<test>.
get_property(device_tests GLOBAL PROPERTY TALWEG_DEVICE_TESTS)
function(talweg_device_variant variant)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "OPTIONS")
    set(tree ${PROJECT_BINARY_DIR}/${variant})
    talweg_add_test(full_${variant}.build bash ${CMAKE_CURRENT_SOURCE_DIR}/variant.sh ${CMAKE_COMMAND} ${tree}
                    ${processors} emulated_tests ${variant_options} ${arg_OPTIONS})
    set_tests_properties(full_${variant}.build PROPERTIES FIXTURES_SETUP ${variant} PROCESSORS ${processors})
    foreach(test IN LISTS device_tests)
        talweg_add_test(full_${variant}.${test} ${CMAKE_CTEST_COMMAND} --test-dir ${tree} --no-tests=error
                        --output-on-failure -R "^${test}$")
        set_tests_properties(full_${variant}.${test} PROPERTIES FIXTURES_REQUIRED ${variant})
    endforeach()
endfunction()

talweg_variant(asan TARGETS quick_tests QUICK ${quick_programs} OPTIONS -DTALWEG_SANITIZE=address
               SAMPLED test_lend test_ops test_ops_half test_recompute test_trajectories test_trajectories_half)
talweg_cost(asan.test_fit_memory 70 asan.test_checkpoint 30 asan.test_ops_half 30 asan.test_ops 20 asan.test_recompute 20
            asan.test_trajectories_half 20 asan.test_trajectories 15 test_ops_half 25 test_examples 15)

# Without oneDNN: ThreadSanitizer cannot see the locks inside it. What has threads of its own is in the quick run.
set(threaded test_base test_threads test_own_threads test_copies test_initial_values test_loader test_trainer)
talweg_variant(tsan TARGETS ${threaded} QUICK ${threaded} LAUNCHER ${thread_launcher}
               OPTIONS -DTALWEG_SANITIZE=thread -DTALWEG_ONEDNN=OFF)

# The other compiler, and the library's own loops where oneDNN would be used. The quick run, which only builds, asks for its
# warnings: they do not depend on optimising, which would be most of the time.
find_program(TALWEG_CLANG clang)
mark_as_advanced(TALWEG_CLANG)
if(TALWEG_CLANG AND NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    talweg_variant(clang TARGETS all OPTIONS -DCMAKE_C_COMPILER=${TALWEG_CLANG} -DTALWEG_ONEDNN=OFF
                   -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_C_FLAGS_DEBUG=-O0 -DNDEBUG" "-DCMAKE_C_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG"
                   FULL_OPTIONS -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE})
endif()

if(TALWEG_EMULATION)
    talweg_device_variant(asan_device OPTIONS -DTALWEG_SANITIZE=address)
    talweg_device_variant(tsan_device OPTIONS -DTALWEG_SANITIZE=thread -DTALWEG_ONEDNN=OFF)
endif()

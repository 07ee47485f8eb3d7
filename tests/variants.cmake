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

# talweg_variant(name QUICK tests... LAUNCHER command... OPTIONS cmake-options...): every test_<name> also runs in the
# variant, those named after QUICK with label quick, the others with label full. full_<name> would take hours there. The
# emulated device is left to talweg_device_variant: its kernels run under sanitizers in the plain build already.
function(talweg_variant variant)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "QUICK;LAUNCHER;OPTIONS")
    set(tree ${PROJECT_BINARY_DIR}/${variant})
    talweg_add_test(${variant}.build bash ${CMAKE_CURRENT_SOURCE_DIR}/variant.sh ${CMAKE_COMMAND} ${tree} ${processors} all
                    ${variant_options} -DTALWEG_TEST_EMULATION=OFF ${arg_OPTIONS})
    set_tests_properties(${variant}.build PROPERTIES FIXTURES_SETUP ${variant} PROCESSORS ${processors} TIMEOUT 900)
    foreach(program IN LISTS quick_programs)
        talweg_add_test(${variant}.${program} ${arg_LAUNCHER} ${tree}/bin/${program})
        set_tests_properties(${variant}.${program} PROPERTIES FIXTURES_REQUIRED ${variant})
        if(NOT program IN_LIST arg_QUICK)
            set_tests_properties(${variant}.${program} PROPERTIES LABELS full TIMEOUT 1800)
        endif()
    endforeach()
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

talweg_variant(asan QUICK ${quick_programs} OPTIONS -DTALWEG_SANITIZE=address)

# Without oneDNN: ThreadSanitizer cannot see the locks inside it. What has threads of its own is in the quick run.
talweg_variant(tsan QUICK test_base test_threads test_own_threads test_loader test_trainer LAUNCHER ${thread_launcher}
               OPTIONS -DTALWEG_SANITIZE=thread -DTALWEG_ONEDNN=OFF)

# The other compiler, and the library's own loops where oneDNN would be used.
find_program(TALWEG_CLANG clang)
mark_as_advanced(TALWEG_CLANG)
if(TALWEG_CLANG AND NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    talweg_variant(clang OPTIONS -DCMAKE_C_COMPILER=${TALWEG_CLANG} -DTALWEG_ONEDNN=OFF)
endif()

if(TALWEG_EMULATION)
    talweg_device_variant(asan_device OPTIONS -DTALWEG_SANITIZE=address)
    talweg_device_variant(tsan_device OPTIONS -DTALWEG_SANITIZE=thread -DTALWEG_ONEDNN=OFF)
endif()

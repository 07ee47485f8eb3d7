# The house checks. Each is a script that prints every violation as file:line and fails; lint.planted shows that each of
# them can fail. `cmake --build build --target lint` runs them alone.
find_program(TALWEG_CXX NAMES $ENV{CXX} c++ g++ clang++)
mark_as_advanced(TALWEG_CXX)

function(talweg_add_lint name script)
    talweg_add_test(${name} bash ${CMAKE_CURRENT_SOURCE_DIR}/lint/${script} ${ARGN})
    set_property(TEST ${name} APPEND PROPERTY LABELS lint)
endfunction()

foreach(check IN ITEMS size includes errors docs)
    talweg_add_lint(lint.${check} ${check}.sh ${PROJECT_SOURCE_DIR})
endforeach()
talweg_add_lint(lint.planted planted.sh ${CMAKE_C_COMPILER})
talweg_add_lint(lint.symbols symbols.sh ${PROJECT_SOURCE_DIR} $<TARGET_FILE:talweg> $<TARGET_FILE:talweg_static>)
list(TRANSFORM programs REPLACE "(.+)" "$<TARGET_FILE:\\1>" OUTPUT_VARIABLE program_files)
talweg_add_lint(lint.linkage linkage.sh $<TARGET_FILE:talweg> $<TARGET_FILE:talweg_cli> ${program_files})
talweg_add_lint(lint.readme readme.sh ${PROJECT_SOURCE_DIR} $<TARGET_FILE:talweg> ${CMAKE_C_COMPILER})
talweg_add_lint(headers.c11 headers.sh ${PROJECT_SOURCE_DIR} ${CMAKE_C_COMPILER} -std=c11 -x c)
talweg_add_lint(headers.cxx17 headers.sh ${PROJECT_SOURCE_DIR} ${TALWEG_CXX} -std=c++17 -x c++)

if(PROJECT_IS_TOP_LEVEL)
    add_custom_target(lint COMMAND ${CMAKE_CTEST_COMMAND} -L lint --output-on-failure DEPENDS talweg talweg_static
                      WORKING_DIRECTORY ${PROJECT_BINARY_DIR} USES_TERMINAL)
endif()

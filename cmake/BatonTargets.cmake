# The three kinds of target in this tree. A room is one static library `baton_<room>`;
# its DEPS are the edges that tests/tree checks against the includes.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(baton_flags INTERFACE)
target_include_directories(baton_flags INTERFACE ${PROJECT_SOURCE_DIR})
# Rows must not depend on how the compiler contracts or reorders sums. Kernels for all architectures are a
# fifth as large when compressed for size; a process unpacks them once, which every driver for CUDA 13 can.
target_compile_options(baton_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-unused-parameter;-ffp-contract=off>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-unused-parameter,-ffp-contract=off;-fmad=false;--expt-relaxed-constexpr;--compress-mode=size>")
if(BATON_WERROR)
  target_compile_options(baton_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Werror>" "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(baton_flags INTERFACE -Wthread-safety)
endif()
if(BATON_SANITIZER STREQUAL "address")
  set(BATON_SANITIZER_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
elseif(BATON_SANITIZER STREQUAL "thread")
  set(BATON_SANITIZER_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
endif()
if(BATON_SANITIZER_FLAGS)
  target_compile_options(baton_flags INTERFACE ${BATON_SANITIZER_FLAGS})
  target_link_options(baton_flags INTERFACE ${BATON_SANITIZER_FLAGS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # GCC loses track of what instrumented code has set (std::optional above all).
    target_compile_options(baton_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()

# baton_library(room SRCS a.cc DEPS other_room absl::status)
function(baton_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  target_link_libraries(${name} PUBLIC baton_flags ${ARG_DEPS})
endfunction()

function(baton_binary name)
  cmake_parse_arguments(ARG "" "OUTPUT" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE baton_flags ${ARG_DEPS})
  if(ARG_OUTPUT)
    set_target_properties(${name} PROPERTIES OUTPUT_NAME ${ARG_OUTPUT})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# baton_test(name SRCS a_test.cc DEPS room [LABELS cluster] [TIMEOUT seconds])
function(baton_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  target_link_libraries(${name} PRIVATE baton_flags ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

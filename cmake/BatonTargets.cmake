# The three kinds of target in this tree. A room is one static library `baton_<room>`;
# its DEPS are the edges that tests/tree checks against the includes.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # Without this ccache keeps nothing that is compiled with precompiled headers. They use no time macros.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# Half of the work of a whole build is reading headers: the sources of a target are compiled 24 at a time.
# Names in their anonymous namespaces must therefore differ. -DCMAKE_UNITY_BUILD=OFF compiles each by itself.
set(CMAKE_UNITY_BUILD ON CACHE BOOL "Compile several sources of a target at once")
set(CMAKE_UNITY_BUILD_BATCH_SIZE 24)

# lld takes a fifth of the time of GNU ld.
find_program(BATON_LLD ld.lld)
if(BATON_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# What takes longer to compile than to run: tests, and what main() reads of flags. What they call is optimised
# as it is in the product.
set(BATON_BRIEF_OPTIONS $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)

# A tenth of GCC's time is its garbage collection; without it an eighth more memory is used (2.6 GB at most).
add_compile_options("$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-expand=200;--param=ggc-min-heapsize=1000000>")

add_library(baton_flags INTERFACE)
target_include_directories(baton_flags INTERFACE ${PROJECT_SOURCE_DIR})
# Rows must not depend on how the compiler contracts or reorders sums. Kernels for all architectures are a
# fifth as large when compressed for size; a process unpacks them once, which every driver for CUDA 13 can.
# Programs are compiled as libraries are (-fPIC, not -fPIE), so they share precompiled headers.
# __FILE__ is a path from the root of the tree: objects are the same in every checkout, so checkouts share ccache.
target_compile_options(baton_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-fPIC;-fpch-preprocess;-Wall;-Wextra;-Wno-unused-parameter;-ffp-contract=off;-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>"
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
elseif(BATON_SANITIZER STREQUAL "fuzzer")
  set(BATON_SANITIZER_FLAGS -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
      -fno-omit-frame-pointer)
elseif(BATON_SANITIZER STREQUAL "thread")
  set(BATON_SANITIZER_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
endif()
if(BATON_SANITIZER_FLAGS)
  target_compile_options(baton_flags INTERFACE ${BATON_SANITIZER_FLAGS})
  target_link_options(baton_flags INTERFACE ${BATON_SANITIZER_FLAGS})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # Boost.Asio has fences, which ThreadSanitizer does not follow; its locks suffice for it.
    target_compile_options(baton_flags INTERFACE $<$<STREQUAL:${BATON_SANITIZER},thread>:-Wno-tsan>)
    # GCC loses track of what instrumented code has set (std::optional above all).
    target_compile_options(baton_flags INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()

# For a room that computes.
set(BATON_COMPUTE_OPTIONS $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O3>)

# A property of the folder that compiles it, as what links gRPC's tests under ThreadSanitizer does: it defines
# other libraries' functions, so nothing may be compiled together with it.
macro(baton_tsan_libraries_alone)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/testing/tsan_libraries.cc
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endmacro()

# baton_library(room SRCS a.cc DEPS other_room absl::status)
function(baton_library name)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SRCS})
  baton_tsan_libraries_alone()
  target_link_libraries(${name} PUBLIC baton_flags ${ARG_DEPS})
endfunction()

function(baton_binary name)
  cmake_parse_arguments(ARG "" "OUTPUT" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${ARG_SRCS})
  baton_tsan_libraries_alone()
  target_compile_options(${name} PRIVATE ${BATON_BRIEF_OPTIONS})
  target_link_libraries(${name} PRIVATE baton_flags ${ARG_DEPS})
  if(ARG_OUTPUT)
    set_target_properties(${name} PROPERTIES OUTPUT_NAME ${ARG_OUTPUT})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
endfunction()

# baton_test(name SRCS a_test.cc DEPS room [LABELS cluster] [TIMEOUT seconds] [PROGRAM other] [ALONE])
# An entry of ctest, which runs the tests that are written in SRCS. Those of a folder are one program, named
# after the room (or PROGRAM): one link, and sources that share headers are compiled together. ALONE: a program
# of its own, with its own main() if SRCS have one.
function(baton_test name)
  cmake_parse_arguments(ARG "ALONE" "TIMEOUT;PROGRAM" "SRCS;DEPS;LABELS" ${ARGN})
  if(ARG_ALONE)
    set(program ${name})
  elseif(ARG_PROGRAM)
    set(program ${ARG_PROGRAM})
  else()
    get_filename_component(room ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    set(program ${room}_test)
  endif()
  if(NOT TARGET ${program})
    add_executable(${program})
    baton_tsan_libraries_alone()
    target_link_libraries(${program} PRIVATE baton_flags)
    target_compile_options(${program} PRIVATE ${BATON_BRIEF_OPTIONS})
    target_compile_definitions(${program} PRIVATE
      BATON_BIN_DIR="${PROJECT_BINARY_DIR}/bin" BATON_CHECKPOINT_DIR="${BATON_CHECKPOINT_DIR}")
    set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    if(ARG_ALONE)
      set_target_properties(${program} PROPERTIES UNITY_BUILD OFF)
      target_link_libraries(${program} PRIVATE GTest::gtest_main)
    else()
      target_link_libraries(${program} PRIVATE baton_testing_main)
    endif()
  endif()
  target_sources(${program} PRIVATE ${ARG_SRCS})
  target_link_libraries(${program} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest)

  set(arguments)
  if(NOT ARG_ALONE)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    list(TRANSFORM ARG_SRCS PREPEND ${folder}/)
    string(REPLACE ";" "," arguments "--sources=${ARG_SRCS}")
  endif()
  add_test(NAME ${name} COMMAND ${program} ${arguments} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

# Reading gRPC's headers takes 8 s, which over a hundred compilations pay. They are read once, with the other
# libraries' headers that go with them: once for the product, and once with GoogleTest. No header of ours is
# among them, so a change of one recompiles what includes it and no more.
#   -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON compiles without them, and finds includes that are missing.

set(BATON_PRECOMPILED
  <algorithm> <atomic> <chrono> <cmath> <cstdint> <deque> <filesystem> <fstream> <functional> <limits> <map>
  <memory> <mutex> <numeric> <optional> <random> <set> <sstream> <string> <thread> <tuple> <utility> <vector>
  <absl/algorithm/container.h> <absl/container/flat_hash_map.h> <absl/container/flat_hash_set.h>
  <absl/status/status.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_format.h>
  <absl/strings/str_join.h> <absl/strings/str_split.h> <absl/synchronization/mutex.h>
  <absl/synchronization/notification.h> <absl/time/clock.h> <absl/time/time.h> <absl/types/span.h>
  <google/protobuf/generated_message_reflection.h> <google/protobuf/map.h> <google/protobuf/message.h>
  <google/protobuf/repeated_field.h> <google/protobuf/util/message_differencer.h> <grpcpp/grpcpp.h>
  <grpcpp/impl/codegen/proto_utils.h> <grpcpp/support/client_callback.h> <grpcpp/support/server_callback.h>)

function(baton_precompiled_headers name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
  file(WRITE ${PROJECT_BINARY_DIR}/${name}.cc "// Has the headers precompiled.\n")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/${name}.cc)
  target_link_libraries(${name} PRIVATE baton_flags ${ARG_DEPS})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
endfunction()

# Every library that `target` links, itself or through others.
function(baton_all_libraries target result)
  set(seen)
  set(pending ${target})
  while(NOT "${pending}" STREQUAL "")
    list(POP_FRONT pending next)
    if(next IN_LIST seen)
      continue()
    endif()
    list(APPEND seen ${next})
    if(TARGET ${next})
      get_target_property(type ${next} TYPE)
      get_target_property(interface ${next} INTERFACE_LINK_LIBRARIES)
      set(libraries ${interface})
      if(NOT type STREQUAL INTERFACE_LIBRARY)
        get_target_property(own ${next} LINK_LIBRARIES)
        list(APPEND libraries ${own})
      endif()
      list(APPEND pending ${libraries})
    endif()
  endwhile()
  set(${result} ${seen} PARENT_SCOPE)
endfunction()

# Call when all targets are there.
function(baton_use_precompiled_headers folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    if(NOT type MATCHES "^(STATIC_LIBRARY|EXECUTABLE)$")
      continue()
    endif()
    baton_all_libraries(${target} libraries)
    if(NOT "gRPC::grpc++" IN_LIST libraries)
      continue()
    endif()
    if("GTest::gtest" IN_LIST libraries)
      set(headers baton_precompiled_tests)
    else()
      set(headers baton_precompiled)
    endif()
    target_precompile_headers(${target} REUSE_FROM ${headers})
  endforeach()
  get_property(subfolders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(subfolder ${subfolders})
    baton_use_precompiled_headers(${subfolder})
  endforeach()
endfunction()

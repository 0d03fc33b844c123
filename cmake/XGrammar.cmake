# XGrammar, which constrains answers to grammars: its core, without Python, from the source that scripts/setup
# fetches. Only baton-grammar links it.
set(BATON_XGRAMMAR_DIR ${PROJECT_SOURCE_DIR}/.venv/xgrammar CACHE PATH "XGrammar's source")
if(EXISTS ${BATON_XGRAMMAR_DIR}/cpp/grammar_matcher.cc)
  set(found ON)
else()
  set(found OFF)
endif()
option(BATON_STRUCTURED_OUTPUT "Build baton-grammar; needs XGrammar's source (scripts/setup)" ${found})
if(NOT BATON_STRUCTURED_OUTPUT)
  return()
endif()
if(NOT found)
  message(FATAL_ERROR "BATON_STRUCTURED_OUTPUT needs XGrammar in ${BATON_XGRAMMAR_DIR}: run scripts/setup")
endif()

file(GLOB sources ${BATON_XGRAMMAR_DIR}/cpp/*.cc ${BATON_XGRAMMAR_DIR}/cpp/converter_ext/*.cc
  ${BATON_XGRAMMAR_DIR}/cpp/support/*.cc)
add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${sources})
target_include_directories(xgrammar SYSTEM PUBLIC ${BATON_XGRAMMAR_DIR}/include
  ${BATON_XGRAMMAR_DIR}/3rdparty/dlpack/include)
target_include_directories(xgrammar SYSTEM PRIVATE ${BATON_XGRAMMAR_DIR}/3rdparty/picojson)
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
# Optimised where masks are computed; elsewhere the compiler's time counts: a minute of a core in all. More than eight
# sources at once would share names.
set_target_properties(xgrammar PROPERTIES UNITY_BUILD_BATCH_SIZE 8 CXX_STANDARD 17)
target_compile_options(xgrammar PRIVATE -w $<$<CONFIG:Release>:-O1> $<$<CONFIG:RelWithDebInfo>:-O1;-g0>)
foreach(hot compiled_grammar earley_parser fsm grammar_compiler grammar_matcher)
  set_source_files_properties(${BATON_XGRAMMAR_DIR}/cpp/${hot}.cc PROPERTIES COMPILE_OPTIONS -O2)
endforeach()

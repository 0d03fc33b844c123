# What `cmake --install` puts under the prefix, in three components, each of which is a Debian package
# (Packages.cmake): server, cli, and dev, the C++ client. docs/packages.md lists the files.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(docdir ${CMAKE_INSTALL_DATADIR}/doc)  # a folder per package in it
install(TARGETS baton_router baton_prefill_worker_main baton_decode_worker_main
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT server)
if(BATON_STRUCTURED_OUTPUT)
  install(TARGETS baton_grammar_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT server)
  install(FILES packaging/NOTICE.baton-grammar DESTINATION ${docdir}/baton-server COMPONENT server)
endif()
install(FILES docs/configuration.md docs/errors.md docs/first-five-minutes.md docs/http.md docs/metrics.md docs/packages.md
  docs/sampling.md docs/security.md docs/structured_output.md docs/tracing.md
  DESTINATION ${docdir}/baton-server COMPONENT server)

install(TARGETS baton_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cli)
install(FILES docs/cli.md DESTINATION ${docdir}/baton-cli COMPONENT cli)
foreach(script
    bash:bash-completion/completions/baton zsh:zsh/vendor-completions/_baton
    fish:fish/vendor_completions.d/baton.fish)
  string(REGEX MATCH "^([a-z]+):(.*)/(.*)$" _ ${script})
  install(FILES ${PROJECT_BINARY_DIR}/cli/completion.${CMAKE_MATCH_1}
    DESTINATION ${CMAKE_INSTALL_DATADIR}/${CMAKE_MATCH_2} RENAME ${CMAKE_MATCH_3} COMPONENT cli)
endforeach()

# The client. Its config file and baton.pc find their prefix by where they are: it may be moved.
install(TARGETS baton_sdk EXPORT batonTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT dev
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES client/cpp/client.h common/base/error.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/baton COMPONENT dev)
install(DIRECTORY proto/baton/v1 DESTINATION ${CMAKE_INSTALL_DATADIR}/baton/proto/baton COMPONENT dev)
install(DIRECTORY examples/cpp DESTINATION ${docdir}/libbaton-client-dev/examples COMPONENT dev)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/baton)
install(EXPORT batonTargets NAMESPACE baton:: DESTINATION ${config_dir} COMPONENT dev)
configure_package_config_file(cmake/batonConfig.cmake.in ${PROJECT_BINARY_DIR}/batonConfig.cmake
  INSTALL_DESTINATION ${config_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/batonConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)  # before 1.0, each 0.x may change the API
install(FILES ${PROJECT_BINARY_DIR}/batonConfig.cmake ${PROJECT_BINARY_DIR}/batonConfigVersion.cmake
  DESTINATION ${config_dir} COMPONENT dev)

set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_to_prefix /prefix/${pkgconfig_dir} /prefix)
configure_file(cmake/baton.pc.in ${PROJECT_BINARY_DIR}/baton.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/baton.pc DESTINATION ${pkgconfig_dir} COMPONENT dev)

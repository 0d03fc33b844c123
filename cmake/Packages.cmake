# Debian packages, one for each component of Install.cmake: `cpack --config build/PRESET/CPackConfig.cmake`.
# packaging/debian/finish.cmake adds what only packages have. docs/packages.md describes them.
set(BATON_PACKAGE_MAINTAINER "The Baton authors <maintainers@baton.example>" CACHE STRING
  "Maintainer of the Debian packages, NAME <ADDRESS>")
set(BATON_PACKAGE_REVISION 1 CACHE STRING "Revision of the Debian packages of one version")
set(version ${PROJECT_VERSION}-${BATON_PACKAGE_REVISION})

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VENDOR "The Baton authors")
set(CPACK_PACKAGE_CONTACT "${BATON_PACKAGE_MAINTAINER}")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian/finish.cmake)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL server cli dev)
set(CPACK_COMPONENTS_GROUPING IGNORE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${BATON_PACKAGE_REVISION})
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

# As in README.md: docs_test compares them.
set(purpose "Baton serves large language models on a cluster of small machines. It is for
teams that serve open models on several CPU machines or small GPUs over
ordinary networks, and need answers that repeat exactly and survive lost
machines.
.")

set(CPACK_DEBIAN_SERVER_PACKAGE_NAME baton-server)
set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION net)
set(CPACK_DEBIAN_SERVER_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_SERVER_PACKAGE_DEPENDS "systemd | systemd-standalone-sysusers | systemd-sysusers")
set(control ${PROJECT_SOURCE_DIR}/packaging/debian)
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA
  ${control}/postinst ${control}/prerm ${control}/postrm ${control}/conffiles)
set(CPACK_COMPONENT_SERVER_DESCRIPTION "router and workers of a serving cluster for language models
${purpose}
A router picks a prefill worker, which computes the prompt, and a decode
worker, which receives the KV cache and generates the answer. This package
has the programs of router and workers, and systemd units.")

set(CPACK_DEBIAN_CLI_PACKAGE_NAME baton-cli)
set(CPACK_DEBIAN_CLI_PACKAGE_SECTION net)
set(CPACK_DEBIAN_CLI_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CLI_PACKAGE_DEPENDS "baton-server (= ${version})")
set(CPACK_COMPONENT_CLI_DESCRIPTION "command line of Baton, a serving cluster for language models
${purpose}
The command baton starts a cluster on one machine, sends prompts, measures
throughput and latency, explains routing decisions, and computes how much
memory a model needs.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libbaton-client-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS
  "libabsl-dev, libgrpc++-dev, libprotobuf-dev, protobuf-compiler-grpc")
set(CPACK_COMPONENT_DEV_DESCRIPTION "C++ client of Baton, a serving cluster for language models
${purpose}
Headers and a static library, for find_package(baton) and pkg-config, the
Protobuf definitions of the API, and an example.")

# For finish.cmake, to which cpack passes variables that begin so.
set(CPACK_BATON_SOURCE_DIR ${PROJECT_SOURCE_DIR})
set(CPACK_BATON_VERSION ${version})
include(CPack)

# Runs in cpack between installation and packing: adds to each package what only a Debian package has.
set(packaging ${CPACK_BATON_SOURCE_DIR}/packaging)
set(root ${CPACK_TEMPORARY_DIRECTORY})

set(server ${root}/server)
file(COPY ${packaging}/systemd/ DESTINATION ${server}/lib/systemd/system FILES_MATCHING PATTERN *.service)
configure_file(${packaging}/systemd/baton.default ${server}/etc/default/baton COPYONLY)
configure_file(${packaging}/systemd/sysusers.conf ${server}/usr/lib/sysusers.d/baton.conf COPYONLY)

string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
foreach(component_and_package server:baton-server cli:baton-cli dev:libbaton-client-dev)
  string(REGEX MATCH "(.*):(.*)" _ ${component_and_package})
  set(package ${CMAKE_MATCH_2})
  set(directory ${root}/${CMAKE_MATCH_1})
  set(doc ${directory}/usr/share/doc/${package})
  configure_file(${packaging}/debian/copyright ${doc}/copyright COPYONLY)
  file(WRITE ${doc}/changelog.Debian "baton (${CPACK_BATON_VERSION}) unstable; urgency=medium

  * Built from the source tree: its git log has the changes.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  execute_process(COMMAND gzip -9n ${doc}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
  if(EXISTS ${packaging}/debian/${package}.lintian-overrides)
    configure_file(${packaging}/debian/${package}.lintian-overrides
      ${directory}/usr/share/lintian/overrides/${package} COPYONLY)
  endif()
endforeach()

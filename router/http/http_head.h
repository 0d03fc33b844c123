// The head of an HTTP request: what RFC 9112 demands of it beyond Boost.Beast's parser, so that
// this server and a proxy before it agree on where a request ends and which server it is for.
#ifndef BATON_ROUTER_HTTP_HTTP_HEAD_H_
#define BATON_ROUTER_HTTP_HTTP_HEAD_H_

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <string>

#include "router/http/http_server.h"

namespace baton::router {

using HttpMessage = boost::beast::http::request<boost::beast::http::string_body>;

// Returns the method, path and headers. The target may have any form that RFC 9112 has.
HttpRequest HeadOf(const HttpMessage& message);

struct HttpRefusal {
  int status = 0;  // 0: none
  std::string why = "";
};
// Refuses a head that is wrong or ambiguous with 400: HTTP/1.1 without exactly one Host, several
// lengths, a length beside a transfer coding, or a transfer coding other than chunked at the end.
// Refuses another coding before chunked with 501.
HttpRefusal CheckHead(const HttpMessage& message);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_HTTP_HEAD_H_

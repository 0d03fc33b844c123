// The page at "/", made of the files in router/http/web_ui: a chat, and the state of the cluster.
// Self-contained; it reads /v1/baton/status once a second.
#ifndef BATON_ROUTER_HTTP_WEB_UI_H_
#define BATON_ROUTER_HTTP_WEB_UI_H_

#include "router/http/http_server.h"
#include "router/request/router_parts.h"

namespace baton::router {

// The page, with "@NONCE@" where the nonce of its Content-Security-Policy belongs.
extern const char kWebUiSource[];

// The page, with a policy that lets it run its own script and style and talk to this router only.
HttpResponse WebUiResponse();
// Workers, and histograms since the router's start with cumulative counts, the last of which is of
// all values; null without /metrics.
HttpResponse StatusResponse(const RouterParts& parts);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_WEB_UI_H_

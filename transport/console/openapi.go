package console

import (
	_ "embed"
	"net/http"
)

// openAPI describes the admin API. It is made from the table of routes by the package's test (go test -run OpenAPI
// -update), which also fails when they differ.
//
//go:embed openapi.json
var openAPI []byte

func (s *Server) serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if _, err := w.Write(openAPI); err != nil {
		s.cfg.Logger.Debug("openapi.json not delivered", "error", err)
	}
}

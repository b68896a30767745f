package console

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/millrace/millrace/metadata"
)

// allowed says whether a request may use the admin API. There is no authentication yet, so that only this machine may,
// and only by a name of its own: not a browser that another site sends here, nor somebody behind a proxy.
func (s *Server) allowed(r *http.Request) error {
	refuse := func(why, fix string) error {
		return &metadata.Error{Kind: metadata.ErrPolicyViolation, What: "the admin API does not answer this request", Why: why, Fix: fix}
	}
	const tunnel = "run the command on the broker's machine, or through a tunnel: ssh -L 9644:localhost:9644 HOST, then --admin localhost:9644"
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !remote.Addr().Unmap().IsLoopback() {
		return refuse("it comes from "+r.RemoteAddr+", and without authentication only the broker's own machine is answered", tunnel)
	}
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip"} {
		if r.Header.Get(h) != "" {
			return refuse("a proxy has passed it on ("+h+"), and without authentication only the broker's own machine is answered", tunnel)
		}
	}
	if !loopbackName(r.Host) {
		return refuse("it asks for the host "+r.Host+", which is no name of loopback: a web page may have been made to send it", "use localhost or 127.0.0.1 in the address")
	}
	if err := s.crossOrigin.Check(r); err != nil {
		return refuse("a web page of another origin has sent it", "open the console itself, or use the command line")
	}
	return nil
}

// loopbackName says whether a Host header names loopback by address or as localhost.
func loopbackName(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	if strings.EqualFold(name, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Unmap().IsLoopback()
}

// notFound is the answer to paths of the admin API that are no route.
func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	if err := s.allowed(r); err != nil {
		s.writeError(w, http.StatusForbidden, err)
		return
	}
	s.writeError(w, http.StatusNotFound, &metadata.Error{What: "the admin API has no " + r.Method + " " + r.URL.Path, Why: "the path or the method is mistyped, or of another version", Fix: "GET /v1/openapi.json lists all"})
}
